// SPDX-License-Identifier: Apache-2.0
// Measurements of several ranks (processes that each hold a part of the model) into those of fewer, and back into more.
// Works on the nodes of measurement files and, through quant/scale_file/scale_ranks.h, on those of scale files. No
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
#include <cstdint>
#include <string>
#include <vector>

#include "fp8/configs/environment.h"
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

/// What rank.index of rank.world gets of a unified file. Throws io::Error (`name` stands in front) if the experts of a
/// mixture can't be shared out evenly.
MeasurementFile expand(const MeasurementFile& file, const configs::Rank& rank, const RankOptions& options,
                       const std::string& name);

/// Several calibrations of one model into one: elementwise the largest, samples added, selections joined. Throws
/// io::Error for different modes, sizes or models.
MeasurementFile merge(const std::vector<MeasurementFile>& files, const std::vector<std::string>& names);

}  // namespace fp8::measure
