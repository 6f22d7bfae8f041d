// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 embed`. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"
#include "fp8/tools/commands/evaluate/sentence_files.h"
#include "fp8/tools/commands/inputs/data_options.h"
#include "fp8/tools/commands/inputs/model_options.h"

namespace fp8::commands {

struct EmbedOptions {
  std::filesystem::path model, out;
  text::DataFiles data;
  Pooling pooling = Pooling::automatic;
  bool normalize = false;
  std::int64_t batch = 16, seq_len = 0;
  models::AttentionKind attention = models::AttentionKind::fused;
};

/// What the command does: embed.cpp.
extern Late<void(const EmbedOptions& options, Context& context)> embed_texts;

}  // namespace fp8::commands
