// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/save.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/ops/common/file_dtype.h"

namespace fp8::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenizerFile = std::uint64_t{256} << 20;
constexpr const char* kCopied =
    "tokenizer.json tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt vocab.txt "
    "tokenizer.model tiktoken.model spiece.model spm.model sentencepiece.bpe.model chat_template.jinja "
    "generation_config.json";

bool is_copied(const fs::path& name) {
  return name.extension() == ".tiktoken" || std::ranges::count(io::words(kCopied), name.string()) > 0;
}

void copy_tokenizer(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  if (from.empty() || fs::equivalent(from, to, ignored)) return;
  for (const auto& entry : fs::directory_iterator(from, ignored)) {
    const fs::path name = entry.path().filename();
    if (!is_copied(name)) continue;
    io::AtomicFile file(to / name);
    file.append(io::read_file(io::source_file(from, name), kMaxTokenizerFile));
    file.commit();
  }
}

}  // namespace

void save_model(const CausalLM& model, const std::string& config, const fs::path& tokenizer, const fs::path& folder,
                at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  const io::DType stored = *runtime::ops::file_dtype(dtype);
  io::JsonEdit written(config, io::kConfigFile);
  written.set(written.contains("dtype") ? "dtype" : "torch_dtype", dtype == at::kFloat  ? "float32"
                                                                   : dtype == at::kHalf ? "float16"
                                                                                        : "bfloat16");
  for (const char* key : {"quantization_config", "compression_config"}) {  // what is left of one
    written.erase(key);
    written.erase_below(key);
  }
  io::AtomicFile config_file(folder / io::kConfigFile);
  config_file.append(written.text());
  config_file.commit();
  copy_tokenizer(tokenizer, folder);

  std::vector<io::SafetensorsWriter::Entry> entries;
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : distinct_parameters(model)) {  // a tied lm_head comes last and is left out
    const auto& value = tensors.emplace_back(model.storage_of(name).transposed ? parameter.t() : parameter);
    entries.push_back({name, stored, value.sizes().vec()});
  }
  const auto file = folder / io::kWeightsFile;
  io::SafetensorsWriter writer(file, entries);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto values = tensors[i].detach().to(at::kCPU).to(dtype).contiguous();
    if (!at::isfinite(values).all().item<bool>())
      io::fail(file, "tensor '{}' holds NaN or infinity, allowed: finite weights", entries[i].name);
    writer.write(entries[i].name, values.const_data_ptr());
  }
  writer.commit();
}

}  // namespace fp8::models
