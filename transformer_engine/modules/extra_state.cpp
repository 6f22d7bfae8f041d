// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/extra_state.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <cstring>
#include <set>

#include "fp8/runtime/io/base/base64.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/products/converted_weights.h"

namespace fp8::te {
namespace {

using recipes::TensorMeta;

constexpr int kVersion = 1;
constexpr std::int64_t kMaxStep = std::int64_t{1} << 53;
constexpr const char* kJsonFile = "fp8_state.json";
constexpr const char* kTensorFile = "fp8_state.safetensors";
constexpr const char* kMaster = ".master";
constexpr const char* kText = "fp8 training state";          ///< of one weight, in messages
constexpr std::string_view kForeignSuffix = "_extra_state";  ///< as other libraries name theirs in a state dict

at::Tensor tensor_of(const float* data, at::IntArrayRef sizes) {
  at::Tensor t = at::empty(sizes, at::kFloat);
  std::memcpy(t.mutable_data_ptr(), data, static_cast<std::size_t>(t.numel()) * sizeof(float));
  return t;
}

/// Rows of the history one after another: [H, n].
at::Tensor history_of(const TensorMeta& meta) {
  const Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows = meta.amax_history;
  return tensor_of(rows.data(), {rows.rows(), rows.cols()});
}

struct Part {
  const char* name;
  TensorMeta Fp8StateValues::*meta;
};
constexpr Part kParts[] = {{"forward", &Fp8StateValues::forward},
                           {"hybrid", &Fp8StateValues::hybrid},
                           {"backward", &Fp8StateValues::backward}};

const at::Tensor& find(const std::string& name, const std::map<std::string, at::Tensor>& tensors,
                       const std::string& key, int dims) {
  const auto found = tensors.find(key);
  TORCH_CHECK(found != tensors.end(), "[set_extra_state] '", name, "': expected a tensor '", key, "', found none");
  TORCH_CHECK(found->second.scalar_type() == at::kFloat && found->second.dim() == dims, "[set_extra_state] '", name,
              "': tensor '", key, "': expected Float of ", dims, " dimensions, got ", found->second.scalar_type(),
              " of sizes ", found->second.sizes());
  return found->second;
}

TensorMeta meta_from(const std::string& name, const std::string& part, const io::Json& json,
                     const std::map<std::string, at::Tensor>& tensors) {
  const at::Tensor scale = find(name, tensors, part + ".scale", 1).contiguous();
  const at::Tensor history = find(name, tensors, part + ".amax_history", 2).contiguous();
  TORCH_CHECK(history.size(1) == scale.size(0) && history.size(0) >= 1 && history.size(0) <= recipes::kMaxHistory,
              "[set_extra_state] '", name, "': ", part, ".amax_history: expected sizes [1 to ", recipes::kMaxHistory,
              ", ", scale.size(0), "], got ", history.sizes());
  TensorMeta meta(static_cast<int>(scale.size(0)), static_cast<int>(history.size(0)));
  std::memcpy(meta.scale.data(), scale.const_data_ptr(), scale.nbytes());
  meta.scale_inv = 1.0f / meta.scale;
  using Rows = Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  meta.amax_history = Eigen::Map<const Rows>(history.const_data_ptr<float>(), history.size(0), history.size(1));
  const std::string key = part + "_index";
  TORCH_CHECK(json.contains(key) && json[key].is_number_integer(), "[set_extra_state] '", name, "': key '", key,
              "': expected an integer");
  const auto index = json[key].get<std::int64_t>();
  TORCH_CHECK(index >= 0 && index < history.size(0), "[set_extra_state] '", name, "': key '", key, "': found ", index,
              ", allowed: 0 to ", history.size(0) - 1);
  meta.amax_history_index = static_cast<int>(index);
  try {
    recipes::validate(meta);
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK(false, "[set_extra_state] '", name, "': ", part, ": ", e.what());
  }
  return meta;
}

template <class T>
T value_of(const std::string& name, const io::Json& json, const char* key) {
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception& e) {
    TORCH_CHECK(false, "[set_extra_state] '", name, "': key '", key, "': ", e.what());
  }
}

std::vector<io::SafetensorsWriter::Entry> entries_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, io::DType::F32, tensor.sizes().vec()});
  return entries;
}

std::map<std::string, at::Tensor> tensors_of(const io::SafetensorsFile& file) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& info : file.tensors()) {
    if (info.dtype == io::DType::U8 && info.name.ends_with(kForeignSuffix))
      refuse_pickle(info.name, at::empty(info.shape, at::device(at::kMeta).dtype(at::kByte)));
    if (info.dtype != io::DType::F32)
      io::fail<io::Error>("{}: tensor '{}': found {}, allowed: F32", file.path().string(), info.name,
                          io::name_of(info.dtype));
    at::Tensor t = at::empty(info.shape, at::kFloat);
    file.read(info, t.mutable_data_ptr());
    tensors[info.name] = t;
  }
  return tensors;
}

void write_files(const ExtraState& extra, const std::filesystem::path& folder) {
  std::error_code made;  // what went wrong shows in the first write
  std::filesystem::create_directories(folder, made);
  io::SafetensorsWriter writer(folder / kTensorFile, entries_of(extra.tensors));
  for (const auto& [name, tensor] : extra.tensors) writer.write(name, tensor.const_data_ptr());
  writer.commit();
  io::write_json(folder / kJsonFile, extra.json);
}

ExtraState read_files(const std::filesystem::path& folder) {
  ExtraState extra;
  extra.json = io::read_json(folder / kJsonFile);
  extra.tensors = tensors_of(io::SafetensorsFile(folder / kTensorFile));
  return extra;
}

}  // namespace

std::vector<NamedState> fp8_states(const torch::nn::Module& model) {
  std::vector<NamedState> states;
  std::set<const Fp8State*> seen;
  const auto add = [&](const std::string& name, const std::shared_ptr<Fp8State>& state) {
    if (!seen.insert(state.get()).second) return;
    state->rename(name);
    states.push_back({name, state});
  };
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    if (const auto* module = dynamic_cast<const Fp8Module*>(item.value().get())) {
      const auto own = module->fp8_states();
      for (std::size_t i = 0; i < own.size(); ++i)
        add(own.size() == 1 ? item.key() : item.key() + "." + std::to_string(i), own[i]);
    }
    for (const auto& parameter : item.value()->named_parameters(/*recurse=*/false)) {
      const auto* handler = training_handler(parameter.value());
      if (handler != nullptr)
        add(parameter.key() == "weight" ? item.key()
            : item.key().empty()        ? parameter.key()
                                        : item.key() + "." + parameter.key(),
            handler->state());
    }
  }
  return states;
}

io::Json state_json(const Fp8StateValues& values) {
  io::Json json;
  json["recipe"] = values.recipe;
  json["step"] = values.step;
  json["forward_step"] = values.forward_step;
  json["backward_step"] = values.backward_step;
  json["forward_due"] = values.forward_due;
  json["backward_due"] = values.backward_due;
  for (const Part& part : kParts) json[std::string(part.name) + "_index"] = (values.*part.meta).amax_history_index;
  return json;
}

std::map<std::string, at::Tensor> state_tensors(const Fp8StateValues& values) {
  std::map<std::string, at::Tensor> tensors;
  for (const Part& part : kParts) {
    const TensorMeta& meta = values.*part.meta;
    if (meta.tensors() == 0) continue;
    tensors[std::string(part.name) + ".scale"] = tensor_of(meta.scale.data(), {meta.scale.size()});
    tensors[std::string(part.name) + ".amax_history"] = history_of(meta);
  }
  tensors["amax_seen"] = tensor_of(values.amax_seen.data(), {static_cast<std::int64_t>(values.amax_seen.size())});
  return tensors;
}

Fp8StateValues state_from(const std::string& name, const io::Json& json,
                          const std::map<std::string, at::Tensor>& tensors) {
  TORCH_CHECK(json.is_object(), "[set_extra_state] '", name, "': expected an object of fp8 state");
  Fp8StateValues values;
  values.recipe = value_of<std::string>(name, json, "recipe");
  values.step = value_of<std::int64_t>(name, json, "step");
  values.forward_step =
      json.contains("forward_step") ? value_of<std::int64_t>(name, json, "forward_step") : values.step;
  values.backward_step = value_of<std::int64_t>(name, json, "backward_step");
  values.forward_due = value_of<bool>(name, json, "forward_due");
  values.backward_due = value_of<bool>(name, json, "backward_due");
  const std::pair<const char*, std::int64_t> steps[] = {
      {"step", values.step}, {"forward_step", values.forward_step}, {"backward_step", values.backward_step}};
  for (const auto& [key, step] : steps)
    TORCH_CHECK(step >= 0 && step <= kMaxStep, "[set_extra_state] '", name, "': key '", key, "': found ", step,
                ", allowed: 0 to ", kMaxStep);
  for (const Part& part : kParts)
    if (tensors.contains(std::string(part.name) + ".scale"))
      values.*part.meta = meta_from(name, part.name, json, tensors);
  const at::Tensor seen = find(name, tensors, "amax_seen", 1).contiguous();
  values.amax_seen.assign(seen.const_data_ptr<float>(), seen.const_data_ptr<float>() + seen.numel());
  return values;
}

ExtraState get_extra_state(const torch::nn::Module& model) {
  ExtraState extra = get_extra_state(fp8_states(model));
  for (const auto& [name, weight] : fp8_weights(model)) {
    extra.json["weights"][name] = weight_json(*weight);
    if (weight->master().defined()) extra.tensors[name + kMaster] = weight->master().detach().cpu().clone();
  }
  return extra;
}

ExtraState get_extra_state(const std::vector<NamedState>& states) {
  ExtraState extra;
  extra.json["version"] = kVersion;
  extra.json["states"] = io::Json::object();
  for (const auto& [name, state] : states) {
    const Fp8StateValues values = state->values();
    extra.json["states"][name] = state_json(values);
    for (auto& [key, tensor] : state_tensors(values)) extra.tensors[name + "." + key] = tensor;
  }
  return extra;
}

ExtraStateReport set_extra_state(const torch::nn::Module& model, const ExtraState& extra) {
  const auto weights = fp8_weights(model);
  const io::Json stored = extra.json.value("weights", io::Json::object());
  TORCH_CHECK(stored.is_object(), "[set_extra_state] key 'weights': expected an object");
  std::set<std::string> known;
  for (const auto& [name, weight] : weights) {
    TORCH_CHECK(
        stored.contains(name), "[set_extra_state] parameter '", name,
        "' is held in fp8, and there is no scale for it: expected the state of a model made in quantized_model_init");
    known.insert(name);
  }
  ExtraStateReport report = set_extra_state(fp8_states(model), extra);
  for (const auto& [name, json] : stored.items())
    if (!known.contains(name)) report.unexpected.push_back(name);
  for (const auto& [name, weight] : weights) {
    const auto master = extra.tensors.find(name + kMaster);
    set_weight(name, *weight, stored.at(name), master == extra.tensors.end() ? at::Tensor() : master->second);
  }
  return report;
}

ExtraStateReport set_extra_state(const std::vector<NamedState>& states, const ExtraState& extra) {
  const auto version = extra.json.find("version");
  TORCH_CHECK(version != extra.json.end() && *version == kVersion, "[set_extra_state] key 'version': found ",
              version == extra.json.end() ? "none" : version->dump(), ", allowed: ", kVersion);
  TORCH_CHECK(extra.json.contains("states") && extra.json["states"].is_object(),
              "[set_extra_state] key 'states': expected an object");
  for (const auto& [name, tensor] : extra.tensors)
    if (name.ends_with(kForeignSuffix)) refuse_pickle(name, tensor);
  ExtraStateReport report;
  std::set<std::string> known;
  std::vector<std::pair<std::shared_ptr<Fp8State>, Fp8StateValues>> found;
  for (const auto& [name, state] : states) {
    known.insert(name);
    const auto json = extra.json["states"].find(name);
    if (json == extra.json["states"].end()) {
      report.missing.push_back(name);
      continue;
    }
    std::map<std::string, at::Tensor> own;
    for (auto it = extra.tensors.lower_bound(name + ".");
         it != extra.tensors.end() && it->first.starts_with(name + "."); ++it) {
      own[it->first.substr(name.size() + 1)] = it->second;
    }
    found.emplace_back(state, state_from(name, *json, own));
  }
  for (const auto& [name, json] : extra.json["states"].items())
    if (!known.contains(name)) report.unexpected.push_back(name);
  for (auto& [state, values] : found) state->set_values(std::move(values));
  return report;
}

void save_extra_state(const torch::nn::Module& model, const std::filesystem::path& folder) {
  write_files(get_extra_state(model), folder);
}
void save_extra_state(const std::vector<NamedState>& states, const std::filesystem::path& folder) {
  write_files(get_extra_state(states), folder);
}

ExtraStateReport load_extra_state(const torch::nn::Module& model, const std::filesystem::path& folder) {
  return set_extra_state(model, read_files(folder));
}
ExtraStateReport load_extra_state(const std::vector<NamedState>& states, const std::filesystem::path& folder) {
  return set_extra_state(states, read_files(folder));
}

std::string state_text(const Fp8State& state) {
  const Fp8StateValues values = state.values();
  const auto tensors = state_tensors(values);
  const io::SafetensorsLayout layout(entries_of(tensors), kText);
  std::string bytes = layout.head;
  bytes.resize(layout.file_bytes);
  for (const auto& [name, tensor] : tensors)
    if (tensor.numel() > 0)
      std::memcpy(bytes.data() + layout.slots.at(name).begin, tensor.const_data_ptr(), tensor.nbytes());
  return io::Json{{"version", kVersion}, {"state", state_json(values)}, {"tensors", io::to_base64(bytes)}}.dump();
}

void set_state_text(Fp8State& state, std::string_view text) {
  const io::Json json = io::parse_json(text, kText);
  const bool known = json.is_object() && json.size() == 3 && json.contains("state") && json.contains("tensors") &&
                     json["tensors"].is_string() && json.value("version", io::Json()) == kVersion;
  TORCH_CHECK(known, kText, " of '", state.name(), "': version: found ",
              io::printable((json.is_object() ? json.value("version", io::Json()) : json).dump(), 100),
              ", allowed: ", kVersion, ", with state and tensors");
  if (json["state"].is_null()) return;
  auto bytes = io::from_base64(json["tensors"].get_ref<const std::string&>());
  TORCH_CHECK(bytes.has_value(), kText, " of '", state.name(), "': key 'tensors': expected base64");
  state.set_values(state_from(state.name(), json["state"], tensors_of(io::SafetensorsFile(kText, *std::move(bytes)))));
}

io::Json weight_json(const Fp8Weight& weight) {
  const auto [scale_inv, assigned] = weight.state();
  return {{"scale_inv", scale_inv}, {"assigned", assigned}};
}

void set_weight(const std::string& name, Fp8Weight& weight, const io::Json& json, const at::Tensor& master) {
  const auto scale_inv = json.is_object() ? json.find("scale_inv") : json.end(),
             assigned = json.is_object() ? json.find("assigned") : json.end();
  const bool good = json.is_object() && scale_inv != json.end() && scale_inv->is_number() && assigned != json.end() &&
                    assigned->is_number_unsigned();
  TORCH_CHECK(good, "[set_extra_state] parameter '", name,
              "': expected its fp8 scale, {\"scale_inv\": number, \"assigned\": integer}, found ",
              io::printable(json.dump(), 100));
  weight.set_state(scale_inv->get<float>(), assigned->get<std::uint64_t>(), master);
}

void refuse_pickle(const std::string& name, const at::Tensor& bytes) {
  TORCH_CHECK(bytes.numel() == 0, "[set_extra_state] '", name, "': found ", bytes.nbytes(),
              " bytes of another library's extra state, allowed: this library's JSON and tensors (its pickle could run "
              "code; without it the scales start anew)");
}

}  // namespace fp8::te
