// SPDX-License-Identifier: Apache-2.0
// The options that say what a model sees. No torch here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/profile/profiler.h"
#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/cli/options.h"
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
  /// Tokens of a sample by which weights are rounded.
  std::int64_t calibration_length(std::int64_t context) const {
    return seq_len == 0 ? std::min<std::int64_t>(512, context) : seq_len;
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

/// --attention fused|eager
void add_attention_option(Options& options, models::AttentionKind& target);

/// --allow-nonfinite of a command that runs a model.
void add_nonfinite_option(Options& options, bool& target);

/// Keys and values of the model in fp8, as serving engines keep them.
struct KvCacheOptions {
  /// automatic: as the checkpoint says.
  enum class Mode : std::uint8_t { automatic, fp8, off } mode = Mode::automatic;
  std::string measurements;
  std::optional<quant::KvGranularity> scales;  ///< not given: per tensor
};
FP8_ENUM_NAMES(KvCacheOptions::Mode, {automatic, "auto"}, {fp8, "fp8"}, {off, "off"});

/// --kv-cache auto|fp8|off, fp8:head, --measurements
void add_kv_cache_options(Options& options, KvCacheOptions& target);

/// Throws UsageError for options that do not go together.
void check_kv_cache_options(const KvCacheOptions& options, const Context& context);

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

}  // namespace fp8::commands
