// SPDX-License-Identifier: Apache-2.0
// The input of commands that run a model: the model and its samples of --data. All rows of a forward have one length,
// so that the model never sees or measures padding:
//
//   language models, encoders    chunks of one length                         logits of all columns
//   models that answer a source  [source | start, answer but its last token]  logits of the answer's columns
//   windows (DataOptions::stride)  chunks that overlap: each predicts the tokens that no window before it has
//
// The answer is shifted as in training: column i predicts its token i.
#pragma once

#include "fp8/measure/calibration/session.h"
#include "fp8/quant/model/convert.h"
#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

/// Loads the model on the context's device and in its dtype. Warns of unused tensors and of tensors that other readers
/// would misread.
models::LoadedModel load_language_model(const std::filesystem::path& folder, const Context& context,
                                        models::AttentionKind attention = models::AttentionKind::fused,
                                        bool allow_nonfinite = false);

/// Warns of unused tensors, and of tensors that other readers would misread.
void warn_of(const models::LoadedModel& loaded, const std::filesystem::path& folder, const Context& context);

/// The chunks, checked against the model: at least 2 tokens each, at most max_position_embeddings, ids within the
/// vocabulary.
text::Chunks load_chunks_for(const DataOptions& options, const std::filesystem::path& model,
                             const models::ModelShape& shape);

/// Of all parameters and buffers, in their order.
std::string weights_checksum(const torch::nn::Module& network);

/// Returns the id that begins the answers of such a model. Throws io::Error if its configs have none.
std::int64_t start_of_answers(const std::filesystem::path& folder, const models::ModelShape& shape);

/// Samples of one forward.
struct SampleBatch {
  at::Tensor ids;           ///< [B, columns] int64 on the CPU
  std::int64_t source = 0;  ///< columns in front that have no logits: CausalLM::forward()
  at::Tensor tokens;        ///< [B, 1 + predicted]: row i of the logits predicts tokens[i + 1]
  /// Rows of logits in front that are not judged: an earlier window has their tokens.
  std::int64_t seen = 0;
};

class Samples {
 public:
  explicit Samples(text::Chunks chunks);
  /// start: what stands in front of an answer.
  Samples(std::vector<text::Pair> pairs, std::int64_t start);
  /// Windows of `length` tokens of one text, each `stride` tokens behind the one before it; the last may be shorter.
  Samples(text::Chunks text, std::int64_t length, std::int64_t stride);

  std::int64_t count() const;
  /// Columns of samples in front of `sample`; column(count()): of all.
  std::int64_t column(std::int64_t sample) const { return columns_[static_cast<std::size_t>(sample)]; }
  std::int64_t longest() const;  ///< columns of one sample, at most
  /// Rows of logits of all, tokens that are predicted, and tokens of the sources.
  std::int64_t rows() const { return rows_; }
  /// Those of one sample.
  std::int64_t rows(std::int64_t sample) const;
  std::int64_t predicted(std::int64_t sample) const;
  std::int64_t predicted() const { return predicted_; }
  std::int64_t sources() const { return pairs_.empty() ? 0 : column(count()) - rows_; }
  /// [samples, a checksum of their ids]: the same of the same samples, wherever their text lies.
  io::Json fingerprint() const;

  /// Samples from `first` on that may share a forward: `most` or fewer.
  std::int64_t together(std::int64_t first, std::int64_t most) const;
  /// Samples [first, first + count) alone.
  Samples part(std::int64_t first, std::int64_t count) const;
  /// Samples [first, first + count), which may.
  SampleBatch batch(std::int64_t first, std::int64_t count) const;

 private:
  text::Chunks chunks_;
  std::vector<text::Pair> pairs_;
  std::int64_t start_ = 0, rows_ = 0, predicted_ = 0, stride_ = 0;
  std::int64_t seen_ = 0;  ///< tokens of a window that the one before it has, or the one that nothing predicts
  std::vector<std::int64_t> columns_ = {0};
};

/// Of --data, checked against the model in `folder`: at most max_position_embeddings tokens each, ids within the
/// vocabulary. Throws io::Error, also for a file of another kind than the model's task takes.
Samples load_samples(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape);

/// model.forward() of the batch on `device`, where the logits stay.
at::Tensor logits_of(models::CausalLM& model, const SampleBatch& batch, at::Device device);

// QUANT_CONFIG in the environment: the model of evaluate or generate is measured, or quantized on load, as it says.

class EnvironmentConfig {
 public:
  /// Does nothing without QUANT_CONFIG. Throws io::Error for a bad config, a model on the CPU, or one that is fp8
  /// already.
  EnvironmentConfig(models::LoadedModel& model, const Context& context);
  /// After Ctrl-C: writes what was measured so far. After an error: writes nothing.
  ~EnvironmentConfig();
  EnvironmentConfig(const EnvironmentConfig&) = delete;
  EnvironmentConfig& operator=(const EnvironmentConfig&) = delete;

  /// So many samples are to come.
  void plan_samples(std::int64_t count);
  /// The next forward sees these samples.
  void begin_samples(std::int64_t first, std::int64_t count);
  /// Writes the measurements, if that is what the config asked for, and warns about NaN and Inf.
  void finish();

 private:
  void write();

  const Context& context_;
  std::string source_;  ///< "QUANT_CONFIG quant.json"
  std::shared_ptr<measure::CalibrationSession> session_;
  std::optional<KeepsWork> keeps_;  ///< from the first samples that are kept to their files
};

/// Says what a conversion by the QUANT_CONFIG of the environment came to: how many modules run in fp8, and from which
/// files.
void note_conversion(const std::string& source, const quant::ConversionReport& report, const Context& context);

/// Says where the measurement is now that stood in the way of this one, if there was one.
void note_backup(const std::filesystem::path& backup, const Context& context);

/// One warning for each NaN or Inf that calibration met (the first few, then their number). first_sample: the session's
/// first, of all.
void warn_non_finite(const measure::CalibrationSession& session, const Context& context, std::int64_t first_sample = 0);

// --kv-cache (input_options.h) applied to a model.

/// Puts the model's key-value caches in the precision asked for; options: as check_kv_cache_options() lets pass. Throws
/// io::Error if there are no scales (the checkpoint has none and no measurements are given), or they are of another
/// model.
void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& options, const Context& context);

/// The precision of the key-value caches.
struct KvCacheInForce {
  std::string holds;   ///< "fp8", or the compute dtype: "bf16"
  std::string scales;  ///< "tensor" or "head"; empty without fp8
  std::string text() const { return scales.empty() ? holds : holds + ", " + scales + " scales"; }
};
KvCacheInForce kv_cache_of(const models::LoadedModel& model);

// The profiler that --profile asks for.

/// Null without --profile. What it has to say are warnings of `context`, which must outlive it.
std::shared_ptr<runtime::Profiler> profiler_of(const ProfileOptions& options, const Context& context);

}  // namespace fp8::commands
