// SPDX-License-Identifier: Apache-2.0
// What a written checkpoint takes over from its source byte for byte: all that a reader needs beside weights and config.json.
// No torch here.
//
//   carried      tokenizer and generation files, chat templates (chat_templates/ and additional_chat_templates/ too), processor and
//                feature extractor configs, README, LICENSE, NOTICE, *.txt, and *.py where an auto_map names remote code
//   left behind  weights of any kind (*.safetensors, *.bin, *.pth, *.gguf, onnx/), indexes, quantization configs, training state
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/runtime/io/atomic_file.h"

namespace fp8::quant {

/// Copies such files of `source` into `out`. A symbolic link to a file is read (a Hugging Face cache has nothing else). What has a
/// carried name but is no file (a dangling or looping link, a pipe) is left out and named in the warnings that are returned.
/// Throws io::Error for a file that can't be read.
std::vector<std::string> carry_files(const std::filesystem::path& source, const io::OutputDirectory& out);

}  // namespace fp8::quant
