// SPDX-License-Identifier: Apache-2.0
// What a written checkpoint takes over from its source byte for byte: all that a reader needs beside weights and
// config.json. No torch here.
//
//   carried      everything else, subfolders too: tokenizers, templates, processors, prompts, remote code and its data,
//                the modules of a sentence encoder with their weights
//   left behind  config.json, which is written; weights of any format and states of optimizers, but those that code or
//                configs of the folder name; indexes; quantization files; hidden files; checkpoint-*, original/ and
//                checkpoints that were written here
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

/// Copies such files of `source` into `out`. A link becomes the file that it leads to where io::source_file() follows
/// it (a hub's cache has nothing else). All other links, and what is no file (a dangling or looping link, a pipe), are
/// left out and named in the warnings that are returned, as are in one line the weights that are not read; but code, a
/// config or a tokenizer that lies elsewhere is an io::Error, as is a file that can't be read.
std::vector<std::string> carry_files(const std::filesystem::path& source, const io::OutputDirectory& out);

/// {"size": bytes, "modified": "seconds.nanoseconds"} of a file; null if there is none.
io::Json identity_of_file(const std::filesystem::path& path);
/// The files that carry_files() would copy, each with its identity_of_file(); throws as it does. Taken when a run
/// begins, so that it can tell at its end:
io::Json carried_identity_of(const std::filesystem::path& source);
/// Throws io::Error naming the first file of `carried` that is not as it was, or is gone; a log may have grown. What
/// has come since is carried like the rest.
void require_carried_unchanged(const std::filesystem::path& source, const io::Json& carried);

}  // namespace fp8::quant
