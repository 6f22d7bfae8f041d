// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/model_source.h"

#include <fstream>

#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected = "expected a model folder";
constexpr std::string_view kWholeNumbers[] = {"gptq",       "awq",    "bitsandbytes", "hqq",    "aqlm",
                                              "quip_sharp", "eetq",   "vptq",         "spqr",   "auto-round",
                                              "higgs",      "bitnet", "quanto",       "torchao"};

/// "NAME/MODEL", the way model hubs write it.
bool is_hub_name(const std::string& text) {
  const auto part = [](std::string_view s) {
    constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return !s.empty() && s.front() != '.' && s.front() != '-' &&
           s.find_first_not_of(kLetters) == std::string_view::npos;
  };
  const auto slash = text.find('/');
  return slash != std::string::npos && part(std::string_view(text).substr(0, slash)) &&
         part(std::string_view(text).substr(slash + 1));
}

bool begins_with(const fs::path& file, std::string_view magic) {
  std::ifstream in(file, std::ios::binary);
  std::string head(magic.size(), '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  return in && head == magic;
}

constexpr const char* kGguf =
    "GGUF, whose weights llama.cpp has packed already; take the original checkpoint (safetensors) that it was made of";

[[noreturn]] void refuse_file(const fs::path& model) {
  std::error_code ignored;
  const std::string extension = model.extension().string(), name = model.string();
  if (extension == ".gguf" || (fs::is_regular_file(model, ignored) && begins_with(model, "GGUF")))
    io::fail<io::Error>("{}: {}, found {}", name, kExpected, kGguf);
  if (extension == ".safetensors" || extension == ".bin" || extension == ".json") {
    const fs::path folder = model.has_parent_path() ? model.parent_path() : fs::path(".");
    io::fail<io::Error>("{}: {}, found a file{}", name, kExpected,
                        fs::exists(folder / io::kConfigFile, ignored)
                            ? "; take its folder, " + folder.string()
                            : " without config.json beside it, which says what model it is");
  }
  if (extension == ".pt" || extension == ".pth" || extension == ".ckpt")
    io::fail<io::Error>(
        "{}: {}, found a file of Python's pickles; save the model with save_pretrained(), which writes the folder",
        name, kExpected);
  io::fail<io::Error>("{}: {}, found a file", name, kExpected);
}

/// A key of a small file that may be broken: others refuse it by name.
std::string text_in(const fs::path& file, const char* key) {
  try {
    const io::Json json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
    const auto it = json.is_object() ? json.find(key) : json.end();
    return it != json.end() && it->is_string() ? io::printable(it->get<std::string>(), 200) : "";
  } catch (const io::Error&) {
    return "";
  }
}

[[noreturn]] void refuse_adapter(const fs::path& model) {
  const std::string base = text_in(model / "adapter_config.json", "base_model_name_or_path"), folder = model.string();
  io::fail<io::Error>(
      "{}: {}, found a LoRA adapter{}; merge it first: python3 -c \"from peft import AutoPeftModelForCausalLM as M; "
      "M.from_pretrained('{}').merge_and_unload().save_pretrained('{}-merged')\"",
      folder, kExpected, base.empty() ? "" : " of " + base, folder, (model / "").parent_path().filename().string());
}

[[noreturn]] void refuse_pipeline(const fs::path& model, const std::string& class_name) {
  io::fail<io::Error>(
      "{}: {}, found a diffusers {}{}: none of its readers loads the fp8 checkpoints that are written here (its own "
      "quantizers save forms of their own); its text encoders are transformers models and can be taken alone",
      model.string(), kExpected, fs::exists(model / "model_index.json") ? "pipeline" : "model",
      class_name.empty() ? "" : " (" + class_name + ")");
}

/// The first file of a folder with this extension.
std::optional<std::string> file_with(const fs::path& model, const char* extension) {
  std::error_code ignored;
  for (fs::directory_iterator entry(model, ignored), end; !ignored && entry != end; entry.increment(ignored))
    if (entry->path().extension() == extension) return entry->path().filename().string();
  return std::nullopt;
}

}  // namespace

std::string model_name(const fs::path& model) {
  constexpr std::string_view kCache = "models--";
  fs::path folder = fs::absolute(model).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  const fs::path snapshots = folder.parent_path();
  std::string hub = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !hub.starts_with(kCache)) return folder.filename().string();
  hub.erase(0, kCache.size());
  if (const auto owner = hub.find("--"); owner != std::string::npos) hub.replace(owner, 2, "/");
  return hub;
}

void require_model_folder(const fs::path& model) {
  std::error_code ignored;
  if (!fs::exists(model, ignored))
    io::fail<io::Error>("{}: {}, found nothing{}", model.string(), kExpected, advice_on_name(model));
  if (!fs::is_directory(model, ignored)) refuse_file(model);
  if (fs::exists(model / "model_index.json", ignored))
    refuse_pipeline(model, text_in(model / "model_index.json", "_class_name"));
  if (fs::exists(model / io::kConfigFile, ignored)) {
    const std::string class_name = text_in(model / io::kConfigFile, "_class_name");  // a key of diffusers alone
    const bool diffusion = fs::exists(model / "diffusion_pytorch_model.safetensors", ignored) ||
                           fs::exists(model / "diffusion_pytorch_model.safetensors.index.json", ignored);
    if (diffusion && !class_name.empty()) refuse_pipeline(model, class_name);
    return;
  }
  if (fs::exists(model / "adapter_config.json", ignored)) refuse_adapter(model);
  if (const auto gguf = file_with(model, ".gguf"))
    io::fail<io::Error>("{}: {}, found {}", (model / *gguf).string(), kExpected, kGguf);
  io::fail<io::Error>("{}: {}, found no config.json", model.string(), kExpected);
}

std::vector<std::string> notices_beside(const io::Checkpoint& checkpoint) {
  std::vector<std::string> notices = checkpoint.notices();
  if (io::is_there(checkpoint.folder() / "adapter_config.json"))
    notices.push_back(
        "an adapter (adapter_config.json) lies beside the weights and is not used; transformers would apply it: merge "
        "it first, or take it away");
  if (std::string leftover = leftover_config(checkpoint); !leftover.empty()) notices.push_back(std::move(leftover));
  return notices;
}

std::string advice_on_name(const fs::path& model) {
  std::error_code ignored;
  if (!is_hub_name(model.string()) || fs::exists(model.parent_path(), ignored)) return "";
  const std::string folder = model.filename().string();
  return "; a model of a hub: hf download " + model.string() + " --local-dir " + folder + ", then take " + folder;
}

std::string advice_on_method(const io::Json& quantization_config) {
  if (!quantization_config.is_object()) return "";
  const auto method = quantization_config.find("quant_method");
  if (method == quantization_config.end() || !method->is_string()) return "";
  const auto& name = method->get_ref<const std::string&>();
  if (name == "mxfp4")
    // transformers 5.23: quantizers/auto.py makes one quantizer, and Mxfp4HfQuantizer has Linear modules in bf16 only;
    // vLLM 0.32: models/gpt_oss.py:1379 reads packed experts under quant_method mxfp4, whose Linear is in bf16, or
    // under quark.
    return "its experts are MXFP4 already, half of fp8's size; " + io::option("format", "format = quark", "quark") +
           " carries those of gpt_oss through and puts the rest into fp8, for vLLM; transformers has no fp8 beside "
           "MXFP4: save it in bf16 first (Mxfp4Config(dequantize=True))";
  if (std::ranges::find(kWholeNumbers, name) == std::end(kWholeNumbers)) return "";
  return "its weights are packed by " + name +
         ", which fp8 can't be made of without a second loss; take the original checkpoint (bf16, f16 or f32) that it "
         "was made of";
}

bool says_mxfp4(const io::Json& model_config) {
  const io::Json quantization = model_config.value("quantization_config", io::Json());
  return model_config.value("model_type", io::Json()) == "gpt_oss" && quantization.is_object() &&
         quantization.value("quant_method", io::Json()) == "mxfp4";
}

std::vector<std::string> mxfp4_stacks(const io::Checkpoint& checkpoint) {
  constexpr std::string_view kBlocks = "_blocks";
  std::vector<std::string> stacks;
  for (const auto& tensor : checkpoint.names()) {
    if (!tensor.ends_with(kBlocks)) continue;
    const std::string scales = tensor.substr(0, tensor.size() - kBlocks.size()) + "_scales";
    const auto& blocks = checkpoint.info(tensor);
    if (blocks.dtype != io::DType::U8 || !checkpoint.contains(scales)) continue;
    std::vector<std::int64_t> shape = checkpoint.info(scales).shape;
    shape.push_back(16);
    if (checkpoint.info(scales).dtype != io::DType::U8 || blocks.shape != shape)
      io::fail_at(form_parts::place(checkpoint, tensor),
                  "found U8 {} with scales {} {}, expected MXFP4: U8 [..., K/32, 16] with U8 [..., K/32]",
                  io::shape_text(blocks.shape), io::name_of(checkpoint.info(scales).dtype),
                  io::shape_text(checkpoint.info(scales).shape));
    stacks.push_back(tensor);
  }
  return stacks;
}

}  // namespace fp8::quant
