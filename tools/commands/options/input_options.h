// SPDX-License-Identifier: Apache-2.0
// The options that say what a model sees and how it runs, and those of the commands that run one. No torch here.
#pragma once

#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/work/process.h"
#include "fp8/tools/models/base/attention_kind.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

inline constexpr std::int64_t kTokensPerForward = 2048;
/// Chunks per forward: as many as make kTokensPerForward, at most 8.
std::int64_t default_batch(std::int64_t seq_len);

/// Of a text. 0: what the command makes of what is left out.
struct DataOptions {
  text::DataFiles data;
  std::int64_t samples = -1, seq_len = 256, skip = 0, batch = 8;
  std::int64_t stride = 0;  ///< windows of a text begin so many tokens apart; 0: chunks, one behind the other
  const char* seq_len_text = "2048, or all the model takes";  ///< what 0 means, for the help
  bool shorter = false;                                       ///< a text of fewer than seq_len tokens is taken as it is

  /// Fills in a length that was left open: kTokensPerForward, or all the model takes, of which a shorter text is one.
  void fit_length(std::int64_t context) {
    shorter = seq_len == 0;
    if (shorter) seq_len = std::clamp<std::int64_t>(context, 2, kTokensPerForward);
  }
  /// The same for samples by which weights are rounded, which are short.
  DataOptions for_rounding(std::int64_t context) const {
    DataOptions fitted = *this;
    if (seq_len == 0) fitted.seq_len = std::min<std::int64_t>(512, context);
    return fitted;
  }
};

/// --data or an option like it: words behind one another.
void add_data_option(Options& options, const std::string& name, text::DataFiles& target, const std::string& help,
                     Options::Need need);

/// --data --samples --seq-len --skip --batch; the values in `target` are the defaults.
void add_data_options(Options& options, DataOptions& target, Options::Need need = Options::Need::required);

/// For a command that was given no --data; says so.
void take_built_in_text(DataOptions& target, const Context& context);

/// The file of a command that takes one. Throws UsageError for several.
std::filesystem::path one_file(const text::DataFiles& files);

/// Of the arguments of a TorchScript model.
struct ScriptDataOptions {
  std::int64_t samples = -1, skip = 0;  ///< -1: all
  std::int64_t batch = 0;               ///< samples per forward; 0: 8, and 1 for a model that keeps state
  std::int64_t chunk = 512;             ///< frames per sample of a WAV file
};

// The files that --data names. No torch here.

/// Names and patterns as files: * and ? and [ab] in a part of a path, ** for folders in folders; those of a pattern in
/// the order of their bytes. What is there by its very name is taken by that. Throws UsageError for a pattern that no
/// file fits.
text::DataFiles data_files(const std::string& option, const std::vector<std::string>& names);

// The options that say how a model runs: its attention, its key-value cache, what weights it may have. No torch here.

/// A path that names a TorchScript file and not a checkpoint folder.
bool is_script(const std::filesystem::path& model);

/// Keys and values of the model in fp8, as serving engines keep them.
struct KvCacheOptions {
  /// automatic: as the checkpoint says.
  enum class Mode : std::uint8_t { automatic, fp8, off } mode = Mode::automatic;
  std::string measurements;
  std::optional<recipes::Granularity> scales;  ///< not given: per tensor
};
FP8_ENUM_NAMES(KvCacheOptions::Mode, {automatic, "auto"}, {fp8, "fp8"}, {off, "off"});

// --profile DIR: a trace of some steps, for people and for `fp8 inspect`. No torch here.

struct ProfileOptions {
  std::filesystem::path folder;  ///< empty: nothing is recorded
  std::string schedule_text;     ///< as given; empty: the profiler's own

  /// Throws UsageError, also for a schedule without a folder.
  runtime::ProfileSchedule schedule() const;
};

/// --profile --profile-schedule. step: what a step of this command is: "optimizer step", "forward".
void add_profile_options(Options& options, ProfileOptions& target, const std::string& step);
void check_profile_options(const ProfileOptions& options);

// The options of the commands that run a model: evaluate, generate, embed, run and measure.

struct EvaluateOptions : DataOptions {
  EvaluateOptions() { seq_len = 0, batch = 0; }
  std::vector<std::filesystem::path> models;
  std::filesystem::path reference, dump_logits, html;
  std::string command;  ///< as a page shows it
  models::AttentionKind attention = models::AttentionKind::fused;
  KvCacheOptions kv_cache;
  ProfileOptions profile;
  bool allow_nonfinite = false;
  std::int64_t rank_timeout = kRankTimeout;  ///< seconds
};

/// Runs the command with options that passed its checks: evaluate.cpp.
extern Late<void(const EvaluateOptions& options, Context& context)> evaluate_model;

// The options of `fp8 generate`. No torch here.

struct GenerateOptions {
  std::filesystem::path model;
  std::optional<std::string> prompt;  ///< of this and the next two one is given
  std::filesystem::path prompt_file;
  text::DataFiles prompts;  ///< texts or rows
  std::int64_t tokens = 128, batch = 8;
  double temperature = 0;
  models::AttentionKind attention = models::AttentionKind::fused;
  KvCacheOptions kv_cache;
  bool allow_nonfinite = false;
};

/// Runs the command with options that passed its checks: generate.cpp.
extern Late<void(const GenerateOptions& options, Context& context)> generate_text;

// The files of sentence-transformers beside a model, for fp8 embed:
//
//   modules.json                        what hidden states pass: Transformer, Pooling, Normalize, in that order
//   config.json at Pooling's path       pooling_mode, or pooling_mode_cls_token and its like; include_prompt
//   sentence_bert_config.json           max_seq_length; without it model_max_length of tokenizer_config.json
//   config_sentence_transformers.json   prompts, default_prompt_name: what stands in front of each text
//
// Whatever else would change the vectors is refused by its key.

/// Which hidden states become the vector of a text; automatic: as the files say.
enum class Pooling : std::uint8_t { automatic, mean, cls, last };

// The options of `fp8 embed`. No torch here.

struct EmbedOptions {
  std::filesystem::path model, out;
  text::DataFiles data;
  Pooling pooling = Pooling::automatic;
  bool normalize = false;
  std::int64_t batch = 16, seq_len = 0;
  models::AttentionKind attention = models::AttentionKind::fused;
};

/// Runs the command: embed.cpp.
extern Late<void(const EmbedOptions& options, Context& context)> embed_texts;

// The options of `fp8 run`. No torch here.

struct RunOptions : ScriptDataOptions {
  std::filesystem::path model, inputs, out, config, reference;
  std::string measurements;
  std::vector<std::string> include, exclude;
};

/// Runs the command: run.cpp.
extern Late<void(const RunOptions& options, Context& context)> run_script;

// The options of `fp8 measure`. No torch here.

struct MeasureOptions : DataOptions {
  MeasureOptions() {
    samples = 0, seq_len = 0, batch = 0;  // measure_run.h; of a TorchScript model 128, and batches of 8 or 1
  }
  std::int64_t batch_or_default() const { return batch > 0 ? batch : 8; }
  std::filesystem::path model, out, config;
  std::vector<std::string> exclude;
  bool sized_here = false;  ///< samples were left open
  std::int64_t chunk = 512;
  models::AttentionKind attention = models::AttentionKind::fused;
  std::string memory_limit;  ///< as given; empty: what is free
  ProfileOptions profile;
  bool block_wise = false, whole = false, resume = false;
  double snapshot_seconds = 10;
  bool pipeline = false;
  std::int64_t rank_timeout = kRankTimeout;  ///< seconds, with pipeline
  ShareOptions share;
};

/// Bytes of --memory-limit; 0: none given. Throws UsageError.
std::int64_t limit_of(const MeasureOptions& options);

/// Runs the command with options that passed its checks: measure.cpp.
extern Late<void(const MeasureOptions& options, Context& context)> measure_model;

// Which decoder layers a rank of --pipeline has. No torch here.

/// The first layer of each rank, and the end: ranks + 1 numbers. Each has one layer or more, one after the other, and
/// the one with the most bytes has as few as can be. bytes: of each layer, at least as many layers as ranks; after: of
/// what the last rank has beside its layers.
std::vector<std::int64_t> layer_ranges(const std::vector<std::int64_t>& bytes, std::int64_t after, std::int64_t ranks);

}  // namespace fp8::commands
