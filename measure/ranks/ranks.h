// SPDX-License-Identifier: Apache-2.0
// Measurements of several ranks (processes that each hold a part of the model) into those of fewer, and back into more.
// Works on the nodes of measurement files and, through quant/scale_file/scale_file.h, on those of scale files. No
// torch here.
//
//   unify   W ranks -> N, N divides W: rank r of N takes the ranks [r W/N, (r+1) W/N), elementwise the largest value
//   expand  1 -> N: copies
//
// With expert parallelism each rank has its own experts, so that expert values are put side by side instead:
//   expert nodes P.w13_list.i, P.w2_list.i (name with "moe")  i -> i + (ranks before in the group) * (experts per rank)
//   the node of the mixture itself                            first value: the largest;
//                                                             expert values: one rank after the other
// and expand() gives each rank its slice. A mixture's node is one that has expert nodes below it, or one without a
// weight whose last name holds "moe"; its expert values stand behind the first of its outputs (measurements) or of its
// inputs (scales).
#pragma once

#include "fp8/measure/files/measurement_file.h"

namespace fp8::measure {

enum class ExpertValues : std::uint8_t { outputs, inputs };

struct RankOptions {
  bool experts = false;  ///< unify: ranks hold different experts
  ExpertValues values = ExpertValues::outputs;
};

/// "model.layers.3.mlp.experts.moe_op.w13_list.11"
bool is_expert(const std::string& module);

/// One rank's file out of a group's, in order. `names` (one per file) stand in messages. A node that some ranks lack is
/// taken from those that have it; `warnings` gets one line about them. Throws io::Error for values of different sizes
/// and for ranks with different numbers of experts.
MeasurementFile unify(const std::vector<MeasurementFile>& group, const std::vector<std::string>& names,
                      const RankOptions& options, std::vector<std::string>& warnings);

/// The part of a unified file for rank.index of rank.world. Throws io::Error (`name` stands in front) if the experts of
/// a mixture can't be shared out evenly.
MeasurementFile expand(const MeasurementFile& file, const configs::Rank& rank, const RankOptions& options,
                       const std::string& name);

/// Several calibrations of one model into one: elementwise the largest, samples added, selections joined. Throws
/// io::Error for different modes, sizes or models.
MeasurementFile merge(const std::vector<MeasurementFile>& files, const std::vector<std::string>& names);

// Two calibrations side by side, and the step that vLLM's attention needs before its measurements are used. No torch
// here.

/// How one tensor changed: the largest change of its values.
struct Change {
  std::string module, tensor;  ///< tensor: "inputs[0]", "outputs[1]", "weight"
  float before = 0, after = 0;
  double ratio = 1;  ///< after / before; infinity from 0, 1 for 0 and 0
};

struct Difference {
  std::vector<Change> changes;              ///< of every tensor in both, the largest change first (either direction)
  std::vector<std::string> missing, added;  ///< modules or tensors in the first only, in the second only
  /// Tensors whose ratio is outside [1 / (1 + tolerance), 1 + tolerance].
  std::size_t beyond(double tolerance) const;
  bool same(double tolerance) const { return missing.empty() && added.empty() && beyond(tolerance) == 0; }
};

/// Tensors of different sizes (per channel against per tensor) are compared by their largest values.
Difference compare(const std::vector<Measurement>& before, const std::vector<Measurement>& after);

/// In vLLM, keys and values reach the attention's products from the cache, which also holds what other requests wrote:
/// their range is what the cache measured. For every P.matmul_qk, inputs[1] := P.k_cache.inputs[0]; for P.matmul_av,
/// inputs[1] := P.v_cache.inputs[0]. Where there is P.latent_cache_k instead (DeepSeek), it is both. Products without
/// such a cache beside them stay. Returns the modules that changed.
std::vector<std::string> apply_cache_ranges(std::vector<Measurement>& modules);

}  // namespace fp8::measure
