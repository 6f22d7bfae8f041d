// SPDX-License-Identifier: Apache-2.0
// Scale files as Intel Neural Compressor writes and reads them: P_hooks_{observer}_{METHOD}R.json (indent 4) and the
// same as .npz (0-dim float32 arrays), named by measure::StatsName with a method. No torch here.
//
//   {"GlobalRank": null, "LocalRank": null, "Mode": "Scale",
//    "Nodes": {module: {"inputs": [s, ...], "outputs": [s, ...],
//                       "params": {"weight": s | {"0": [out...], "1": [in...]}}}}}
//
// Every value is a scale_inv (x ~ code * value), > 0. Per channel, a weight has {0: one per output channel, 1: ones per
// input channel}, an output a list of [out]; the keys are integers in the .npz.
//
// Beside them P_..._{METHOD}R.fingerprint (ours): {"scales": digest of the values, "model", "measurement", "method"}:
// what they were made of, so that a stale file never wins unseen.
#pragma once

#include "fp8/measure/ranks/ranks.h"

namespace fp8::quant {

/// One tensor's scale_inv.
struct StoredScale {
  std::vector<float> values;  ///< one, or one per output channel
  std::vector<float> in =
      {};  ///< a weight's second list, per input channel (ones); empty: a single value or a plain list
  bool per_channel = false;  ///< a list even when it has one value

  static StoredScale of(float scale_inv) { return {{scale_inv}, {}, false}; }
  /// in_channels: of a weight; 0 for an output.
  static StoredScale channels(std::vector<float> scale_inv, std::size_t in_channels = 0) {
    return {std::move(scale_inv), std::vector<float>(in_channels, 1.0f), true};
  }
  bool operator==(const StoredScale&) const = default;
};

struct ModuleScales {
  std::string module;
  std::vector<StoredScale> inputs, outputs;
  std::optional<StoredScale> weight;
  bool operator==(const ModuleScales&) const = default;
};

struct ScaleFile {
  std::optional<std::int64_t> local_rank;  ///< -1: unified from several ranks
  std::vector<ModuleScales> modules;
  /// Values that the reader had to correct: INC stores 0 for a tensor of zeros and then divides by it; here it is read
  /// as 1.
  std::vector<std::string> warnings;

  const ModuleScales* find(const std::string& module) const;
  /// 16 hex digits over names and values.
  std::string fingerprint() const;
};

/// The sources of scales. Each is any text that changes when the thing does: measure::ModelFingerprint::digest(),
/// measure::MeasurementFile::fingerprint(), and the method with everything that decides a value (spelling, backoffs,
/// overrides per module, dialect, hp_dtype). Empty: unknown, compares equal to anything.
struct ScaleOrigin {
  std::string model, measurement, method;
};

/// Writes .json and .npz, and .fingerprint with an origin; returns their paths. A rank in the name is also the
/// LocalRank, unless the file has one. Throws io::Error; std::invalid_argument for a value that is not finite and > 0,
/// naming the module.
std::vector<std::filesystem::path> write_scales(const measure::StatsName& name, const ScaleFile& file,
                                                const std::optional<ScaleOrigin>& origin = std::nullopt);

/// The texts that write_scales() writes, to be written together with other files.
std::vector<measure::FileBytes> scale_bytes(const measure::StatsName& name, const ScaleFile& file,
                                            const std::optional<ScaleOrigin>& origin = std::nullopt);

/// Reads .json or .npz, whichever is there; both must agree. Throws io::Error naming file and module: missing,
/// malformed, negative, NaN, Inf.
ScaleFile read_scales(const measure::StatsName& name);

/// The tree of a file; `name` stands in messages.
ScaleFile scales_from_json(const io::Json& json, const std::string& name);

/// fresh: made of exactly `wanted`. stale: made of something else. foreign: of unknown sources (another tool's, or
/// replaced since).
enum class ScaleState : std::uint8_t { missing, fresh, stale, foreign };
FP8_ENUM_NAMES(ScaleState, {missing, "missing"}, {fresh, "fresh"}, {stale, "stale"}, {foreign, "foreign"});
using fp8::name_of;

/// The start of a run that needs scales.
struct ScaleChoice {
  ScaleState state = ScaleState::missing;
  std::optional<ScaleFile> scales;  ///< those to use; empty: compute them (and write them)
  std::string warning;              ///< one line naming the file; empty: nothing to tell
};

/// Looks at what is stored under `name`: fresh scales are used, stale ones are not (with a warning that says what
/// changed), foreign ones are, with a warning, and none at all if recalc_scales. Throws io::Error as read_scales().
ScaleChoice choose_scales(const measure::StatsName& name, const ScaleOrigin& wanted, bool recalc_scales);

// Scale files of several ranks into fewer and back, by the rules of measure/ranks/ranks.h. Of two scale_inv the larger
// one is safe: it overflows for neither rank's values. No torch here.

/// As measure::unify(). options.values is taken as `inputs`: a mixture's scales are [hidden states, one per expert].
ScaleFile unify(const std::vector<ScaleFile>& group, const std::vector<std::string>& names, bool experts,
                std::vector<std::string>& warnings);

/// As measure::expand().
ScaleFile expand(const ScaleFile& file, const configs::Rank& rank, const std::string& name);

/// As measure::apply_cache_ranges(); a product's output scale that was the product of its input scales stays so.
std::vector<std::string> apply_cache_ranges(ScaleFile& file);

/// The values as nodes: for tables and comparisons. Of a per-channel weight, the output channels'.
std::vector<measure::Measurement> as_nodes(const ScaleFile& file);

}  // namespace fp8::quant
