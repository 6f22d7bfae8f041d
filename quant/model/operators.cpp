// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/operators.h"

#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/quant/model/load.h"
#include "fp8/quant/model/logit_scores.h"
#include "fp8/quant/model/rows.h"
#include "fp8/quant/model/rows_of_model.h"
#include "fp8/quant/model/save.h"
#include "fp8/quant/model/stored.h"
#include "fp8/quant/names/model_weights.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

using recipes::Dialect, recipes::FloatType;
using Reader = std::function<bool(const io::Json&)>;

/// A key of a JSON argument. read: false if the value is not of what is allowed.
struct Key {
  std::string name, allowed;
  Reader read;
};

/// The value of a name; T: E or std::optional<E>.
template <class E, class T>
Key choice(const char* key, T& into, const EnumChoice<E>& among = choice_of<E>()) {
  return {key, allowed_names(among), [among, &into](const io::Json& json) {
            for (const auto& row : among)
              if (json == row.name) return (into = row.value, true);
            return false;
          }};
}

Key boolean(const char* key, bool& into) {
  return {key, "true, false",
          [&into](const io::Json& json) { return json.is_boolean() && (into = json.get<bool>(), true); }};
}

Key words(const char* key, std::vector<std::string>& into) {
  return {key, "a list of strings", [&into](const io::Json& json) {
            if (!json.is_array()) return false;
            for (const auto& word : json) {
              if (!word.is_string()) return false;
              into.push_back(word.get<std::string>());
            }
            return true;
          }};
}

Key block(Block& into) {
  return {"block", "[rows, cols], each from 1 to 2^30", [&into](const io::Json& json) {
            if (!json.is_array() || json.size() != 2) return false;
            for (const auto& side : json)
              if (!side.is_number_integer() || side < 1 || side > std::int64_t{1} << 30) return false;
            into = {json[0].get<std::int64_t>(), json[1].get<std::int64_t>()};
            return true;
          }};
}

const EnumChoice<ActivationScaling>& activation_words() {
  using enum ActivationScaling;
  static const EnumChoice<ActivationScaling> words = {{none, "none"},
                                                      {static_tensor, "static_tensor"},
                                                      {dynamic_token, "dynamic_token"},
                                                      {dynamic_tensor, "dynamic_tensor"},
                                                      {dynamic_group, "dynamic_group"}};
  return words;
}

/// Reads an argument's JSON; which keys it has.
std::set<std::string> read_keys(const std::string& argument, const std::string& text, const std::vector<Key>& keys) {
  const io::Json json = io::parse_json(text.empty() ? "{}" : text, argument);
  if (!json.is_object()) io::fail<io::Error>("{}: expected a JSON object", argument);
  std::set<std::string> found;
  for (const auto& [name, value] : json.items()) {
    std::vector<std::string> names;
    const Key* key = nullptr;
    for (const Key& k : keys) {
      names.push_back(k.name);
      if (k.name == name) key = &k;
    }
    if (key == nullptr)
      io::fail<io::Error>("{}: unknown key {}, allowed: {}; did you mean '{}'?", argument, io::in_quotes(name),
                          io::joined(names), configs::closest(name, names));
    if (!key->read(value))
      io::fail<io::Error>("{}: key '{}': found {}, allowed: {}", argument, name, io::printable(value.dump()),
                          key->allowed);
    found.insert(name);
  }
  return found;
}

/// The request of a call of convert(): a QUANT_CONFIG, or a plan's options.
struct Request {
  std::optional<configs::QuantConfig> config;
  PlanOptions plan;
  bool recurrent = false;
};

Request request_of(const std::string& text) {
  const std::string where = "[fp8::convert] options";
  Request request;
  std::string measurements;
  std::optional<ActivationScaling> activations;
  std::optional<WeightWord> weights;
  io::Json config_json;
  const Key config = {"quant_config", "an object or the path of a file", [&](const io::Json& json) {
                        config_json = json;
                        return json.is_object() || json.is_string();
                      }};
  const Key measured = {"measurements", "a path", [&](const io::Json& json) {
                          if (json.is_string()) measurements = json.get<std::string>();
                          return !measurements.empty();
                        }};
  PlanOptions& plan = request.plan;
  const auto keys = read_keys(
      where, text,
      {config, measured, choice("activations", activations, activation_words()), choice<WeightWord>("weights", weights),
       block(plan.block), boolean("power_of_two", plan.power_of_two), boolean("fuse_scales", plan.fuse_scales),
       choice<ScaleSearch>("weight_scales", plan.search), choice<Dialect>("dialect", plan.dialect),
       words("include", plan.include), words("exclude", plan.exclude), boolean("recurrent", request.recurrent)});
  if (!config_json.is_null()) {
    if (keys.size() > 1 + keys.count("recurrent"))
      io::fail<io::Error>("{}: expected 'quant_config' alone, it decides the rest", where);
    request.config = config_json.is_object()
                         ? configs::parse_quant_config(config_json, where + ": quant_config", measure::parse_options())
                         : configs::read_quant_config(config_json.get<std::string>(), measure::parse_options());
    if (config_json.is_object()) request.config->source = "the config";
    return request;
  }
  if (weights == WeightWord::mx && (keys.contains("block") || keys.contains("power_of_two")))
    io::fail<io::Error>("{}: keys 'block', 'power_of_two': expected with \"weights\": \"block\", found \"mx\"", where);
  if (weights.has_value()) set_weights(plan, *weights);
  if (!plan.dialect.has_value()) plan.dialect = runtime::device_dialect("convert");
  if (!measurements.empty()) plan.measurements = measure::read_measurements(measurements);
  plan.activations =
      activations.value_or(measurements.empty() ? ActivationScaling::dynamic_token : ActivationScaling::static_tensor);
  return request;
}

/// Python's nn.LSTM, GRU and RNN compare their input's dtype with their weights' before any operator of ours runs.
void refuse_recurrent(const Plan& plan) {
  for (const auto& m : plan.modules) {
    const std::string& type = m.info.type;
    TORCH_CHECK(type != "LSTM" && type != "GRU" && type != "RNN", "[fp8::convert] module '", m.info.name, "' is a ",
                type,
                ", whose forward in Python refuses weights of another dtype than its input's; leave it out "
                "(\"exclude\", the config's blocklist), use ",
                type,
                "Cell, or pass \"recurrent\": true for a scripted model and for calls inside torch.autocast, where "
                "nothing is compared");
  }
}

/// The handler of a weight that convert(), load() or tag() made, or of a copy of it on the host.
const Fp8Handler& handler_of(const char* op, const at::Tensor& weight) {
  if (weight.is_hpu()) runtime::find_tag(weight);  // puts a mark that the tensor alone has on its memory
  const auto tag = runtime::tag_in_memory(weight);
  const auto* handler = tag ? runtime::handler_as<Fp8Handler>(tag->handler.get()) : nullptr;
  TORCH_CHECK(handler != nullptr, "[fp8::", op, "] weight: expected a weight in fp8, found ", weight.scalar_type(),
              " on ", weight.device(), ", ", tag ? tag->handler->describe() : "untagged");
  return *handler;
}

struct TagScheme {
  Scheme scheme;
  at::ScalarType original = at::kBFloat16;
};

TagScheme tag_scheme(const std::string& text, const at::Tensor& scale_inv) {
  const std::string where = "[fp8::tag] scheme";
  TagScheme out;
  Scheme& scheme = out.scheme;
  scheme.weights = scale_inv.numel() == 1 ? Granularity::tensor
                   : scale_inv.dim() == 2 ? Granularity::block
                                          : Granularity::channel;
  scheme.activations = ActivationScaling::none;
  std::optional<Dialect> dialect;
  FloatType dtype = FloatType::BF16;
  const Key input = {"input_scale_inv", "a positive finite number", [&](const io::Json& json) {
                       if (json.is_number()) scheme.input_scale_inv = json.get<float>();
                       return json.is_number() && std::isfinite(scheme.input_scale_inv) && scheme.input_scale_inv > 0;
                     }};
  const Key method = {"activation_method", "an object", [&](const io::Json& json) {
                        scheme.activation_method = configs::scale_method_from_json(json, where, "activation_method");
                        return true;
                      }};
  const auto keys = read_keys(where, text,
                              {choice("weights", scheme.weights, weight_granularities()),
                               choice("activations", scheme.activations, activation_words()), block(scheme.block),
                               boolean("power_of_two", scheme.power_of_two), choice<Dialect>("dialect", dialect), input,
                               choice<FloatType>("dtype", dtype), choice<Convention>("convention", scheme.convention),
                               choice<FloatType>("hp_dtype", scheme.hp), method});
  scheme.dialect = dialect.has_value() ? *dialect : runtime::device_dialect("tag");
  out.original = runtime::ops::dtype_of(dtype);
  const bool is_static = scheme.is_static();
  if (is_static != (keys.contains("input_scale_inv")))
    io::fail<io::Error>("{}: key 'input_scale_inv': expected with activations static_tensor, and only with them",
                        where);
  if (scheme_has_method(scheme) != keys.contains("activation_method"))
    io::fail<io::Error>(
        "{}: key 'activation_method': expected with dynamic activations of convention \"inc\", and only with them",
        where);
  if (is_static) scheme.input_scale = scale_for(scheme, scheme.input_scale_inv, where + ": key 'input_scale_inv'");
  return out;
}

/// What save() and quantization_config() are given.
struct ModelToSave {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<measure::WeightModule> modules;
};

ModelToSave model_to_save(const char* op, at::TensorList tensors, const std::vector<std::string>& names,
                          const std::vector<std::string>& types, const std::string& format) {
  runtime::check_one_for_each(op, "names", names.size(), "tensors", tensors.size());
  runtime::check_one_for_each(op, "types", types.size(), "tensors", tensors.size());
  const auto forms = form_names(std::not_fn(&CheckpointForm::needs_mxfp4));
  TORCH_CHECK(std::ranges::find(forms, format) != forms.end(), "[fp8::", op, "] format: found \"", format,
              "\", allowed: ", io::joined(forms));
  ModelToSave model;
  std::set<const void*> seen;
  std::set<std::string> once;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = names[i];
    TORCH_CHECK(!name.empty() && once.insert(name).second, "[fp8::", op, "] names: found \"", name, "\"",
                name.empty() ? ", expected a name" : " twice, expected each once");
    runtime::check_dense(op, "tensors", name, tensors[i]);
    if (seen.insert(tensors[i].unsafeGetTensorImpl()).second) model.tensors.emplace_back(name, tensors[i]);
    constexpr std::string_view kWeight = ".weight";
    if (name.size() > kWeight.size() && name.ends_with(kWeight))
      model.modules.push_back({name.substr(0, name.size() - kWeight.size()), types[i], tensors[i], std::nullopt});
  }
  return model;
}

}  // namespace

io::Json to_json(const ConversionReport& report) {
  io::Json converted = io::Json::array(), skipped = io::Json::array();
  for (const auto& m : report.converted) {
    converted.push_back({{"name", m.name},
                         {"type", m.type},
                         {"scheme", m.scheme},
                         {"bytes_before", m.bytes_before},
                         {"bytes_after", m.bytes_after}});
    if (!m.reduced_scale_inv.empty()) converted.back()["reduced_scale_inv"] = m.reduced_scale_inv;
  }
  for (const auto& m : report.skipped) skipped.push_back({{"name", m.name}, {"reason", m.reason}});
  return {{"converted", converted}, {"skipped", skipped}, {"warnings", report.warnings}};
}

std::string convert_tensors(at::TensorList weights, const std::vector<std::string>& modules,
                            const std::vector<std::string>& types, const std::string& options,
                            const measure::Nodes& nodes, const std::optional<std::vector<std::string>>& node_names) {
  const auto model = measure::model_of("convert", weights, modules, types);
  const auto ops = measure::nodes_of("convert", nodes, node_names);
  const Request request = request_of(options);
  if (!request.config.has_value()) {
    if (!request.recurrent) refuse_recurrent(plan_for(model, request.plan));
    return to_json(convert(model, ops, request.plan)).dump();
  }
  using configs::QuantMode;
  TORCH_CHECK(request.config->mode == QuantMode::QUANTIZE || request.config->mode == QuantMode::LOAD,
              "[fp8::convert] options: quant_config: expected mode QUANTIZE or LOAD; measure with fp8::measure_begin");
  const auto device = runtime::device_dialect("convert");
  if (!request.recurrent) refuse_recurrent(plan_with_config(model, ops, *request.config, device));
  return to_json(convert_with_config(model, ops, *request.config, device)).dump();
}

void tag_codes(const at::Tensor& codes, const std::string& module, const at::Tensor& scale_inv,
               const std::string& scheme) {
  runtime::check_dense("tag", "codes", module, codes);
  runtime::check_dense("tag", "scale_inv", module, scale_inv);
  const bool fp8 = codes.scalar_type() == at::kFloat8_e4m3fn || codes.scalar_type() == at::kFloat8_e5m2;
  TORCH_CHECK(
      fp8 && codes.is_hpu() && codes.is_contiguous() && codes.dim() >= 2,
      "[fp8::tag] codes: expected Float8_e4m3fn or Float8_e5m2 on hpu, contiguous, of two or more dimensions, found ",
      codes.scalar_type(), " on ", codes.device(), " of sizes ", codes.sizes(), " and strides ", codes.strides());
  TORCH_CHECK(scale_inv.scalar_type() == at::kFloat, "[fp8::tag] scale_inv: expected Float, found ",
              scale_inv.scalar_type());
  TagScheme tag = tag_scheme(scheme, scale_inv);
  tag.scheme.format = codes.scalar_type() == at::kFloat8_e4m3fn ? recipes::Format::E4M3 : recipes::Format::E5M2;
  const at::Tensor host = scale_inv.detach().cpu().contiguous();
  const std::vector<float> values(host.const_data_ptr<float>(), host.const_data_ptr<float>() + host.numel());
  for (const float value : values)
    TORCH_CHECK(std::isfinite(value) && value > 0, "[fp8::tag] scale_inv: found ", value,
                ", allowed: positive finite numbers");
  const std::int64_t channels = codes.dim() == 3 ? codes.size(0) * codes.size(1) : codes.size(0);
  const auto count = static_cast<std::int64_t>(values.size());
  switch (tag.scheme.weights) {
    case Granularity::tensor: TORCH_CHECK(count == 1, "[fp8::tag] scale_inv: expected 1 value, found ", count); break;
    case Granularity::channel:
      TORCH_CHECK(count == channels || count == codes.size(0), "[fp8::tag] scale_inv: expected ", channels,
                  " values (one per row), found ", count);
      break;
    default: {
      const auto grid = scale_grid(tag.scheme, codes.size(0), codes.size(1));
      TORCH_CHECK(codes.dim() == 2 && scale_inv.sizes() == at::IntArrayRef({grid.rows, grid.cols}),
                  "[fp8::tag] scale_inv: expected ", grid.rows, " x ", grid.cols, " values (one per block of ",
                  tag.scheme.block.rows, " x ", tag.scheme.block.cols, "), found sizes ", scale_inv.sizes());
      break;
    }
  }
  attach_fp8({module, "Linear", codes, std::nullopt}, codes.detach(), values, tag.scheme, tag.original);
}

at::Tensor scale_inv_of(const at::Tensor& weight) { return handler_of("scale_inv", weight).weight_scale_inv().clone(); }

std::string scheme_of(const at::Tensor& weight) {
  const Fp8Handler& handler = handler_of("scheme_of", weight);
  const Scheme& s = handler.scheme();
  const bool is_static = s.is_static(), has_method = scheme_has_method(s);
  TORCH_CHECK(s.compute == Compute::fp8 && !(has_method && s.activation_method.value == recipes::ScaleValue::CUSTOM),
              "[fp8::scheme_of] weight: expected fp8 products with scales that a scheme tells, found ", s.describe());
  io::Json json = {{"weights", name_of(s.weights)}, {"activations", name_of(s.activations, activation_words())}};
  if (s.has_blocks() || s.activations == ActivationScaling::dynamic_group) json["block"] = {s.block.rows, s.block.cols};
  if (s.power_of_two) json["power_of_two"] = true;
  json["dialect"] = recipes::name_of(s.dialect);
  if (is_static) json["input_scale_inv"] = s.input_scale_inv;
  json["dtype"] = name_of(runtime::ops::float_type_of(handler.original_dtype()));
  json["convention"] = name_of(s.convention);
  if (s.convention == Convention::inc) json["hp_dtype"] = recipes::name_of(s.hp);
  if (has_method) json["activation_method"] = configs::to_json(s.activation_method);
  return json.dump();
}

std::vector<std::string> load_tensors(at::TensorList weights, const std::vector<std::string>& modules,
                                      const std::vector<std::string>& types, const std::string& folder,
                                      std::optional<at::ScalarType> compute,
                                      const std::optional<std::string>& dialect) {
  const auto model = measure::model_of("load", weights, modules, types);
  TORCH_CHECK(!model.empty(), "[fp8::load] weights: found none, expected those of the model");
  for (const auto& m : model)
    TORCH_CHECK(m.weight.is_hpu(), "[fp8::load] weights: ", m.name, ": expected it on hpu, found it on ",
                m.weight.device());
  const at::ScalarType dtype = compute.value_or(model[0].weight.scalar_type());
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "[fp8::load] compute: found ", dtype,
              ", allowed: Float, BFloat16, Half");
  LoadFp8Options options;
  if (dialect.has_value()) options.dialect = dialect_from_name(*dialect, "[fp8::load] dialect");
  const auto taken = load_fp8(model, {}, io::Checkpoint(folder), dtype, options);
  return {taken.begin(), taken.end()};
}

void save_tensors(at::TensorList tensors, const std::vector<std::string>& names, const std::vector<std::string>& types,
                  const std::string& folder, const std::string& format, const std::string& source, bool overwrite,
                  const measure::Nodes& nodes, const std::optional<std::vector<std::string>>& node_names) {
  TORCH_CHECK(!folder.empty(), "[fp8::save] folder: expected a path, found \"\"");
  const auto model = model_to_save("save", tensors, names, types, format);
  SaveOptions options;
  options.source = source;
  options.overwrite = overwrite;
  save(model.tensors, model.modules, measure::nodes_of("save", nodes, node_names), folder, format, options);
}

std::tuple<std::string, std::string> config_of_tensors(at::TensorList tensors, const std::vector<std::string>& names,
                                                       const std::vector<std::string>& types, const std::string& format,
                                                       const std::string& source, const measure::Nodes& nodes,
                                                       const std::optional<std::vector<std::string>>& node_names) {
  const auto model = model_to_save("quantization_config", tensors, names, types, format);
  const auto ops = measure::nodes_of("quantization_config", nodes, node_names);
  const auto [config, sidecar] = quantization_config(model.tensors, model.modules, ops, format, source);
  return {config.dump(), sidecar.dump()};
}

std::vector<std::string> type_names() {
  std::vector<std::string> names;
  for (const auto& type : configs::module_types()) names.emplace_back(type.name);
  return names;
}

std::string weights_of_described(const std::string& modules, const std::string& allowlist) {
  return weights_of_model(io::parse_json(modules, "modules"), io::parse_json(allowlist, "allowlist")).dump();
}

std::vector<std::string> config_problems(const std::string& config, const std::string& name) {
  return configs::quant_config_problems(io::parse_json(config, name), name, measure::parse_options());
}

/// An operator of rows_of_model.h.
template <auto function, class... More>
auto with_rows(at::TensorList state, const std::vector<std::string>& names, const std::vector<std::string>& transposed,
               at::TensorList given, at::TensorList numbers, const std::vector<std::string>& keys, More... more) {
  return function({state, names, transposed, given, numbers, keys}, more...);
}

std::string report_of_loaded(at::TensorList weights, const std::vector<std::string>& modules,
                             const std::vector<std::string>& types) {
  ConversionReport report;
  for (const auto& m : measure::model_of("report_of", weights, modules, types)) {
    const Fp8Handler* handler = fp8_handler(m.weight);
    if (handler == nullptr) {
      report.skipped.push_back({m.name, "in high precision in the checkpoint"});
      continue;
    }
    const std::int64_t count = m.weight.numel();
    const auto bytes_before = count * static_cast<std::int64_t>(c10::elementSize(handler->original_dtype()));
    report.converted.push_back({m.name, m.type, handler->describe(), bytes_before, count});
  }
  return to_json(report).dump();
}

#define FP8_ROWS "Tensor[] state, str[] names, str[] transposed, Tensor[] given, Tensor[] numbers, str[] keys"
#define FP8_NODES ", __torch__.torch.classes.fp8.Node[]? nodes=None, str[]? node_names=None"
FP8_LIBRARY_FRAGMENT(fp8, m) {
  // TorchScript neither moves such a call nor leaves it out. With (a!) instead it leaves it out where the list is made
  // for the call.
  const auto def = [&m](const char* schema, auto function) {
    m.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE), std::move(function));
  };
  def("convert(Tensor[] weights, str[] modules, str[] types, str options=\"{}\"" FP8_NODES ") -> str",
      &convert_tensors);
  m.def("report_of(Tensor[] weights, str[] modules, str[] types) -> str", &report_of_loaded);
  m.def("tag(Tensor(a!) codes, str module, Tensor scale_inv, str scheme=\"{}\") -> ()", &tag_codes);
  m.def("scale_inv(Tensor weight) -> Tensor", &scale_inv_of);
  m.def("scheme_of(Tensor weight) -> str", &scheme_of);
  m.def("number_rows(Tensor[] weights) -> Tensor[]", &number_rows);
  m.def("score_logits(Tensor logits, Tensor ids, Tensor? reference=None) -> float[]", &score_logits);
  m.def("packed(Tensor tensor) -> Tensor", &packed);
  m.def("unpacked(Tensor bytes) -> Tensor", &unpacked);
  m.def("scales_beside(Tensor weight) -> Tensor[]", &scales_beside);
  m.def("with_scales(Tensor codes, Tensor like, Tensor? scale, Tensor? input_scale) -> Tensor", &with_scales);
  def("quantization_config(Tensor[] tensors, str[] names, str[] types, str "
      "format=\"compressed-tensors\", str source=\"\"" FP8_NODES ") -> (str, str)",
      &config_of_tensors);
  m.def("module_types() -> str[]", &type_names);
  m.def("weights_of_model(str modules, str allowlist=\"null\") -> str", &weights_of_described);
  m.def("require_linears(str[] entries, str[] linears, str[] in_fp8, str[] stored) -> ()", &require_linears);
  m.def("forms() -> str[]", [] { return form_names(std::not_fn(&CheckpointForm::needs_mxfp4)); });
  m.def("config_problems(str config, str name) -> str[]", &config_problems);
  def("load(Tensor[] weights, str[] modules, str[] types, str folder, ScalarType? compute=None, str? "
      "dialect=None) -> str[]",
      &load_tensors);
  m.def("cut_weights(" FP8_ROWS ") -> str[]", &with_rows<&cut_weights>);
  m.def("written_by_rows(" FP8_ROWS ", str[] types, Tensor[] values) -> (Tensor[], str[])",
        &with_rows<&written_by_rows, const std::vector<std::string>&, at::TensorList>);
  m.def(torch::schema("load_by_rows(" FP8_ROWS ", str folder) -> str[]", c10::AliasAnalysisKind::CONSERVATIVE),
        &with_rows<&load_by_rows, const std::string&>);
  def("load_others(Tensor[] state, str[] names, str folder, str[] done) -> ()", &load_others);
  def("save(Tensor[] tensors, str[] names, str[] types, str folder, str format=\"compressed-tensors\", "
      "str source=\"\", bool overwrite=False" FP8_NODES ") -> ()",
      &save_tensors);
}
#undef FP8_NODES
#undef FP8_ROWS

}  // namespace fp8::quant
