// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/generate_options.h"

#include <memory>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

void check_prompts(const GenerateOptions& o) {
  const int given = o.prompt.has_value() + !o.prompt_file.empty() + !o.prompts.empty();
  if (given > 1) throw UsageError("--prompt, --prompt-file and --prompts: found several, allowed: one of them");
  if (given == 0) throw UsageError("--prompt is required, or --prompt-file, or --prompts");
  if (!o.prompts.empty() && o.prompts.extension() != ".txt" && o.prompts.extension() != ".jsonl")
    throw UsageError("--prompts: found '" + o.prompts.string() + "', allowed: .txt, .jsonl");
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
  options.path("--prompts", values->prompts,
               "File of texts to continue: .jsonl (field text), or .txt (between them "
               "<|endoftext|>)");
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
