// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/save.h"

#include <torch/nn/module.h>

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/handlers/linear_handler.h"

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
    default:
      TORCH_CHECK(false, "[save] ", name, ": found dtype ", t.scalar_type(),
                  ", allowed: Float, BFloat16, Half, Float8_e4m3fn, Long, Int, Byte, Bool");
  }
}

/// Codes that no module of the table answers for would lie in the file as if they were values.
void check_codes(const std::string& name, const at::Tensor& tensor) {
  const auto tag = runtime::tag_in_memory(tensor);
  TORCH_CHECK(!tag || !tag->has_codes_of(tensor), "[save] ", name, ": ", tag ? tag->describe() : "",
              ": expected a weight that a converted module holds, whose scale goes into the file with it; "
              "fp8::dequantize gives its values");
}

/// What is on the first weight that has a handler of another kind: training's, a calibration's. Empty: none has.
std::string other_handler(const std::vector<measure::WeightModule>& modules) {
  for (const auto& m : modules) {
    const auto tag = runtime::tag_in_memory(m.weight);
    if (tag && fp8_handler_in_memory(m.weight) == nullptr)
      return m.name + " is in use by another conversion (" + tag->describe() + ")";
  }
  return "";
}

/// The contents of the file: tensors by name, and which modules are fp8.
struct Contents {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::map<std::string, const Fp8Handler*> handlers;  ///< of fp8 weights, by tensor
  ConfigSpec config;
  bool any = false;  ///< config.scheme is set
};

/// The scheme that all modules share, and the module's name. Throws if the form can't hold the module.
void add_module(const measure::WeightModule& m, const Fp8Handler& handler, const CheckpointForm& form, Contents& out) {
  const Scheme& scheme = handler.scheme();
  const bool linear = configs::is_linear(m.type) && m.weight.dim() == 2;
  const bool format_fits = form.holds_e5m2() || scheme.format == recipes::Format::E4M3;
  TORCH_CHECK(linear && format_fits, "[save] ", m.name, ": ", form.name(), " holds ", form.holds_e5m2() ? "" : "E4M3 ",
              "Linear modules only, this is ", m.type, " in ", kernels::name_of(scheme.format));
  TORCH_CHECK(!m.name.empty(),
              "[save] expected modules with a name, found the root itself converted; put it into a module of its own");
  const std::string problem = form.scheme_problem(scheme),
                    weight_problem = form.weight_problem({m.name, m.weight.size(0), m.weight.size(1), scheme});
  TORCH_CHECK(problem.empty(), "[save] ", m.name, ": ", problem);
  TORCH_CHECK(weight_problem.empty(), "[save] ", m.name, ": ", weight_problem,
              "; convert without it (exclude), or save in another form");
  Scheme& shared = out.config.scheme;
  const bool has_method = scheme_has_method(scheme);
  TORCH_CHECK(!has_method || scheme.activation_method.custom == nullptr, "[save] ", m.name,
              ": the scales of its activations are made by a function of your own, which no file holds");
  TORCH_CHECK(!out.any || (shared.describe() == scheme.describe() &&
                           (!has_method || shared.activation_method == scheme.activation_method)),
              "[save] ", m.name, ": expected all modules in one scheme (", shared.describe(),
              has_method ? ", " + configs::to_json(shared.activation_method).dump() : "", "), found ",
              handler.describe(), has_method ? ", " + configs::to_json(scheme.activation_method).dump() : "");
  shared = scheme;
  out.any = true;
  out.config.quantized.push_back(m.name);
  out.handlers[m.name + ".weight"] = &handler;
}

/// Modules without a weight that are in fp8: scales of key-value caches go into the file, the others have no place
/// there.
std::vector<SkippedModule> add_nodes(const std::vector<measure::OpNode>& nodes, const CheckpointForm& form,
                                     Contents& out) {
  std::vector<SkippedModule> left;
  std::map<std::string, KvScales> caches;  // by attention module
  for (const auto& n : nodes) {
    const auto* handler = node_handler(*n.slot);
    if (handler == nullptr) continue;
    const auto dot = n.name.rfind('.');
    const std::string last = n.name.substr(dot + 1);
    if (dot != std::string::npos && configs::info_of(handler->scheme().kind).cache &&
        (last == "k_cache" || last == "v_cache")) {
      auto& kv = caches[n.name.substr(0, dot)];
      (last == "k_cache" ? kv.k : kv.v) = handler->scheme().input_scale_inv;
      continue;
    }
    left.push_back({n.name, std::string("in fp8 in memory; ") + form.name() + " has no place for its scales"});
  }
  const auto in_high_precision = [](const measure::OpNode& n) {
    return configs::type_is(n.type, &configs::KindInfo::cache) && node_handler(*n.slot) == nullptr;
  };
  const bool partly = std::ranges::any_of(nodes, in_high_precision);  // engines would take 1.0 for the scales of those
  for (auto& [attention, kv] : caches) {
    kv.attention = attention;
    const std::string problem =
        kv.k.empty() || kv.v.empty() ? "only one of keys and values is in fp8"
        : partly ? "only a part of the key-value caches is in fp8, a checkpoint holds scales of all or none"
                 : form.kv_problem(kv);
    if (problem.empty()) {
      out.config.kv.push_back(kv);
    } else {
      for (const char* cache : {".k_cache", ".v_cache"}) left.push_back({attention + cache, problem});
    }
  }
  return left;
}

Contents contents_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                     const std::vector<measure::WeightModule>& modules, const CheckpointForm& form) {
  Contents out;
  out.tensors = tensors;
  for (const auto& m : modules) {
    const bool known = configs::find_module_type(m.type) != nullptr;
    if (const auto* handler = fp8_handler_in_memory(m.weight)) {
      if (known) add_module(m, *handler, form, out);
    } else if (m.weight.dim() == 2 && (!known || configs::is_linear(m.type))) {
      out.config.kept_linears.push_back(m.name);  // a reader that makes a Linear of it looks for a scale else
    }
  }
  for (const auto& [name, tensor] : tensors)
    if (!out.handlers.contains(name)) check_codes(name, tensor);
  if (out.any) return out;
  const std::string other = other_handler(modules);
  TORCH_CHECK(other.empty(), "[save] expected a model converted for inference, found that ", other,
              ": restore() ends that, converting for inference makes the codes to save; te::to_inference(model) does "
              "both for a model that trained in fp8");
  TORCH_CHECK(false, "[save] expected a converted model, found no fp8 module");
}

/// Takes from the source's config.json what readers call the modules, and which heads they make of an embedding. Throws
/// for a quantized source.
void add_source(const std::filesystem::path& source, Contents& out) {
  out.config.names = ModelNames(read_model_config(source));
  const auto holds = [&](const auto& wanted) {
    return std::ranges::any_of(out.tensors, [&](const auto& t) {
      return t.first.ends_with(".weight") && wanted(t.first.substr(0, t.first.size() - 7));
    });
  };
  auto& kept = out.config.kept_linears;
  for (const auto& [head, embedding] : out.config.names.tied()) {
    const bool own = holds([&, &head = head](const std::string& module) { return module == head; });
    // In fp8 it may have another name in the file than in the reader's model, or stand below a part of it.
    const bool in_fp8 = std::ranges::any_of(out.config.quantized, [&, &head = head](const std::string& module) {
      const auto names = out.config.names.names_on_load(module);
      return module.ends_with("." + head) || std::ranges::find(names, head) != names.end();
    });
    const bool tied =
        holds([&, &embedding = embedding](const std::string& module) { return matches_pattern(embedding, module); });
    if (!own && !in_fp8 && tied && std::ranges::find(kept, head) == kept.end()) kept.push_back(head);
  }
}

/// The tensors in their order, then the scales of key-value caches. Contents and form must outlive them.
std::vector<Unit> units_of(const Contents& contents, const CheckpointForm& form) {
  std::vector<Unit> units;
  const ConfigSpec& config = contents.config;
  for (const auto& item : contents.tensors) {
    const auto& [name, tensor] = item;
    Unit& unit = units.emplace_back();
    unit.name = name;
    unit.source_bytes = tensor.nbytes();
    const auto it = contents.handlers.find(name);
    if (it == contents.handlers.end()) {
      unit.entries = {{name, file_dtype(tensor, name), tensor.sizes().vec()}};
      unit.run = [&item](UnitContext& context) {
        context.write(item.first, item.second.const_data_ptr(), 0, item.second.nbytes());
        context.advance(item.second.nbytes());
      };
      continue;
    }
    const WeightSpec spec{name.substr(0, name.size() - 7), tensor.size(0), tensor.size(1), it->second->scheme()};
    const at::Tensor scale = it->second->weight_scale_inv().cpu().contiguous();
    const float* values = scale.const_data_ptr<float>();
    unit.entries = form.entries(spec, config);
    unit.run = [&form, &config, &item, spec,
                scale_inv = std::vector<float>(values, values + scale.numel())](UnitContext& context) {
      form.write_codes(context, spec, static_cast<const std::uint8_t*>(item.second.const_data_ptr()), 0, spec.rows);
      form.write_scales(context, spec, config, scale_inv);
      context.advance(item.second.nbytes());
    };
  }
  for (const auto& kv : config.kv) units.push_back(kv_unit(form, config, kv, kv.attention));
  return units;
}

/// What config.json and fp8.json say.
std::pair<io::Json, io::Json> saved_texts(const std::vector<measure::OpNode>& nodes, const CheckpointForm& form,
                                          const std::filesystem::path& source, bool use_qdq, Contents& contents) {
  const Scheme& scheme = contents.config.scheme;
  contents.config.qdq = use_qdq || scheme.compute == Compute::qdq;
  Plan plan;
  plan.skipped = add_nodes(nodes, form, contents);
  plan.scale_method = contents.config.scale_method = scheme.convention == Convention::own ? "amax" : "inc";
  if (!source.empty()) add_source(source, contents);
  return {form.config(contents.config), make_sidecar(plan, scheme)};
}

}  // namespace

void save(const torch::nn::Module& model, const std::filesystem::path& out, const std::string& form,
          const SaveOptions& options) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::set<const void*> seen;  // tied parameters are stored once
  for (const auto& item : model.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) tensors.emplace_back(item.key(), item.value());
  save(tensors, measure::weight_modules(model), measure::op_nodes(model), out, form, options);
}

void save(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
          const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
          const std::filesystem::path& out, const std::string& form_name, const SaveOptions& options) {
  const CheckpointForm& form = form_named(form_name);
  TORCH_CHECK(!form.needs_mxfp4(), "[save] ", kNeedsMxfp4);
  Contents contents = contents_of(tensors, modules, form);
  for (auto& [name, tensor] : contents.tensors) tensor = tensor.detach().cpu().contiguous();
  if (!options.source.empty()) io::refuse_same_path(options.source, out);
  const auto [config, sidecar] = saved_texts(nodes, form, options.source, options.use_qdq, contents);
  StreamOptions stream;
  stream.overwrite = options.overwrite;
  Job job(options.source, stream);
  job.identify({{"command", "save"}});
  job.units = units_of(contents, form);
  job.form = &form;
  job.quantization = config;
  job.texts.sidecar = sidecar;
  job.write(out);
}

std::pair<io::Json, io::Json> quantization_config(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                                  const std::vector<measure::WeightModule>& modules,
                                                  const std::vector<measure::OpNode>& nodes,
                                                  const std::string& form_name, const std::filesystem::path& source) {
  const CheckpointForm& form = form_named(form_name);
  Contents contents = contents_of(tensors, modules, form);
  return saved_texts(nodes, form, source, /*use_qdq=*/false, contents);
}

}  // namespace fp8::quant
