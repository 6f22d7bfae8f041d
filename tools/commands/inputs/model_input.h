// SPDX-License-Identifier: Apache-2.0
// What commands that run a model share: the model, its chunks of token ids (samples.h: what it sees of them).
#pragma once
#include <filesystem>
#include <string>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inputs/data_options.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

/// The model on the context's device and in its dtype, with warnings about tensors nobody takes and what other readers
/// would misread.
models::LoadedModel load_language_model(const std::filesystem::path& folder, const Context& context,
                                        models::AttentionKind attention = models::AttentionKind::fused,
                                        bool allow_nonfinite = false);

/// The chunks, checked against the model: at least 2 tokens each, at most max_position_embeddings, ids within the
/// vocabulary.
text::Chunks load_chunks_for(const DataOptions& options, const std::filesystem::path& model,
                             const models::ModelShape& shape);

/// Of all parameters and buffers, in their order.
std::string weights_checksum(const torch::nn::Module& network);

/// What stands in front of the answers of such a model. Throws io::Error if its configs don't say.
std::int64_t start_of_answers(const std::filesystem::path& folder, const models::ModelShape& shape);

}  // namespace fp8::commands
