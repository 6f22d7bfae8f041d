// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/data_options.h"

namespace fp8::commands {

void add_data_options(Options& options, DataOptions& target, Options::Need need) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.path(
      "--data", target.data,
      ".txt, .jsonl (field text) or .safetensors (input_ids); for models that answer a source text (T5, BART) .jsonl "
      "(fields input and target) or .safetensors (input_ids and labels)",
      need);
  options.integer("--samples", target.samples, 1, kMany, "Chunks to use", target.samples < 0 ? "all" : "");
  options.integer("--seq-len", target.seq_len, 2, 1 << 20,
                  "Tokens per chunk; of an input and of a target, whose tokens beyond it are cut");
  options.integer("--skip", target.skip, 0, kMany, "Chunks to pass over first");
  options.integer("--batch", target.batch, 1, 65536, "Chunks per forward", target.batch == 0 ? "8" : "");
}

}  // namespace fp8::commands
