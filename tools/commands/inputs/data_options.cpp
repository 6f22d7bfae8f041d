// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/data_options.h"

#include <string>
#include <vector>

#include "fp8/tools/commands/inputs/data_files.h"

namespace fp8::commands {

void add_data_option(Options& options, const std::string& name, text::DataFiles& target, const std::string& help,
                     Options::Need need, bool several) {
  const auto set = [&target, name](const std::vector<std::string>& names) { target = data_files(name, names); };
  const std::string more = several ? "several, or a pattern in quotes" : "given again for more, or a pattern in quotes";
  options.files(name, set, help + "; - is standard input; " + more, need, several);
}

void add_data_options(Options& options, DataOptions& target, Options::Need need, bool several) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  add_data_option(
      options, "--data", target.data,
      ".txt, .md, .jsonl, .json (text, messages, prompt and completion, instruction and output) or .safetensors "
      "(input_ids); for models that answer a source text (T5, BART) rows with input and target, or input_ids and "
      "labels",
      need, several);
  options.integer("--samples", target.samples, 1, kMany, "Chunks to use",
                  target.samples < 0    ? "all"
                  : target.samples == 0 ? "512, of large models fewer"
                                        : "");
  options.integer("--seq-len", target.seq_len, 2, 1 << 20,
                  "Tokens per chunk; of an input and of a target, whose tokens beyond it are cut",
                  target.seq_len == 0 ? "2048, or all the model takes" : "");
  options.integer("--skip", target.skip, 0, kMany, "Chunks to pass over first");
  options.integer("--batch", target.batch, 1, 65536, "Chunks per forward",
                  target.batch == 0 ? "8, of long chunks fewer" : "");
}

void take_built_in_text(DataOptions& target, const Context& context) {
  target.data = {text::kBuiltInText};
  context.warn(
      "no --data: taking the built-in text (160 kB of the King James Bible); texts like those that the model "
      "will see are better");
}

std::filesystem::path one_file(const text::DataFiles& files) {
  if (files.size() != 1)
    throw UsageError("--data: found " + std::to_string(files.size()) + " files, allowed: one, .safetensors or .wav");
  return files[0];
}

}  // namespace fp8::commands
