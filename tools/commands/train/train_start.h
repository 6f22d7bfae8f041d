// SPDX-License-Identifier: Apache-2.0
// What `fp8 train` of a language model begins with.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/train/train_data.h"
#include "fp8/tools/commands/train/train_options.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::commands {

struct Start {
  std::shared_ptr<models::CausalLM> model;
  std::string config_text;
  std::filesystem::path tokenizer;
};

/// The model before its first step, f32 on the device.
Start start_of(const TrainOptions& options, const Context& context);

/// The chunks of a text as batches. multiple: of chunks in an epoch.
TextBatches batches_of(const text::DataFiles& files, const TrainOptions& options, const Context& context,
                       const Start& start, std::int64_t batch, bool shuffle, std::int64_t multiple = 1);

}  // namespace fp8::commands
