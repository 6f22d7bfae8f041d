// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/generate_options.h"

#include <memory>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/inputs/data_options.h"

namespace fp8::commands {
namespace {

void check_prompts(const GenerateOptions& o) {
  const int given = o.prompt.has_value() + !o.prompt_file.empty() + !o.prompts.empty();
  if (given > 1) throw UsageError("--prompt, --prompt-file and --prompts: found several, allowed: one of them");
}

}  // namespace

decltype(generate_text) generate_text;

Action add_generate(Options& options) {
  auto values = std::make_shared<GenerateOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  options.text(
      "--prompt", values->prompt,
      "Text to continue: stdout shows it, then what the model adds; or the source that a model (T5, BART) answers");
  options.path("--prompt-file", values->prompt_file, "File with the text to continue");
  add_data_option(options, "--prompts", values->prompts,
                  "Files of texts to continue: .txt, .md (between them <|endoftext|>), .jsonl, .json (text, prompt, "
                  "instruction, or messages to answer)",
                  Options::Need::optional);
  options.one_of({"--prompt", "--prompt-file", "--prompts"});
  options.integer("--batch", values->batch, 1, 1024, "--prompts: texts continued together");
  options.integer("--tokens", values->tokens, 1, 1 << 20, "Most tokens to add");
  options.number("--temperature", values->temperature, 0, 1000,
                 "0: the most likely token; else sampling, steered by --seed");
  add_attention_option(options, values->attention);
  add_kv_cache_options(options, values->kv_cache);
  add_nonfinite_option(options, values->allow_nonfinite);
  return [values](Context& context) {
    check_prompts(*values);
    check_kv_cache_options(values->kv_cache, context);
    generate_text(*values, context);
  };
}

}  // namespace fp8::commands
