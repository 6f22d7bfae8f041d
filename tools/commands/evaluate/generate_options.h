// SPDX-License-Identifier: Apache-2.0
// The options of `fp8 generate`. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/late.h"
#include "fp8/tools/commands/inputs/model_options.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

struct GenerateOptions {
  std::filesystem::path model;
  std::optional<std::string> prompt;  ///< of this and the next two one is given
  std::filesystem::path prompt_file;
  text::DataFiles prompts;  ///< texts or rows
  std::int64_t tokens = 128, batch = 8;
  double temperature = 0;
  models::AttentionKind attention = models::AttentionKind::fused;
  KvCacheOptions kv_cache;
  bool allow_nonfinite = false;
};

/// What the command does with options that passed its checks: generate.cpp.
extern Late<void(const GenerateOptions& options, Context& context)> generate_text;

}  // namespace fp8::commands
