// SPDX-License-Identifier: Apache-2.0
// What a written checkpoint takes over from its source byte for byte: all that a reader needs beside weights and
// config.json. No torch here.
//
//   carried      tokenizer and generation files, chat templates (chat_templates/ and additional_chat_templates/ too),
//                processor and feature extractor configs, README, LICENSE, NOTICE, *.txt, and *.py where an auto_map
//                names remote code
//   left behind  weights of any kind (*.safetensors, *.bin, *.pth, *.gguf, onnx/), indexes, quantization configs,
//                training state
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

/// Copies such files of `source` into `out`. A link becomes the file that it leads to where io::source_file() follows
/// it (a hub's cache has nothing else). All other links, and what has a carried name but is no file (a dangling or
/// looping link, a pipe), are left out and named in the warnings that are returned; but a config or a tokenizer that
/// lies elsewhere is an io::Error, as is a file that can't be read.
std::vector<std::string> carry_files(const std::filesystem::path& source, const io::OutputDirectory& out);

/// {"size": bytes, "modified": "seconds.nanoseconds"} of a file; null if there is none.
io::Json identity_of_file(const std::filesystem::path& path);
/// The files that carry_files() would copy, each with its identity_of_file(); throws as it does. Taken when a run
/// begins, so that it can tell at its end:
io::Json carried_identity_of(const std::filesystem::path& source);
/// Throws io::Error naming the first file of `carried` that is not as it was, or is gone. What has come since is
/// carried like the rest.
void require_carried_unchanged(const std::filesystem::path& source, const io::Json& carried);

}  // namespace fp8::quant
