// SPDX-License-Identifier: Apache-2.0
// The options of the commands that run a model: evaluate, generate, embed, run and measure. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/commands/work/process.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {

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

struct SentenceFiles {
  Pooling pooling = Pooling::mean;
  bool normalize = false;
  std::int64_t length = 0;  ///< of the longest text that is seen whole, in tokens
  std::string prompt = {};
};

/// hidden, context: of the model. Without files: the mean of texts of up to `context` tokens. Throws io::Error.
SentenceFiles read_sentence_files(const std::filesystem::path& folder, std::int64_t hidden, std::int64_t context);

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
