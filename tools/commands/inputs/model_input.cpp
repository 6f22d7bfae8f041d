// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/model_input.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <optional>

#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/cli/torch_scope.h"

namespace fp8::commands {

models::LoadedModel load_language_model(const std::filesystem::path& folder, const Context& context,
                                        models::AttentionKind attention, bool allow_nonfinite) {
  quant::require_model_folder(folder);
  auto loaded = models::load_model(folder, {.dtype = compute_dtype(context),
                                            .device = resolve_device(context),
                                            .attention = attention,
                                            .dialect = context.dialect,
                                            .allow_nonfinite = allow_nonfinite});
  for (const auto& warning : loaded.warnings) context.warn(folder.string() + ": " + warning);
  if (!loaded.unused.empty())
    context.warn(fmt::format("{}: {} tensors are not used, the first is '{}'", folder.string(), loaded.unused.size(),
                             loaded.unused[0]));
  return loaded;
}

text::Chunks load_chunks_for(const DataOptions& options, const std::filesystem::path& model,
                             const models::ModelShape& shape) {
  std::optional<text::Tokenizer> tokenizer;
  if (text::data_kind(options.data) != text::DataKind::tensors) tokenizer.emplace(model);
  auto chunks =
      text::load_chunks(options.data, tokenizer ? &*tokenizer : nullptr,
                        {options.seq_len, options.samples, options.skip, options.shorter, check_interrupted}, model);
  const auto name = text::data_name(options.data);
  if (chunks.length < 2)
    throw io::Error(name + ": found chunks of " + std::to_string(chunks.length) + " token, allowed: 2 or more");
  if (chunks.length > shape.context)
    throw io::Error(fmt::format("{}: chunks of {} tokens (--seq-len), allowed: up to max_position_embeddings {}", name,
                                chunks.length, shape.context));
  for (const auto id : chunks.ids)
    if (id < 0 || id >= shape.vocab)
      throw io::Error(fmt::format("{}: found token id {}, allowed: 0 to {} (vocab_size)", name, id, shape.vocab - 1));
  return chunks;
}

std::string weights_checksum(const torch::nn::Module& network) {
  io::Checksum sum;
  for (const auto& tensors : {network.parameters(), network.buffers()}) {
    for (const auto& tensor : tensors) {
      if (!tensor.defined()) continue;
      const at::Tensor here = runtime::cpu_alias(tensor.detach()).contiguous();
      sum.update(here.const_data_ptr(), here.nbytes());
    }
  }
  return io::checksum_text(sum.value());
}

std::int64_t start_of_answers(const std::filesystem::path& folder, const models::ModelShape& shape) {
  if (!shape.start)
    throw io::Error((folder / io::kConfigFile).string() +
                    ": key 'decoder_start_token_id': missing, allowed: the id that answers begin with (also in "
                    "generation_config.json, or bos_token_id)");
  return *shape.start;
}

}  // namespace fp8::commands
