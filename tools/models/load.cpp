// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/load.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/load.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/tools/models/initialize.h"
#include "fp8/tools/models/registry.h"

namespace fp8::models {
namespace {

/// Buffers that old checkpoints carry and that follow from config.json.
bool is_derived(const std::string& name) {
  constexpr std::string_view kSuffix = "rotary_emb.inv_freq";
  return name.ends_with(kSuffix);
}

/// The dtype to compute in when neither the caller nor config.json says: that of the word table.
at::ScalarType dtype_of_weights(const io::Checkpoint& checkpoint, const CausalLM& model) {
  const std::string name = model.name_of(*model.parts().words) + ".weight";
  if (!checkpoint.contains(name)) return at::kFloat;
  const auto dtype = checkpoint.info(name).dtype;
  return dtype == io::DType::BF16 ? at::kBFloat16 : dtype == io::DType::F16 ? at::kHalf : at::kFloat;
}

/// Adds the tensors that a parameter is read from.
template <class Names>
void add_tensors_of(const std::string& parameter, const io::Checkpoint& checkpoint, Names& names) {
  for (const auto& piece : quant::pieces_of(parameter, checkpoint)) names.insert(piece.tensor);
  if (has_mxfp4(checkpoint, parameter)) names.insert({parameter + "_blocks", parameter + "_scales"});
}

}  // namespace

std::vector<std::string> unused_tensors(const torch::nn::Module& model, const io::Checkpoint& checkpoint) {
  std::set<std::string> used;
  for (const auto& item : model.named_parameters()) add_tensors_of(item.key(), checkpoint, used);
  std::vector<std::string> unused;
  for (const auto& name : checkpoint.names())
    if (used.count(name) == 0 && !is_derived(name)) unused.push_back(name);
  return unused;
}

at::Tensor read_parameter(const LoadedModel& loaded, const io::Checkpoint& checkpoint, const std::string& name,
                          const at::Tensor& parameter, const LoadOptions& options) {
  return read_parameter(checkpoint, name, parameter.sizes(), loaded.model->storage_of(name),
                        {.dtype = loaded.dtype, .device = options.device, .allow_nonfinite = options.allow_nonfinite});
}

void load_parameters(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options) {
  for (auto& [name, parameter] : distinct_parameters(*loaded.model))
    parameter.set_data(read_parameter(loaded, checkpoint, name, parameter, options));
  loaded.unused = unused_tensors(*loaded.model, checkpoint);
}

LoadedModel prepare_model(const std::filesystem::path& folder, const io::Checkpoint& checkpoint,
                          const LoadOptions& options) {
  LoadedModel loaded;
  loaded.folder = folder;
  loaded.warnings = quant::notices_beside(checkpoint);
  const auto config = read_config(folder, &loaded.config_json);
  if (quant::read_quantization_config(checkpoint).is_null()) loaded.config_json.erase("quantization_config");
  config.values->attention = options.attention;
  config.values->fit(checkpoint);
  config.values->check(checkpoint);
  loaded.model = config.make();
  loaded.dtype = options.dtype          ? *options.dtype
                 : config.values->dtype ? *config.values->dtype
                                        : dtype_of_weights(checkpoint, *loaded.model);
  loaded.model->eval();
  return loaded;
}

LoadedModel load_model(const std::filesystem::path& folder, const LoadOptions& options) {
  read_config(folder);  // an error in it is the first to be told
  const io::Checkpoint checkpoint(folder);
  const bool quantized = is_quantized(folder);
  if (!quantized) quant::require_no_codes(checkpoint, mxfp4_tensors(checkpoint));
  auto loaded = prepare_model(folder, checkpoint, options);
  if (quantized)
    load_quantized(loaded, checkpoint, options);
  else
    load_parameters(loaded, checkpoint, options);
  loaded.model->eval();
  return loaded;
}

std::int64_t weights_bytes(const torch::nn::Module& module) {
  std::unordered_set<const void*> seen;
  std::int64_t bytes = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes += static_cast<std::int64_t>(tensor.nbytes());
  };
  for (const auto& tensor : module.parameters()) add(tensor);
  for (const auto& tensor : module.buffers()) add(tensor);
  return bytes;
}

std::int64_t weights_bytes(const LoadedModel& loaded) {
  const auto parameters = loaded.model->parameters();
  const auto in_fp8 = [](const at::Tensor& tensor) { return tensor.defined() && tensor.element_size() == 1; };
  if (!is_quantized(loaded.folder) && std::ranges::any_of(parameters, in_fp8)) return weights_bytes(*loaded.model);
  return static_cast<std::int64_t>(io::Checkpoint(loaded.folder).total_bytes());
}

// Loads an fp8 checkpoint into the model: codes and scales through quant, everything else as in any checkpoint.
//
// Experts stand in a checkpoint one by one (experts.E.w1, w2, w3) and in the model as two weights per expert. Each is
// read as a module of its own; w1's codes are then put above w3's, each row with the scale it has there; blocks of w1
// end where w3 begins, or the two are decoded into high precision.

namespace {

/// A weight of the model and the modules of the checkpoint that it is made of.
struct Stacked {
  measure::WeightModule module;
  std::vector<measure::WeightModule> parts;
};

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// Splits the model's weights: those that the checkpoint has by themselves stay in `plain`.
std::vector<Stacked> stacked_weights(const std::vector<measure::WeightModule>& all, const io::Checkpoint& checkpoint,
                                     std::vector<measure::WeightModule>& plain) {
  std::vector<Stacked> stacked;
  for (const auto& m : all) {
    const auto pieces = quant::pieces_of(m.name + ".weight", checkpoint);
    if (pieces.size() == 1 && pieces[0].tensor == m.name + ".weight") {
      plain.push_back(m);
      continue;
    }
    if (pieces[0].index.has_value())
      io::fail<io::Error>(
          "{}: {}: stacked experts are read in high precision only, allowed in an fp8 checkpoint: experts.E.w1, w2, w3",
          checkpoint.folder().string(), pieces[0].tensor);
    Stacked s{m, {}};
    auto shape = m.weight.sizes().vec();
    shape[0] /= static_cast<std::int64_t>(pieces.size());
    for (const auto& piece : pieces)
      s.parts.push_back({module_of(piece.tensor), "Linear",
                         at::full({1}, 0.0f, at::TensorOptions().device(at::kHPU)).expand(shape), std::nullopt});
    stacked.push_back(std::move(s));
  }
  return stacked;
}

/// Appends a part's scales: those of its rows, or of its rows of blocks.
void add_scales(const quant::Fp8Handler& handler, std::int64_t rows, std::vector<float>& scale_inv) {
  const at::Tensor scales = handler.weight_scale_inv().cpu().contiguous();
  const float* values = scales.const_data_ptr<float>();
  if (handler.scheme().weights == recipes::Granularity::block) {
    scale_inv.insert(scale_inv.end(), values, values + scales.numel());
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) scale_inv.push_back(values[scales.numel() == 1 ? 0 : r]);
}

/// True if a block of one part would reach into the next one.
bool blocks_overlap(const Stacked& s, const quant::Scheme& scheme) {
  return scheme.weights == recipes::Granularity::block && s.parts.size() > 1 &&
         s.parts[0].weight.size(0) % scheme.block.rows != 0;
}

/// The parts' values, as the model's weight in high precision.
void join_values(const Stacked& s, at::ScalarType compute) {
  std::vector<at::Tensor> values;
  for (const auto& part : s.parts) {
    values.push_back(quant::fp8_handler(part.weight)->all_values(part.weight.detach(), compute));
    runtime::untag_weight(part.weight);
  }
  at::Tensor weight = s.module.weight;
  weight.set_data(at::cat(values));
}

/// Puts the parts' codes on the model's weight. Parts that are not fp8 are left to the caller: false.
bool join(const Stacked& s, at::ScalarType compute, const io::Checkpoint& checkpoint,
          const std::shared_ptr<quant::InputWatch>& watch) {
  std::vector<at::Tensor> codes;
  std::vector<float> scale_inv;
  quant::Scheme scheme;
  for (const auto& part : s.parts) {
    const auto* handler = quant::fp8_handler(part.weight);
    if (handler == nullptr) {
      if (!codes.empty())
        io::fail<io::Error>("{}: {}: expected fp8 as {} is", checkpoint.folder().string(), part.name, s.parts[0].name);
      return false;
    }
    const bool first = codes.empty();
    const float input =
        std::max(first ? 0.0f : scheme.input_scale_inv, handler->scheme().input_scale_inv);  // they read one x
    scheme = handler->scheme();
    if (scheme.activations == quant::ActivationScaling::static_tensor) {
      scheme.input_scale_inv = input;
      scheme.input_scale = quant::scale_for(scheme, input, part.name);
    }
    add_scales(*handler, part.weight.size(0), scale_inv);
    codes.push_back(part.weight.detach());
  }
  if (blocks_overlap(s, scheme)) {
    join_values(s, compute);
    return true;
  }
  for (const auto& part : s.parts) runtime::untag_weight(part.weight);
  if (scheme.weights != recipes::Granularity::block) scheme.weights = recipes::Granularity::channel;
  std::vector<at::Tensor> bytes;
  for (const auto& c : codes) bytes.push_back(c.view(at::kByte));
  quant::attach_fp8(s.module, at::cat(bytes).view(codes[0].scalar_type()), scale_inv, scheme, compute, watch);
  return true;
}

/// True if a module of the checkpoint is none of the class's: the model says so itself, or has nothing in the block (or
/// beside the module, where it is in none) that it stands in, as with layers that draft tokens, bridges and towers. A
/// class that lacks one module of a block that it has is not the checkpoint's.
bool is_outside(const CausalLM& model, const std::string& module) {
  if (model.leaves_out(module)) return true;
  std::size_t end = module.rfind('.');
  for (std::size_t at = module.find('.'); at != std::string::npos; at = module.find('.', at + 1)) {
    const std::size_t next = module.find('.', at + 1);
    const std::string part = module.substr(at + 1, next == std::string::npos ? next : next - at - 1);
    if (next != std::string::npos && part.find_first_not_of("0123456789") == std::string::npos) end = next;
  }
  const std::string block = module.substr(0, end) + ".";
  const auto parameters = model.named_parameters();
  return std::none_of(parameters.begin(), parameters.end(),
                      [&](const auto& item) { return item.key().starts_with(block); });
}

}  // namespace

void load_quantized(LoadedModel& loaded, const io::Checkpoint& checkpoint, const LoadOptions& options) {
  if (!options.device.is_hpu())
    io::fail<io::Error>("[models] {} is an fp8 checkpoint: it runs on hpu (--device), not on cpu",
                        loaded.folder.string());
  std::vector<measure::WeightModule> modules;
  const auto stacked = stacked_weights(measure::weight_modules(*loaded.model), checkpoint, modules);
  for (const auto& s : stacked) modules.insert(modules.end(), s.parts.begin(), s.parts.end());
  auto taken = quant::load_fp8(modules, measure::op_nodes(*loaded.model), checkpoint, loaded.dtype,
                               {options.dialect, options.allow_nonfinite, &loaded.warnings,
                                [&](const std::string& name) { return is_outside(*loaded.model, name); }});
  const auto watch = std::make_shared<quant::InputWatch>();
  std::unordered_set<const void*> done;  // a tied weight comes up twice
  for (const auto& s : stacked)
    if (join(s, loaded.dtype, checkpoint, watch)) done.insert(s.module.weight.unsafeGetTensorImpl());
  for (auto& item : loaded.model->named_parameters()) {
    const auto& name = item.key();
    auto& parameter = item.value();
    if (taken.count(name) != 0 || !done.insert(parameter.unsafeGetTensorImpl()).second) continue;
    add_tensors_of(name, checkpoint, taken);
    parameter.set_data(read_parameter(loaded, checkpoint, name, parameter, options));
  }
  for (const auto& name : checkpoint.names())
    if (taken.count(name) == 0) loaded.unused.push_back(name);
}

void initialize(CausalLM& model, double range, std::uint64_t seed, c10::Device device) {
  at::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& [name, parameter] : distinct_parameters(model)) {
    const bool bias = name.size() > 4 && name.ends_with("bias");
    at::Tensor values;
    if (parameter.dim() >= 2)
      values = at::empty(parameter.sizes(), at::kFloat).normal_(0, range, generator);
    else
      values = bias ? at::zeros(parameter.sizes(), at::kFloat) : at::ones(parameter.sizes(), at::kFloat);
    parameter.set_data(values.to(device));
  }
}

}  // namespace fp8::models
