// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/options/model_options.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/fail.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

decltype(evaluate_model) evaluate_model;

Action add_evaluate(Options& options) {
  auto values = std::make_shared<EvaluateOptions>();
  options.models(values->models, "Checkpoint folder; of several each is compared with the reference");
  options.path("--reference", values->reference, "Checkpoint folder to compare with");
  add_data_options(options, *values);
  options.integer("--stride", values->stride, 1, 1 << 20,
                  "Slide a window of --seq-len tokens over the text, so many at a time, and score the tokens that no "
                  "window before it had, instead of chunks",
                  "none");
  add_attention_option(options, values->attention);
  add_kv_cache_options(options, values->kv_cache);
  add_nonfinite_option(options, values->allow_nonfinite);
  add_profile_options(options, values->profile, "forward");
  options.output(
      "--dump-logits", values->dump_logits,
      "Write the logits there: safetensors, \"logits\" F32 [chunks, seq-len, vocabulary]; of answers, one after "
      "the other, [tokens, vocabulary]");
  options.output("--html", values->html, "Write a page there that says what was lost and won, to be shown and printed");
  add_rank_timeout_option(options, values->rank_timeout);
  return [values, &options](Context& context) {
    check_kv_cache_options(values->kv_cache, context);
    check_profile_options(values->profile);
    if (!values->html.empty()) values->command = shown_command("evaluate", options);
    evaluate_model(*values, context);
  };
}

decltype(embed_texts) embed_texts;

Action add_embed(Options& options) {
  auto values = std::make_shared<EmbedOptions>();
  options.model(values->model, "Checkpoint folder");
  add_data_option(
      options, "--data", values->data,
      ".txt, .md (documents), .jsonl, .json (text, messages, prompt and completion) or .safetensors (input_ids)",
      Options::Need::required);
  options.output("--out", values->out, "File to write: safetensors, \"embeddings\" F32 [texts, width]",
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
  if (given > 1) throw UsageError("--prompt, --prompt-file and --data: found several, allowed: one of them");
}

}  // namespace

decltype(generate_text) generate_text;

Action add_generate(Options& options) {
  auto values = std::make_shared<GenerateOptions>();
  options.model(values->model, "Checkpoint folder");
  options.text(
      "--prompt", values->prompt,
      "Text to continue: stdout shows it, then what the model adds; or the source that a model (T5, BART) answers");
  options.path("--prompt-file", values->prompt_file, "File with the text to continue");
  add_data_option(options, "--data", values->prompts,
                  "Files of texts to continue: .txt, .md (between them <|endoftext|>), .jsonl, .json (text, prompt, "
                  "instruction, or messages to answer)",
                  Options::Need::optional);
  options.renamed("--prompts", "--data");
  options.one_of({"--prompt", "--prompt-file", "--data"});
  options.integer("--batch", values->batch, 1, 1024, "--data: texts continued together");
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
  options.model(values->model, "TorchScript file (.pt, .jit)");
  options.files(
      "--data", [values](const auto& names) { values->inputs = one_file(data_files("--data", names)); },
      "One file: .wav, or .safetensors with tensors named as forward's arguments", Options::Need::required);
  options.renamed("--inputs", "--data");
  options.output("--out", values->out, "Safetensors file for what forward returns", Options::Need::required);
  options.text("--measurements", values->measurements,
               "Measured modules run in fp8: folder, prefix or file of fp8 measure");
  options.path("--config", values->config, "QUANT_CONFIG JSON instead of our own rules");
  options.patterns("--include", values->include, "Quantize modules whose name matches this regular expression too");
  options.patterns("--exclude", values->exclude,
                   "Keep modules whose name matches this regular expression in high precision");
  options.path("--reference", values->reference, "Output of an earlier run to compare with");
  options.integer("--samples", values->samples, 1, kMany, "Samples (chunks of sound) to run", "all");
  options.integer("--skip", values->skip, 0, kMany, "Samples to pass over first");
  options.integer("--batch", values->batch, 1, 65536, "Samples per forward", "8, or 1 for a model that keeps state");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample");
  return [values](Context& context) { run_script(*values, context); };
}

namespace {

/// The processes are the launcher's, and each has its layers in memory until the end.
void check_pipeline(const MeasureOptions& o) {
  if (!o.pipeline) {
    if (o.rank_timeout != kRankTimeout) throw UsageError("--rank-timeout: found without --pipeline, allowed: with it");
    return;
  }
  const ShareOptions& s = o.share;
  for (const auto& [option, given] :
       {std::pair{"--block-wise", o.block_wise}, std::pair{"--whole", o.whole}, std::pair{"--resume", o.resume},
        std::pair{"--rank", s.rank >= 0 || s.world_size > 0}, std::pair{"--shares", s.shares > 0},
        std::pair{"--join", s.join}, std::pair{"--wait", s.wait.has_value()}}) {
    if (given) io::fail<UsageError>("--pipeline: excludes {}", option);
  }
  if (is_script(o.model))
    throw UsageError("--pipeline: a TorchScript model is measured whole, allowed: checkpoint folders");
  const auto process = io::launched();
  if (!process.has_value() || process->size < 2)
    throw UsageError("--pipeline: found one process, allowed: several that torchrun, srun or mpirun started");
}

/// Throws UsageError for standard input that is read twice: it can be read once, by one process.
void check_stdin(const MeasureOptions& o) {
  if (std::ranges::find(o.data, std::filesystem::path(text::kStandardInput)) == o.data.end()) return;
  const auto process = io::launched();
  const bool several = o.pipeline || o.share.world_size > 1 || o.share.shares > 0 || o.share.join ||
                       (process.has_value() && process->size > 1);
  if (o.resume || several)
    io::fail<UsageError>("--data: found - (standard input) with {}, allowed: files, which can be read again",
                         o.resume ? "--resume" : "several processes");
}

void check_measure_options(const MeasureOptions& o, const Context& context) {
  if (context.device != "hpu") io::fail<UsageError>("--device: found '{}', allowed: hpu", context.device);
  if (o.block_wise && o.whole) throw UsageError("--block-wise: excludes --whole");
  if (o.block_wise && is_script(o.model))
    throw UsageError("--block-wise: a TorchScript model is measured whole, allowed: checkpoint folders");
  if (o.data.empty() && is_script(o.model))
    throw UsageError(
        "measure: --data is required for a TorchScript model: a .safetensors or .wav file with its inputs");
  check_stdin(o);
  check_pipeline(o);
  limit_of(o);
  check_profile_options(o.profile);
}

}  // namespace

decltype(measure_model) measure_model;

std::int64_t limit_of(const MeasureOptions& o) {
  if (o.memory_limit.empty()) return 0;
  const auto bytes = parse_bytes(o.memory_limit);
  if (!bytes)
    io::fail<UsageError>(
        "--memory-limit: found '{}', allowed: a number of bytes, with or without B, kB, MB, GB, KiB, MiB, GiB",
        o.memory_limit);
  return *bytes;
}

Action add_measure(Options& options) {
  auto values = std::make_shared<MeasureOptions>();
  options.model(values->model, "Checkpoint folder, or a TorchScript file (.pt, .jit)");
  options.path("--out", values->out, "Folder for the measurement files", Options::Need::required);
  options.patterns("--exclude", values->exclude, "Do not measure modules whose name matches this regular expression");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample of a .wav file");
  options.path("--config", values->config,
               "QUANT_CONFIG JSON: observer, allowlist, blocklist, measure_exclude, dump_stats_path, ...");
  add_data_options(options, *values, Options::Need::optional);
  add_attention_option(options, values->attention);
  options.text("--memory-limit", values->memory_limit,
               "Memory that the process may take, 500MB or 2GiB: over half of what it leaves, a model is measured "
               "block-wise (default what is free)");
  options.flag("--block-wise", values->block_wise, "One decoder layer in memory at a time, whatever the model's size");
  options.flag("--whole", values->whole, "The whole model in memory, whatever its size");
  options.flag(
      "--pipeline", values->pipeline,
      "The decoder layers divided over the processes that a launcher started, each with its own in memory, for "
      "models larger than one machine; rank 0 writes what one process would write");
  add_rank_timeout_option(options, values->rank_timeout, "With --pipeline: ");
  options.flag("--resume", values->resume,
               "Go on from where a run that was killed had got, and leave a finished measurement as it is; without it "
               "the former is removed, the latter goes into a backup");
  options.number("--snapshot-seconds", values->snapshot_seconds, 0, 86400, "Time between two snapshots for --resume");
  add_rank_options(options, values->share);
  add_profile_options(options, values->profile, "forward");
  return [values](Context& context) {
    check_measure_options(*values, context);
    if (values->data.empty()) take_built_in_text(*values, context);
    measure_model(*values, context);
  };
}

namespace {

/// Gives every rank the layers that fit below `most` and leaves one layer for each rank behind it; the last takes the
/// rest, even if it does not fit.
std::vector<std::int64_t> fill(const std::vector<std::int64_t>& bytes, std::int64_t ranks, std::int64_t most) {
  const auto layers = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> starts = {0};
  std::int64_t layer = 0;
  for (std::int64_t rank = 0; rank + 1 < ranks; ++rank) {
    std::int64_t sum = bytes[static_cast<std::size_t>(layer++)];
    for (; layer < layers - (ranks - 1 - rank); ++layer) {
      sum += bytes[static_cast<std::size_t>(layer)];
      if (sum > most) break;
    }
    starts.push_back(layer);
  }
  starts.push_back(layers);
  return starts;
}

std::int64_t largest(const std::vector<std::int64_t>& bytes, std::int64_t after,
                     const std::vector<std::int64_t>& starts) {
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank + 1 < starts.size(); ++rank) {
    const auto sum = std::accumulate(bytes.begin() + starts[rank], bytes.begin() + starts[rank + 1], std::int64_t{0});
    most = std::max(most, sum + (rank + 2 == starts.size() ? after : 0));
  }
  return most;
}

}  // namespace

std::vector<std::int64_t> layer_ranges(const std::vector<std::int64_t>& bytes, std::int64_t after, std::int64_t ranks) {
  std::int64_t low = 0, high = std::accumulate(bytes.begin(), bytes.end(), after);
  while (low < high) {
    const std::int64_t most = low + (high - low) / 2;
    if (largest(bytes, after, fill(bytes, ranks, most)) <= most) {
      high = most;
    } else {
      low = most + 1;
    }
  }
  return fill(bytes, ranks, high);
}

}  // namespace fp8::commands
