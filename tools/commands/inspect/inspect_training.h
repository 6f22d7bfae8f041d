// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect` of what `fp8 train` left: the course of one run, and several runs in one picture.
#pragma once
#include <filesystem>
#include <vector>

#include "fp8/tools/commands/inspect/inspect.h"

namespace fp8::commands {

/// True for a folder that holds log.jsonl, and for a .jsonl file.
bool is_training(const std::filesystem::path& path);

/// "kind": "training", "runs": one entry per path with its losses and speed. Each path is a folder of `fp8 train` or
/// its log. Throws io::Error.
Inspection inspect_training(const std::vector<std::filesystem::path>& paths);

/// The curves as one file: an SVG if its name ends in .svg, else a page with the SVG and the table. Written atomically.
void write_training_page(const std::filesystem::path& file, const std::vector<std::filesystem::path>& paths,
                         const Inspection& inspection);

}  // namespace fp8::commands
