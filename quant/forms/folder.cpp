// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/folder.h"

#include <system_error>

#include "fp8/quant/forms/checksums.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace fs = std::filesystem;

io::Json read_model_config(const fs::path& model, const CheckpointForm* form) {
  const fs::path path = model / io::kConfigFile;
  require_model_folder(model);
  io::Json config = io::read_python_json(io::source_file(model, io::kConfigFile));
  if (!config.is_object()) io::fail<io::Error>("{}: expected an object, found {}", path.string(), config.type_name());
  const io::Json quantization = read_quantization_config(model);
  if (!quantization.is_null() && !(form != nullptr && form->needs_mxfp4() && says_mxfp4(config))) {
    const std::string advice = advice_on_method(quantization);
    io::fail<io::Error>(
        "{}: key 'quantization_config': the model is quantized already; expected a high precision checkpoint{}",
        path.string(), advice.empty() ? "" : ": " + advice);
  }
  config.erase("quantization_config");
  return config;
}

std::uint64_t bytes_of(const io::SafetensorsWriter::Entry& e) {
  std::uint64_t n = static_cast<std::uint64_t>(io::size_of(e.dtype));
  for (auto d : e.shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

void OutputFolder::write_json(const std::string& name, const io::Json& value) {
  io::write_json(directory_.file(name), value);
}

void OutputFolder::write_text(const std::string& name, std::string_view text) {
  io::AtomicFile file(directory_.file(name), text.size());
  file.append(text);
  file.commit();
}

void OutputFolder::write_config(const fs::path& source, const io::Json& edits) {
  io::JsonEdit config = source.empty() ? io::JsonEdit("{}\n", io::kConfigFile)
                                       : io::read_json_edit(io::source_file(source.parent_path(), source.filename()));
  config.apply(edits);
  for (const char* key : {"quantization_config", "compression_config"}) config.erase_below(key);
  config.erase("compression_config");
  write_text(io::kConfigFile, config.text());
}

void OutputFolder::write_sidecar(const io::Json& value) {
  io::Json files = io::Json::object();
  auto& members = files.get_ref<io::Json::object_t&>();  // sorted already: no look-up per name
  for (const auto& [name, file] : files_below(directory_.temporary())) {
    const auto noted = sums_.find(name);
    if (name != kJournalName && name != kSidecarName)
      members.emplace_back(name, noted != sums_.end() ? noted->second : sums_of_file(directory_.temporary() / file));
  }
  write_text(kSidecarName, with_checksums(directory_.file(kSidecarName), value, std::move(files)));
}

std::vector<std::string> OutputFolder::carry_through(const fs::path& source) { return carry_files(source, directory_); }

namespace {

namespace fs = std::filesystem;

/// Weights and states of optimizers, as all frameworks and engines end their files.
constexpr std::string_view kWeightEndings[] = {
    ".safetensors", ".bin",  ".pt",     ".pth", ".ckpt",   ".h5",   ".msgpack", ".onnx",  ".onnx_data",
    ".onnx.data",   ".gguf", ".tflite", ".ot",  ".distcp", ".nemo", ".mlmodel", ".engine"};
/// Names of files that hold the model itself, or a state of its training.
constexpr std::string_view kModelStems[] = {"model",         "pytorch_model", "tf_model",  "flax_model",
                                            "consolidated",  "optimizer",     "scheduler", "rng_state",
                                            "training_args", "adapter_model"};
constexpr std::uint64_t kMaxText = 1 << 20;

template <class Names>
bool begins(std::string_view text, const Names& beginnings) {
  return std::ranges::any_of(beginnings, [&](std::string_view b) { return text.starts_with(b); });
}
template <class Names>
bool ends(std::string_view text, const Names& endings) {
  return std::ranges::any_of(endings, [&](std::string_view e) { return text.ends_with(e); });
}

/// Files that say how a checkpoint was quantized, and are written anew or hold no more: names with one of these words,
/// the recipe of llm-compressor, measurements. An adapter's config is nothing without its weights; readers would load
/// the model that it names in place of the one that it lies beside.
bool is_of_weights(const std::string& name) {
  if (name.find(io::kHooks) != std::string::npos || name.ends_with(".index.json")) return true;
  for (const std::string_view whole : {kSidecarName, io::kShareFile, "recipe.yaml", "adapter_config.json"})
    if (name == whole) return true;
  if (!name.ends_with(".json")) return false;
  std::string words = name;
  std::ranges::replace_if(words, [](char c) { return c == '-' || c == '.'; }, '_');
  words = "_" + words;
  return std::ranges::any_of(std::initializer_list<const char*>{"_quant_", "_quantize_", "_quantization_"},
                             [&](const char* word) { return words.find(word) != std::string::npos; });
}

/// A folder of weights in another format, steps of a training, or a checkpoint that was written here.
bool stays_whole(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name == "original" || name == "checkpoints" || name.starts_with("checkpoint-") ||
         io::is_there(folder / kSidecarName);
}

void carry_file(const fs::path& from, const fs::path& to) {
  std::uint64_t size = 0;
  const io::Descriptor in = io::open_regular(from, &size);
  io::AtomicFile file(to, size);
  std::string buffer;
  for (std::uint64_t at = 0; at < size; at += buffer.size()) {
    buffer.resize(std::min<std::uint64_t>(io::kChunkBytes, size - at));
    io::read_at(in.get(), from, at, buffer.data(), buffer.size());
    file.append(buffer);
  }
  file.commit();
}

/// The files that a reader of the output takes: its configs and its tokenizer. Without them the output would be another
/// model.
bool is_needed(std::string_view name) {
  constexpr std::string_view kNeeded[] = {".json", ".jinja",    ".model",     ".tiktoken",
                                          ".spm",  "vocab.txt", "merges.txt", ".py"};
  return std::ranges::any_of(kNeeded, [&](std::string_view ending) { return name.ends_with(ending); });
}

/// The folders of a sentence encoder's modules: what lies there is a part of the model beside the one that is read.
std::vector<std::string> module_folders(const fs::path& source) {
  constexpr const char* kModules = "modules.json";
  std::vector<std::string> folders;
  if (!fs::is_regular_file(source / kModules)) return folders;
  const io::Json modules = io::read_python_json(io::source_file(source, kModules));
  for (const auto& module : modules.is_array() ? modules : io::Json::array()) {
    const io::Json path = module.is_object() ? module.value("path", io::Json()) : io::Json();
    if (path.is_string() && !path.get_ref<const std::string&>().empty())
      folders.push_back((fs::path(path.get<std::string>()) / "").lexically_normal().string());
  }
  return folders;
}

struct Carried {
  std::vector<std::string> modules;  ///< module_folders()
  std::vector<std::string> names;    ///< of files below the source
  std::vector<std::string> left;     ///< files that should be carried and can't be: path and reason
  std::vector<std::string> weights;  ///< weights that are not carried, by kind
};

/// Takes source/name, or says why not. Throws io::Error for what is needed and lies elsewhere.
void take(const fs::path& source, const std::string& name, Carried& carried) {
  const auto leave = [&](const std::string& what) {
    carried.left.push_back(io::printable((source / name).string(), 4096) + ": " + what + ", not carried through");
  };
  if (const auto target = io::link_out_of(source, name)) {
    const bool folder = fs::is_directory(*target);
    if (folder ? begins(name + "/", carried.modules) : is_needed(name)) io::source_file(source, name);
    return leave("a link to " + io::printable(target->string(), 4096) +
                 (folder ? ", a folder" : ", which is no file of the model's folder"));
  }
  std::error_code error;
  const fs::file_status status = fs::status(source / name, error);  // follows links; a loop is an error, not a hang
  if (fs::is_regular_file(status)) return carried.names.push_back(name);
  if (fs::is_directory(status)) return;
  if (!fs::is_symlink(fs::symlink_status(source / name, error))) return leave("not a regular file");
  leave(fs::exists(status) ? "a link to something that is no file" : "a link that leads nowhere");
}

/// The text of the code and the configs that are carried, to look for names of files in.
std::string texts_of(const fs::path& source, const std::vector<std::string>& names) {
  std::string texts;
  for (const auto& name : names) {
    std::error_code error;
    if (!ends(name, std::array{".py", ".json"}) || fs::file_size(source / name, error) > kMaxText || error) continue;
    texts += io::read_file(source / name, kMaxText);
  }
  return texts;
}

void walk(const fs::path& source, const fs::path& below, Carried& carried) {
  for (const auto& entry : fs::directory_iterator(source / below)) {
    const std::string file = entry.path().filename().string(), name = (below / file).string();
    std::error_code ignored;  // of a link that loops, of which take() tells
    const bool folder = entry.is_directory(ignored);
    if (file.front() == '.' || (folder && stays_whole(entry.path())))
      carried.weights.push_back(name + (folder ? "/" : ""));
    else if (folder && !entry.is_symlink())
      walk(source, name, carried);
    else if (ends(file, kWeightEndings))
      carried.weights.push_back(name);
    else if (!is_of_weights(file) && name != io::kConfigFile)
      take(source, name, carried);
  }
}

/// In the order of their names. Of the files of weights go along those of a sentence encoder's modules, those that the
/// folder's code or configs name, and Qwen2.5-Omni's voices, which its class asks for.
Carried carried_of(const fs::path& source) {
  Carried carried;
  carried.modules = module_folders(source);
  walk(source, "", carried);
  std::vector<std::string> weights;
  std::swap(weights, carried.weights);
  const std::string texts = weights.empty() ? "" : texts_of(source, carried.names);
  for (const auto& name : weights) {
    const std::string file = fs::path(name).filename().string();
    const bool named = !begins(file, kModelStems) && ends(file, kWeightEndings) &&
                       (texts.find(file + '"') != std::string::npos || texts.find(file + '\'') != std::string::npos);
    if (file == "spk_dict.pt" || (ends(file, kWeightEndings) && begins(name, carried.modules)) || named)
      take(source, name, carried);
    else
      carried.weights.push_back(name);
  }
  for (auto* list : {&carried.names, &carried.left, &carried.weights}) std::ranges::sort(*list);
  return carried;
}

/// One line on what stays behind; empty if that is what is read alone.
std::string left_behind(const fs::path& source, const std::vector<std::string>& weights) {
  constexpr std::size_t kShown = 12;
  const bool torch = !io::is_there(source / io::kWeightsFile) && !io::is_there(source / io::kIndexFile);
  std::string line;
  std::size_t count = 0;
  for (const auto& name : weights) {
    const bool read = torch ? name.starts_with("pytorch_model") : fs::path(name).extension() == ".safetensors";
    if (read && name.find('/') == std::string::npos) continue;
    if (++count <= kShown) line += (line.empty() ? "" : ", ") + io::printable(name);
  }
  if (count > kShown) line += " and " + std::to_string(count - kShown) + " more";
  return line.empty() ? "" : "left behind (other weights, states of training, hidden files): " + line;
}

std::string text(const io::Json& object, const char* key, const std::string& name) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    io::fail<io::Error>("{}: key '{}': expected a string", name, key);
  return object[key].get<std::string>();
}

}  // namespace

io::Json identity_of_file(const fs::path& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) != 0) return nullptr;
  return {{"size", status.st_size},
          {"modified", std::to_string(status.st_mtim.tv_sec) + "." +
                           std::to_string(1'000'000'000 + status.st_mtim.tv_nsec).substr(1)}};
}

io::Json carried_identity_of(const fs::path& source) {
  io::Json files = io::Json::object();
  std::error_code error;
  if (!fs::is_directory(source, error)) return files;
  for (const auto& name : carried_of(source).names) files[name] = identity_of_file(source / name);
  return files;
}

void require_carried_unchanged(const fs::path& source, const io::Json& carried) {
  if (!carried.is_object()) return;
  for (const auto& [name, before] : carried.items()) {
    const io::Json now = identity_of_file(source / name);
    if (now == before) continue;
    // The output of this very run may go to a log there.
    if (!is_needed(name) && !now.is_null() && now["size"] > before["size"]) continue;
    io::fail(source / name, now.is_null() ? "was removed while the checkpoint was made, of which it is a part"
                                          : "changed while the checkpoint was made, of which it is a part");
  }
}

std::vector<std::string> carry_files(const fs::path& source, const io::OutputDirectory& out) {
  Carried carried = carried_of(source);
  for (const auto& name : carried.names) carry_file(source / name, out.file(name));
  if (std::string line = left_behind(source, carried.weights); !line.empty())
    carried.left.push_back(io::printable(source.string(), 4096) + ": " + line);
  return std::move(carried.left);
}

io::Json make_note() {
  io::Json out = io::Json::object();
  out["tool"] = "fp8 " FP8_VERSION;
  return out;
}

bool scheme_has_method(const Scheme& scheme) {
  return scheme.convention == Convention::inc && !scheme.is_static() && scheme.activations != ActivationScaling::none;
}

io::Json make_sidecar(const Plan& plan, const Scheme& scheme) {
  io::Json out = make_note();
  out["dialect"] = recipes::name_of(scheme.dialect);
  out["convention"] = name_of(scheme.convention);
  out["scale_method"] = plan.scale_method;
  if (scheme.least_error()) out["weight_scales"] = name_of(scheme.search);
  out["hp_dtype"] = scheme.convention == Convention::inc ? io::Json(recipes::name_of(scheme.hp)) : io::Json(nullptr);
  if (scheme_has_method(scheme)) out["activation_method"] = configs::to_json(scheme.activation_method);
  out["measurements"] = plan.measurements.empty() ? io::Json(nullptr) : io::Json(plan.measurements);
  out["skipped"] = io::Json::object();
  for (const auto& s : plan.skipped) out["skipped"][s.name] = s.reason;
  return out;
}

recipes::Dialect dialect_from_name(const std::string& found, const std::string& where) {
  for (auto dialect : {recipes::Dialect::gaudi2, recipes::Dialect::gaudi3, recipes::Dialect::ocp})
    if (found == recipes::name_of(dialect)) return dialect;
  io::fail<io::Error>("{}: found \"{}\", allowed: gaudi2, gaudi3, ocp", where, found);
}

Scheme read_sidecar(const io::Json& sidecar, const std::string& name) {
  Scheme s;
  s.dialect = dialect_from_name(text(sidecar, "dialect", name), name + ": key 'dialect'");
  const std::string convention = text(sidecar, "convention", name);
  if (convention != "own" && convention != "inc")
    io::fail<io::Error>("{}: key 'convention': found \"{}\", allowed: own, inc", name, convention);
  s.convention = convention == "own" ? Convention::own : Convention::inc;
  if (sidecar.contains("weight_scales")) {
    const auto search = parse_enum<ScaleSearch>(text(sidecar, "weight_scales", name));
    if (!search.has_value()) io::fail<io::Error>("{}: key 'weight_scales': found another than amax, mse", name);
    s.search = *search;
  }
  if (s.convention == Convention::inc) {
    const std::string hp = text(sidecar, "hp_dtype", name);
    bool known = false;
    for (auto type : {recipes::FloatType::F32, recipes::FloatType::BF16, recipes::FloatType::F16}) {
      if (hp == recipes::name_of(type)) {
        s.hp = type;
        known = true;
      }
    }
    if (!known) io::fail<io::Error>("{}: key 'hp_dtype': found \"{}\", allowed: f32, bf16, f16", name, hp);
  }
  if (sidecar.contains("activation_method"))
    s.activation_method = configs::scale_method_from_json(sidecar["activation_method"], name, "activation_method");
  return s;
}

}  // namespace fp8::quant
