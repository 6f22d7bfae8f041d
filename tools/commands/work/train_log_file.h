// SPDX-License-Identifier: Apache-2.0
// OUT/log.jsonl: one object a line for each optimizer step.
//
//   {"step": 1, "epoch": 0, "loss": 5.54, "lr": 1e-05, "grad_norm": 3.2, "tokens": 4096, "seconds": 0.31,
//    "tokens_per_second": 13213.1, "memory": {"in_use": 21000000, "max": 91000000}}
//    and, where there is something to say: "eval_loss", "loss_scale" (16-mixed), "skipped": true (loss or grad_norm is
//    null then), "fp8": {...}
//    every --logging-steps on hpu: "memory_allocated (GB)", "max_memory_allocated (GB)", "total_memory_available (GB)"
//
// tokens, seconds: of this step. memory: bytes of the device's tensors; with --device cpu {"resident_max"} of the
// process. A line is one write(2): a killed run leaves whole lines, or one cut short, which a resumed run drops.
#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// In the folder of a run: this log, and what the run was asked for.
inline constexpr char kTrainLogFile[] = "log.jsonl", kTrainSettingsFile[] = "train.json";

/// The lines of a log; a last line cut short is left out. Throws io::Error naming file and line for anything else that
/// is no such log.
std::vector<io::Json> read_log(const std::filesystem::path& path);

/// Calls found(entry, offset behind its line) for each whole line until it returns false. Throws as read_log().
void for_each_step(const std::filesystem::path& path, const std::function<bool(io::Json, std::size_t)>& found);

}  // namespace fp8::commands
