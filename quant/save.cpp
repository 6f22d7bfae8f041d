// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/save.h"

#include <torch/nn/module.h>

#include <map>
#include <set>
#include <vector>

#include "fp8/configs/module_types.h"
#include "fp8/measure/module_tree.h"
#include "fp8/quant/formats/checkpoint_folder.h"
#include "fp8/quant/formats/compressed_tensors.h"
#include "fp8/quant/formats/inc_checkpoint.h"
#include "fp8/quant/formats/sidecar.h"
#include "fp8/quant/fp8_handler.h"
#include "fp8/quant/node_handler.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"

namespace fp8::quant {
namespace {

io::DType file_dtype(const at::Tensor& t, const std::string& name) {
  switch (t.scalar_type()) {
    case at::kFloat: return io::DType::F32;
    case at::kBFloat16: return io::DType::BF16;
    case at::kHalf: return io::DType::F16;
    case at::kFloat8_e4m3fn: return io::DType::F8_E4M3;
    case at::kLong: return io::DType::I64;
    case at::kInt: return io::DType::I32;
    case at::kByte: return io::DType::U8;
    case at::kBool: return io::DType::BOOL;
    default: TORCH_CHECK(false, "[save] ", name, ": dtype ", t.scalar_type(), " has no place in the checkpoint");
  }
}

const Fp8Handler* handler_of(const at::Tensor& weight) {
  const auto* tag = runtime::find_tag(weight);
  return tag != nullptr ? dynamic_cast<const Fp8Handler*>(tag->handler.get()) : nullptr;
}

/// Modules without a weight that are in fp8: the form has no place for their scales, a reader runs them in high precision.
std::vector<SkippedModule> nodes_left_behind(const torch::nn::Module& model) {
  std::vector<SkippedModule> out;
  for (const auto& n : measure::op_nodes(model)) {
    if (dynamic_cast<const NodeHandler*>(n.slot->handler.get()) != nullptr) out.push_back({n.name, "in fp8 in memory; compressed-tensors has no place for its scales"});
  }
  return out;
}

/// What goes into the file: host tensors by name, and which modules are fp8.
struct Contents {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<std::string> quantized, kept_linears;
  std::optional<Scheme> scheme;
  std::map<std::string, const Fp8Handler*> handlers;  ///< of weights that INC's writer stores, by tensor
};

/// The scheme that all modules share, and the module's name. Throws if the form can't hold the module.
void add_scheme(const measure::WeightModule& m, const Fp8Handler& handler, CheckpointFormat format, Contents& out) {
  const auto* type = configs::find_module_type(m.type);
  const bool linear = type != nullptr && (type->kind == configs::ModuleKind::linear || type->kind == configs::ModuleKind::row_parallel_linear) && m.weight.dim() == 2;
  const bool format_fits = format == CheckpointFormat::inc || handler.scheme().format == recipes::Format::E4M3;
  TORCH_CHECK(linear && format_fits, "[save] ", m.name, ": ", name_of(format), " holds ", format == CheckpointFormat::inc ? "" : "E4M3 ",
              "Linear modules only, this is ", m.type, " in ", kernels::name_of(handler.scheme().format));
  TORCH_CHECK(format != CheckpointFormat::inc_vllm || (handler.scheme().weights == WeightGranularity::tensor && handler.scheme().activations == ActivationScaling::static_tensor),
              "[save] ", m.name, ": inc-vllm holds one static scale per tensor, this has ", handler.describe());
  TORCH_CHECK(!m.name.empty(), "[save] expected modules with a name, found the root itself converted; put it into a module of its own");
  if (out.scheme.has_value()) {
    TORCH_CHECK(out.scheme->describe() == handler.scheme().describe(), "[save] ", m.name, ": expected all modules in one scheme (", out.scheme->describe(), "), found ",
                handler.describe());
  }
  out.scheme = handler.scheme();
  out.quantized.push_back(m.name);
}

void add_module(const measure::WeightModule& m, const Fp8Handler& handler, CheckpointFormat format, Contents& out) {
  add_scheme(m, handler, format, out);
  if (format == CheckpointFormat::inc) {
    inc::check_scheme(handler.scheme(), m.name);
    return;  // the writer makes its tensors
  }
  const at::Tensor scale = handler.weight_scale_inv().cpu();
  out.tensors.emplace_back(m.name + ".weight_scale", scale.numel() == 1 ? scale.view({1}) : scale.view({-1, 1}));
  if (handler.scheme().activations == ActivationScaling::static_tensor) {
    out.tensors.emplace_back(m.name + ".input_scale", at::full({1}, handler.scheme().input_scale_inv, at::kFloat));
  }
}

Contents contents_of(const torch::nn::Module& model, CheckpointFormat format) {
  Contents out;
  std::set<const void*> seen;  // tied parameters are stored once
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) out.tensors.emplace_back(item.key(), item.value().detach().cpu().contiguous());
  }
  for (const auto& item : model.named_buffers()) out.tensors.emplace_back(item.key(), item.value().detach().cpu().contiguous());
  for (const auto& m : measure::weight_modules(model)) {
    if (const auto* handler = handler_of(m.weight)) {
      add_module(m, *handler, format, out);
      if (format == CheckpointFormat::inc) out.handlers[m.name + ".weight"] = handler;
    } else if (m.type == "Linear") {
      out.kept_linears.push_back(m.name);
    }
  }
  TORCH_CHECK(out.scheme.has_value(), "[save] expected a converted model, found no fp8 module");
  return out;
}

}  // namespace

void save(const torch::nn::Module& model, const std::filesystem::path& out, CheckpointFormat format, const SaveOptions& options) {
  const Contents contents = contents_of(model, format);
  const inc::Layout layout = inc::layout_of(*contents.scheme, options.use_qdq || contents.scheme->compute == Compute::qdq);
  const bool is_inc = format == CheckpointFormat::inc;
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : contents.tensors) {
    if (const auto it = contents.handlers.find(name); it != contents.handlers.end()) {
      for (auto& e : inc::entries(name.substr(0, name.size() - 7), tensor.size(0), tensor.size(1), it->second->scheme(), layout)) entries.push_back(std::move(e));
    } else {
      entries.push_back({name, file_dtype(tensor, name), tensor.sizes().vec()});
    }
  }
  if (!options.source.empty()) io::refuse_same_path(options.source, out);
  if (!options.source.empty()) read_model_config(options.source);  // throws unless it is of a high precision model
  io::Json edits;
  edits["quantization_config"] = is_inc ? inc::make_config(*contents.scheme, "", contents.quantized, contents.kept_linears, layout)
                                        : compressed_tensors::make_config(*contents.scheme, contents.quantized, contents.kept_linears);
  Plan plan;
  plan.scale_method = contents.scheme->convention == Convention::own ? "amax" : "inc";
  plan.skipped = nodes_left_behind(model);
  OutputFolder folder(out, options.overwrite);
  ShardedWriter writer(folder.path(), entries);
  for (const auto& [name, tensor] : contents.tensors) {
    const auto it = contents.handlers.find(name);
    if (it == contents.handlers.end()) {
      writer.write(name, tensor.const_data_ptr(), 0, tensor.nbytes());
      continue;
    }
    const std::string module = name.substr(0, name.size() - 7);
    const at::Tensor scale = it->second->weight_scale_inv().cpu().contiguous();
    const float* values = scale.const_data_ptr<float>();
    inc::write_rows(writer, module, static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.size(0), tensor.size(1), 0, tensor.size(0));
    inc::write_scales(writer, module, std::vector<float>(values, values + scale.numel()), it->second->scheme(), layout);
  }
  writer.commit();
  if (is_inc) folder.write_json("quantization_config.json", edits["quantization_config"]);
  folder.write_config(options.source.empty() ? options.source : options.source / "config.json", edits);
  folder.write_json(kSidecarName, make_sidecar(plan, *contents.scheme));
  if (!options.source.empty()) folder.carry_through(options.source);
  folder.commit();
}

}  // namespace fp8::quant
