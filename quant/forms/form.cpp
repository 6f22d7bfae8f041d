// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/form.h"

#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using io::Json;

/// config.json of older compressed-tensors: {"compression_config": {..., "quantization_config": {...}}}, or the
/// latter's keys themselves.
Json from_compression_config(Json config) {
  if (!config.contains("config_groups") && config.contains("quantization_config"))
    config = Json(config["quantization_config"]);
  if (config.is_object() && !config.contains("quant_method")) config["quant_method"] = "compressed-tensors";
  return config;
}

struct SaidConfig {
  std::string key;  ///< "text_config.quantization_config"
  Json config;
};

/// All that a config.json says of a quantization: its own, and those of the parts of a composed model.
void collect_configs(const Json& object, const std::string& prefix, const fs::path& path,
                     std::vector<SaidConfig>& found) {
  for (const auto& [key, value] : object.items()) {
    if (key != "quantization_config" && key != "compression_config") {
      if (value.is_object()) collect_configs(value, prefix + key + ".", path, found);
      continue;
    }
    if (value.is_null() || (value.is_object() && value.empty())) continue;
    if (!value.is_object())
      io::fail_at(path.string(), "key '{}{}': expected an object, found {}", prefix, key, value.type_name());
    if (key[0] == 'c' && object.contains("quantization_config") && object["quantization_config"].is_object()) continue;
    found.push_back({prefix + key, key[0] == 'q' ? value : from_compression_config(value)});
  }
}

/// True if a tensor is of codes or packed numbers, or is the scale of one or of a cache.
bool holds_quantized(const io::Checkpoint& checkpoint) {
  using enum io::DType;
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    const bool whole = info.dtype == U8 || info.dtype == I8 || info.dtype == I16 || info.dtype == U16 ||
                       info.dtype == I32 || info.dtype == U32;
    const bool number = is_float(info.dtype) || info.dtype == F64 || info.dtype == I64 || info.dtype == BOOL;
    if (!number && (!whole || info.shape.size() > 1)) return true;
  }
  for (const auto& tensor : checkpoint.names())
    if (form_parts::is_cache_scale(tensor) ||
        (tensor.ends_with(".weight") && !form_parts::scales_beside(checkpoint, tensor).empty()))
      return true;
  return false;
}

/// hf_quant_config.json {"producer", "quantization": {...}} in the words of config.json.
Json from_hf_quant_config(const Json& file, const std::string& where) {
  const auto q = file.is_object() ? file.find("quantization") : file.end();
  if (!file.is_object() || q == file.end() || !q->is_object())
    io::fail_at(where, "key 'quantization': expected an object");
  Json config = *q;
  config["quant_method"] = "modelopt";
  return config;
}

/// Codes [first_row, first_row + rows) of a tensor that stands transposed, [cols, all_rows].
void read_transposed(const io::Checkpoint& checkpoint, const StoredWeight& w, std::int64_t first_row, std::int64_t rows,
                     std::uint8_t* codes) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t all = w.spec.rows, cols = w.spec.cols;
  const bool whole = 2 * rows > all;  // else only the rows' own bytes
  const std::int64_t width = whole ? all : rows, skip = whole ? first_row : 0;
  std::vector<std::uint8_t> part(static_cast<std::size_t>(width * std::min(kColumns, cols)));
  for (std::int64_t first = 0; first < cols; first += kColumns) {
    const std::int64_t columns = std::min(kColumns, cols - first);
    if (whole) {
      checkpoint.read(w.weight, part.data(), static_cast<std::uint64_t>(first * all),
                      static_cast<std::uint64_t>(columns * all));
    } else {
      for (std::int64_t c = 0; c < columns; ++c)
        checkpoint.read(w.weight, part.data() + c * rows, static_cast<std::uint64_t>((first + c) * all + first_row),
                        static_cast<std::uint64_t>(rows));
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        codes[r * cols + first + c] = part[static_cast<std::size_t>(c * width + skip + r)];
  }
}

/// True if a folder's tensors are quantized: looked at once, and only where a config says so.
class Held {
 public:
  explicit Held(const io::Checkpoint& checkpoint) : checkpoint_(&checkpoint), folder_(checkpoint.folder()) {}
  explicit Held(fs::path folder) : folder_(std::move(folder)) {}

  const fs::path& folder() const { return folder_; }
  bool codes() {
    if (!held_) held_ = look();
    return *held_;
  }

 private:
  bool look() const {
    if (checkpoint_ != nullptr) return holds_quantized(*checkpoint_);
    try {
      return holds_quantized(io::Checkpoint(folder_));
    } catch (const io::Error&) {
      return true;  // a config without weights beside it says what it says
    }
  }

  const io::Checkpoint* checkpoint_ = nullptr;
  const fs::path folder_;
  std::optional<bool> held_;
};

/// Throws io::Error where hf_quant_config.json beside codes names another algorithm than config.json. Readers take the
/// latter.
void require_same_algorithm(const SaidConfig& said, const Json& beside, const fs::path& folder) {
  const auto fail = [&](const std::string& found, const std::string& other) {
    io::fail_at((folder / io::kHfQuantConfigFile).string(),
                "found {}, key '{}' of {} says {}; remove the one that is wrong", other, said.key, io::kConfigFile,
                found);
  };
  const Json method = said.config.value("quant_method", Json());
  if (method.is_string() && !method.get_ref<const std::string&>().starts_with("modelopt"))
    fail(io::printable(method.dump()), "modelopt");
  for (const char* key : {"quant_algo", "kv_cache_quant_algo"}) {
    const Json ours = said.config.value(key, Json()), theirs = beside.value(key, Json());
    if (!ours.is_null() && !theirs.is_null() && ours != theirs)
      fail(std::string(key) + " " + io::printable(ours.dump()), io::printable(theirs.dump()));
  }
}

/// The config that the files hold, whatever the tensors are, with its key for messages. hf_quant_config.json, which no
/// reader of models in high precision opens, counts beside codes only.
SaidConfig said_config(Held& held) {
  const fs::path &folder = held.folder(), file = folder / io::kConfigFile, beside = folder / io::kHfQuantConfigFile;
  std::error_code ignored;
  std::vector<SaidConfig> found;
  if (fs::exists(file, ignored)) {
    const Json config = io::read_python_json(io::source_file(folder, io::kConfigFile));
    if (!config.is_object()) io::fail_at(file.string(), "expected an object, found {}", config.type_name());
    collect_configs(config, "", file, found);
    for (const auto& other : found)
      if (other.config != found.front().config)
        io::fail_at(file.string(), "keys '{}' and '{}' say different things; remove the one that is wrong",
                    found.front().key, other.key);
  }
  if (!fs::exists(beside, ignored) || !held.codes()) return found.empty() ? SaidConfig() : found.front();
  const Json text = io::read_json(io::source_file(folder, io::kHfQuantConfigFile));
  if (!found.empty() && !text.contains("quantization")) return found.front();  // it says nothing
  const Json config = from_hf_quant_config(text, beside.string());
  if (found.empty()) return {io::kHfQuantConfigFile, config};
  require_same_algorithm(found.front(), config, folder);
  return found.front();
}

Json quantization_config_of(Held held) {
  Json config = said_config(held).config;
  return config.is_null() || !held.codes() ? Json() : config;
}

}  // namespace

std::vector<std::string> CheckpointForm::targets(const Json&) const { return {"Linear"}; }

std::vector<std::vector<std::int64_t>> CheckpointForm::scale_shapes(const WeightSpec&) const { return {{}}; }

std::vector<io::SafetensorsWriter::Entry> CheckpointForm::entries(const WeightSpec& w, const ConfigSpec&) const {
  return form_parts::plain_entries(w, scale_shapes(w)[0]);
}

void CheckpointForm::write_scales(TensorSink& sink, const WeightSpec& w, const ConfigSpec&,
                                  const std::vector<float>& scale_inv) const {
  (w.scheme.is_mx() ? form_parts::write_e8m0 : form_parts::write_f32)(sink, w.module + ".weight_scale", scale_inv);
  if (w.scheme.is_static()) form_parts::write_f32(sink, w.module + ".input_scale", {w.scheme.input_scale_inv});
}

std::vector<io::SafetensorsWriter::Entry> CheckpointForm::kv_entries(const KvScales& kv, const ConfigSpec&) const {
  const auto [k, v] = kv_names();
  std::vector<io::SafetensorsWriter::Entry> entries = {{kv.attention + k, io::DType::F32, {}},
                                                       {kv.attention + v, io::DType::F32, {}}};
  if (!kv.q.empty()) entries.push_back({kv.attention + kQueryScale, io::DType::F32, {}});
  return entries;
}

void CheckpointForm::write_kv(TensorSink& sink, const KvScales& kv, const ConfigSpec&) const {
  const auto [k, v] = kv_names();
  form_parts::write_f32(sink, kv.attention + k, kv.k);
  form_parts::write_f32(sink, kv.attention + v, kv.v);
  if (!kv.q.empty()) form_parts::write_f32(sink, kv.attention + kQueryScale, kv.q);
}

void CheckpointForm::write_codes(TensorSink& sink, const WeightSpec& weight, const std::uint8_t* codes,
                                 std::int64_t first_row, std::int64_t rows) const {
  sink.write(weight.module + ".weight", codes, static_cast<std::uint64_t>(first_row * weight.cols),
             static_cast<std::uint64_t>(rows * weight.cols));
}

std::vector<std::pair<std::string, Json>> CheckpointForm::extra_files(const Json&) const { return {}; }

bool CheckpointForm::recognizes(const Json& config) const {
  return config.is_object() && config.value("quant_method", Json()) == quant_method();
}

std::string CheckpointForm::assume_problem() const {
  return std::string("only its config says what ") + name() + "'s codes are";
}

Json CheckpointForm::assumed_config(const AssumedWeights&) const { return nullptr; }

Json read_quantization_config(const fs::path& folder) { return quantization_config_of(Held(folder)); }

Json read_quantization_config(const io::Checkpoint& checkpoint) { return quantization_config_of(Held(checkpoint)); }

std::string leftover_config(const io::Checkpoint& checkpoint) {
  Held held(checkpoint);
  const auto [key, config] = said_config(held);
  if (config.is_null() || held.codes()) return "";
  const Json method = config.value("quant_method", Json());
  return io::message("{}{} is a leftover: every weight is in high precision; it is not used, nor carried to an output",
                     key, method.is_string() ? " (" + io::printable(method.get<std::string>()) + ")" : "");
}

std::map<std::string, WeightProblem> weight_problems(const CheckpointForm& form,
                                                     const std::vector<WeightSpec>& weights) {
  std::map<std::string, WeightProblem> problems, groups;  // groups: the first module of each that has one
  for (const auto& w : weights) {
    const std::string problem = form.weight_problem(w), group = fuse_group_of(w.module);
    if (problem.empty()) continue;
    problems[w.module] = {problem, ""};
    if (!group.empty()) groups.try_emplace(group, WeightProblem{problem, w.module});
  }
  for (const auto& w : weights)
    if (const auto group = groups.find(fuse_group_of(w.module)); group != groups.end())
      problems.emplace(w.module, group->second);
  return problems;
}

StoredCheckpoint read_stored(const io::Checkpoint& checkpoint) {
  const Json config = read_quantization_config(checkpoint);
  if (config.is_null()) {
    require_no_codes(checkpoint);
    return {};
  }
  const CheckpointForm& form = form_of_config(config, form_parts::config_place(checkpoint));
  return form.read(checkpoint, config, form_parts::read_sidecar_file(checkpoint));
}

std::vector<float> read_scale_inv(const io::Checkpoint& checkpoint, const StoredWeight& weight) {
  auto values = form_parts::read_scales(checkpoint, weight.scale, /*bytes_are_exponents=*/true);
  const auto wanted = scale_grid(weight.spec.scheme, weight.spec.rows, weight.spec.cols).size();
  if (static_cast<std::int64_t>(values.size()) != wanted)
    io::fail_at(form_parts::place(checkpoint, weight.scale), "expected {} values, found {}", wanted, values.size());
  return values;
}

void read_code_rows(const io::Checkpoint& checkpoint, const StoredWeight& weight, std::int64_t first_row,
                    std::int64_t rows, std::uint8_t* codes, bool allow_nonfinite) {
  const std::int64_t cols = weight.spec.cols;
  if (weight.transposed) {
    read_transposed(checkpoint, weight, first_row, rows, codes);
  } else {
    checkpoint.read(weight.weight, codes, static_cast<std::uint64_t>(first_row * cols),
                    static_cast<std::uint64_t>(rows * cols));
  }
  const auto& scheme = weight.spec.scheme;
  if (allow_nonfinite || rows * cols == 0 || !kernels::has_nan_code(codes, rows * cols, scheme.format, scheme.dialect))
    return;
  const NonFinite found = count_nonfinite(checkpoint, weight.weight, scheme.dialect, /*bytes_are_codes=*/true);
  io::fail_at(form_parts::place(checkpoint, weight.weight),
              "expected codes of dialect {}, found NaN codes: {} ({} takes them as they are)",
              recipes::name_of(scheme.dialect), found.text(static_cast<std::uint64_t>(weight.spec.rows * cols)),
              io::option("allow_nonfinite", "allow_nonfinite"));
}

}  // namespace fp8::quant
