// SPDX-License-Identifier: Apache-2.0
// What commands that run a model share: the model, its chunks of token ids (samples.h: what it sees of them).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/models/load.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

/// The model on the context's device and in its dtype, with warnings about tensors nobody takes and what other readers
/// would misread.
models::LoadedModel load_language_model(const std::filesystem::path& folder, const Context& context,
                                        models::AttentionKind attention = models::AttentionKind::fused,
                                        bool allow_nonfinite = false);

/// The chunks, checked against the model: at least 2 tokens each, at most max_position_embeddings, ids within the
/// vocabulary.
text::Chunks load_chunks_for(const DataOptions& options, const std::filesystem::path& model,
                             const models::ModelShape& shape);

/// Of all parameters and buffers, in their order.
std::string weights_checksum(const torch::nn::Module& network);

/// What stands in front of the answers of such a model. Throws io::Error if its configs don't say.
std::int64_t start_of_answers(const std::filesystem::path& folder, const models::ModelShape& shape);

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

  /// The next forward sees these samples.
  void begin_samples(std::int64_t first, std::int64_t count);
  /// Writes the measurements, if that is what the config asked for, and warns about NaN and Inf.
  void finish();

 private:
  const Context& context_;
  std::shared_ptr<measure::CalibrationSession> session_;
  std::optional<KeepsWork> keeps_;  ///< from the first samples that are kept to their files
};

/// One warning for each NaN or Inf that calibration met (the first few, then their number). first_sample: the session's
/// first, of all.
void warn_non_finite(const measure::CalibrationSession& session, const Context& context, std::int64_t first_sample = 0);

// --kv-cache (input_options.h) applied to a model.

/// Puts the model's key-value caches in the precision asked for; options: as check_kv_cache_options() lets pass. Throws
/// io::Error if there are no scales (the checkpoint has none and no measurements are given), or they are of another
/// model.
void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& options, const Context& context);

/// What the caches hold now.
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
