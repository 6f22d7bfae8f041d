// SPDX-License-Identifier: Apache-2.0
// --load-best: the weights of OUT are those of the checkpoint of lowest eval_loss.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "fp8/runtime/trainer/trainer_callback.h"

namespace fp8::commands {

/// The first that keeps the best; null: none does.
std::shared_ptr<const trainer::ModelCheckpoint> best_of(
    const std::vector<std::shared_ptr<trainer::TrainerCallback>>& callbacks);

/// Replaces the weights in `out` by those of `checkpoint`, a folder of the same run with the same files. Nothing if
/// that is empty, for no evaluation has had a number. Throws io::Error.
void take_weights(const std::filesystem::path& checkpoint, const std::filesystem::path& out);

}  // namespace fp8::commands
