// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/options/evaluate_options.h"

#include <cstdint>
#include <memory>

#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/options/input_options.h"

namespace fp8::commands {

decltype(evaluate_model) evaluate_model;

Action add_evaluate(Options& options) {
  auto values = std::make_shared<EvaluateOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  options.path("--reference", values->reference, "Checkpoint folder to compare with");
  add_data_options(options, *values);
  add_attention_option(options, values->attention);
  add_kv_cache_options(options, values->kv_cache);
  add_nonfinite_option(options, values->allow_nonfinite);
  add_profile_options(options, values->profile, "forward");
  options.path(
      "--dump-logits", values->dump_logits,
      "Write the logits there: safetensors, \"logits\" F32 [chunks, seq-len, vocabulary]; of answers, one after "
      "the other, [tokens, vocabulary]");
  add_rank_timeout_option(options, values->rank_timeout);
  return [values](Context& context) {
    check_kv_cache_options(values->kv_cache, context);
    check_profile_options(values->profile);
    evaluate_model(*values, context);
  };
}

decltype(embed_texts) embed_texts;

Action add_embed(Options& options) {
  auto values = std::make_shared<EmbedOptions>();
  options.path("--model", values->model, "Checkpoint folder", Options::Need::required);
  add_data_option(
      options, "--data", values->data,
      ".txt, .md (documents), .jsonl, .json (text, messages, prompt and completion) or .safetensors (input_ids)",
      Options::Need::required);
  options.path("--out", values->out, "File to write: safetensors, \"embeddings\" F32 [texts, width]",
               Options::Need::required);
  options.choice<Pooling>(
      "--pooling", values->pooling,
      "One vector of a text: the mean of its tokens', the first's or the last's (default what "
      "1_Pooling/config.json says, else mean)",
      {{Pooling::automatic, "auto"}, {Pooling::mean, "mean"}, {Pooling::cls, "cls"}, {Pooling::last, "last"}});
  options.flag("--normalize", values->normalize, "Vectors of length 1 (default what modules.json says)");
  options.integer("--seq-len", values->seq_len, 0, 1 << 30, "Tokens of a text that are seen", "all the model takes");
  options.integer("--batch", values->batch, 1, 1024, "Texts of one length per forward");
  add_attention_option(options, values->attention);
  return [values](Context& context) { embed_texts(*values, context); };
}

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

decltype(run_script) run_script;

Action add_run(Options& options) {
  auto values = std::make_shared<RunOptions>();
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  options.path("MODEL", values->model, "TorchScript file (.pt, .jit)", Options::Need::required);
  options.path("--inputs", values->inputs, ".wav, or .safetensors with tensors named as forward's arguments",
               Options::Need::required);
  options.path("--out", values->out, "Safetensors file for what forward returns", Options::Need::required);
  options.text("--measurements", values->measurements,
               "Measured modules run in fp8: folder, prefix or file of fp8 measure");
  options.path("--config", values->config, "QUANT_CONFIG JSON instead of our own rules");
  options.list("--include", values->include, "Quantize modules whose name matches this regular expression too");
  options.list("--exclude", values->exclude,
               "Keep modules whose name matches this regular expression in high precision");
  options.path("--reference", values->reference, "Output of an earlier run to compare with");
  options.integer("--samples", values->samples, 1, kMany, "Samples (chunks of sound) to run", "all");
  options.integer("--skip", values->skip, 0, kMany, "Samples to pass over first");
  options.integer("--batch", values->batch, 1, 65536, "Samples per forward", "8, or 1 for a model that keeps state");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample");
  return [values](Context& context) { run_script(*values, context); };
}

}  // namespace fp8::commands
