// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/options/input_options.h"

#include <fnmatch.h>

#include <numeric>
#include <system_error>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

/// --attention fused|eager
void add_attention_option(Options& options, models::AttentionKind& target) {
  options.choice<models::AttentionKind>(
      "--attention", target,
      "One fused operation (default), or products and softmax that are measured and quantized each by itself",
      {{models::AttentionKind::fused, "fused"}, {models::AttentionKind::eager, "eager"}});
}

/// --allow-nonfinite of a command that runs a model.
void add_nonfinite_option(Options& options, bool& target) {
  options.flag(
      "--allow-nonfinite", target,
      "Take weights with NaN or Inf as they are, instead of refusing them (quantize and convert have the same option)");
}

/// --kv-cache auto|fp8|off, fp8:head, --measurements
void add_kv_cache_options(Options& options, KvCacheOptions& target) {
  const auto set = [&target](std::size_t i, const std::vector<std::string>& details) {
    target.mode = enum_names<KvCacheOptions::Mode>[i].value;
    if (details.empty()) return true;
    const auto scales = parse_enum(details[0], quant::kv_granularities());
    target.scales = scales;
    return target.mode == KvCacheOptions::Mode::fp8 && details.size() == 1 && scales.has_value();
  };
  options.detailed_choice(
      "--kv-cache", {"auto", "fp8", "off"}, set, "fp8:head, fp8:tensor",
      "Keys and values in fp8 (default auto: if the checkpoint has scales for them, as serving engines do); fp8:head "
      "with --measurements: a scale for each head, not one for keys and one for values of a layer");
  options.text("--measurements", target.measurements,
               "--kv-cache fp8: make the scales of a measurement (its folder or prefix) instead of the checkpoint's");
  options.reach("--measurements", io::Reach::beside);
  options.choice("--kv-cache-scales", target.scales, "", quant::kv_granularities());
  options.replaced("--kv-cache-scales", "--kv-cache fp8:head");
}

/// Throws UsageError for options that do not go together.
void check_kv_cache_options(const KvCacheOptions& o, const Context& context) {
  using Mode = KvCacheOptions::Mode;
  if (o.mode == Mode::fp8 && context.device != "hpu")
    io::fail<UsageError>("--kv-cache fp8: found --device {}, allowed: hpu", context.device);
  if (o.mode != Mode::fp8 && !o.measurements.empty())
    io::fail<UsageError>("--measurements: the scales of --kv-cache fp8 are made of them, found --kv-cache {}",
                         name_of(o.mode));
  if (o.scales.has_value() && o.measurements.empty())
    io::fail<UsageError>("--kv-cache fp8:{}: the scales are made of --measurements, which is not given",
                         name_of(*o.scales));
}

void check_prompts(const GenerateOptions& o) {
  const int given = o.prompt.has_value() + !o.prompt_file.empty() + !o.prompts.empty();
  if (given > 1) throw UsageError("--prompt, --prompt-file and --data: found several, allowed: one of them");
}

}  // namespace

decltype(evaluate_model) evaluate_model;

Action add_evaluate(Options& options) {
  auto values = std::make_shared<EvaluateOptions>();
  options.models(values->models, "Checkpoint folder; of several each is compared with the reference");
  options.path("--reference", values->reference, io::Reach::read, "Checkpoint folder to compare with");
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

decltype(generate_text) generate_text;

Action add_generate(Options& options) {
  auto values = std::make_shared<GenerateOptions>();
  options.model(values->model, "Checkpoint folder");
  options.text(
      "--prompt", values->prompt,
      "Text to continue: stdout shows it, then what the model adds; or the source that a model (T5, BART) answers");
  options.path("--prompt-file", values->prompt_file, io::Reach::read, "File with the text to continue");
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
  options.reach("--measurements", io::Reach::beside);
  options.path("--config", values->config, io::Reach::config, "QUANT_CONFIG JSON instead of our own rules");
  options.patterns("--include", values->include, "Quantize modules whose name matches this regular expression too");
  options.patterns("--exclude", values->exclude,
                   "Keep modules whose name matches this regular expression in high precision");
  options.path("--reference", values->reference, io::Reach::read, "Output of an earlier run to compare with");
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
  options.path("--out", values->out, io::Reach::folder, "Folder for the measurement files", Options::Need::required);
  options.patterns("--exclude", values->exclude, "Do not measure modules whose name matches this regular expression");
  options.integer("--chunk", values->chunk, 1, 1 << 24, "Frames of sound per sample of a .wav file");
  options.path("--config", values->config, io::Reach::config,
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
  options.uses_beside([values] { return divides_work(values->share); });
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
    if (largest(bytes, after, fill(bytes, ranks, most)) <= most)
      high = most;
    else
      low = most + 1;
  }
  return fill(bytes, ranks, high);
}

std::int64_t default_batch(std::int64_t seq_len) { return std::clamp<std::int64_t>(kTokensPerForward / seq_len, 1, 8); }

void add_data_option(Options& options, const std::string& name, text::DataFiles& target, const std::string& help,
                     Options::Need need) {
  const auto set = [&target, name](const std::vector<std::string>& names) { target = data_files(name, names); };
  options.files(name, set, help + "; - is standard input; several, or a pattern in quotes", need);
}

void add_data_options(Options& options, DataOptions& target, Options::Need need) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  add_data_option(
      options, "--data", target.data,
      ".txt, .md, .jsonl, .json (text, messages, prompt and completion, instruction and output) or .safetensors "
      "(input_ids); for models that answer a source text (T5, BART) rows with input and target, or input_ids and "
      "labels",
      need);
  options.integer("--samples", target.samples, 1, kMany, "Chunks to use",
                  target.samples < 0    ? "all"
                  : target.samples == 0 ? "512, of large models fewer"
                                        : "");
  options.integer("--seq-len", target.seq_len, 2, 1 << 20,
                  "Tokens per chunk; of an input and of a target, whose tokens beyond it are cut",
                  target.seq_len == 0 ? target.seq_len_text : "");
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
    io::fail<UsageError>("--data: found {} files, allowed: one, .safetensors or .wav", files.size());
  return files[0];
}

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostFiles = 100'000;

bool is_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::ranges::sort(names, {}, [](const fs::path& name) -> const std::string& { return name.native(); });
  return names;
}

/// Adds what fits the parts from `part` on below `folder`.
void find_files(const fs::path& folder, const std::vector<std::string>& parts, std::size_t part,
                std::vector<fs::path>& found) {
  std::error_code error;
  if (found.size() > kMostFiles) return;
  if (part == parts.size()) {
    if (!fs::is_directory(folder, error)) found.push_back(folder);
    return;
  }
  if (parts[part] == "**") {
    find_files(folder, parts, part + 1, found);
    for (const auto& name : entries_of(folder)) {
      const fs::path inner = folder / name;
      if (name.native()[0] != '.' && fs::is_directory(inner, error) && !fs::is_symlink(inner, error))
        find_files(inner, parts, part, found);
    }
  } else if (!is_pattern(parts[part])) {
    if (fs::exists(folder / parts[part], error)) find_files(folder / parts[part], parts, part + 1, found);
  } else {
    for (const auto& name : entries_of(folder))
      if (::fnmatch(parts[part].c_str(), name.c_str(), FNM_PERIOD) == 0)
        find_files(folder / name, parts, part + 1, found);
  }
}

}  // namespace

text::DataFiles data_files(const std::string& option, const std::vector<std::string>& names) {
  text::DataFiles files;
  std::error_code error;
  for (const auto& name : names) {
    if (!is_pattern(name) || fs::exists(name, error)) {
      files.emplace_back(name);
      continue;
    }
    const fs::path pattern(name);
    std::vector<std::string> parts;
    for (const auto& part : pattern.relative_path()) parts.push_back(part.string());
    std::vector<fs::path> found;
    find_files(pattern.root_path(), parts, 0, found);
    if (found.empty()) io::fail<UsageError>("{}: found '{}', which no file fits", option, name);
    if (found.size() > kMostFiles) io::fail<UsageError>("{}: '{}' fits more than {} files", option, name, kMostFiles);
    files.insert(files.end(), found.begin(), found.end());
  }
  if (std::ranges::count(files, fs::path(text::kStandardInput)) > 1)
    io::fail<UsageError>("{}: found - (standard input) twice, allowed: once", option);
  return files;
}

bool is_script(const std::filesystem::path& model) {
  std::error_code error;
  const std::string extension = model.extension().string();
  if (std::filesystem::is_directory(model, error)) return false;
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, extension) != names.end();
  };
  // Files of a checkpoint are refused with the way to take them, and so are names of a hub, which may have a dot.
  if (is_one_of({".safetensors", ".bin", ".gguf", ".json"})) return false;
  return std::filesystem::is_regular_file(model, error) ? model.has_extension()
                                                        : is_one_of({".pt", ".pth", ".jit", ".ts", ".torchscript"});
}

void add_profile_options(Options& options, ProfileOptions& target, const std::string& step) {
  options.path(
      "--profile", target.folder, io::Reach::folder,
      "Folder for a trace of some steps, <stage>.<time>.pt.trace.json: fp8 inspect, chrome://tracing, Perfetto "
      "and TensorBoard show it");
  options.text(
      "--profile-schedule", target.schedule_text,
      "With --profile: steps to wait, to warm up, to record, and how often (0: until the end), each step one " + step +
          "; default 1,1,3,1, or all of fewer than five");
}

runtime::ProfileSchedule ProfileOptions::schedule() const {
  constexpr const char* kAllowed =
      ", allowed: WAIT,WARMUP,ACTIVE or WAIT,WARMUP,ACTIVE,REPEAT, ACTIVE 1 or more, the others 0 or more (1,1,3)";
  const auto& fields = runtime::kScheduleFields;
  runtime::ProfileSchedule schedule{.repeat = 1};
  std::size_t count = 0;
  for (std::string_view rest = schedule_text; count <= fields.size();) {
    const auto comma = rest.find(',');
    const auto value = parse_integer(rest.substr(0, comma));
    if (!value || count == fields.size() || !fields[count].fits(*value)) break;
    schedule.*fields[count++].value = *value;
    if (comma == std::string_view::npos) {
      if (count < 3) break;
      return schedule;
    }
    rest.remove_prefix(comma + 1);
  }
  io::fail<UsageError>("--profile-schedule: found '{}'{}", schedule_text, kAllowed);
}

void check_profile_options(const ProfileOptions& o) {
  if (o.schedule_text.empty()) return;
  if (o.folder.empty()) io::fail<UsageError>("--profile-schedule: found '{}', but no --profile", o.schedule_text);
  (void)o.schedule();
}

}  // namespace fp8::commands
