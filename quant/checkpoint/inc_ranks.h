// SPDX-License-Identifier: Apache-2.0
// INC checkpoints of several ranks that share out the weights of a model (tensor parallelism), in one folder: what
// differs between ranks is stored once per rank under a name with suffix _{rank}_{world}, the rest once;
// quantization_config has "world_size". No torch here.
//
//   split by output   X.weight [K, N] -> W x [K, N/W], scales per channel and bias likewise      q, k, v, gate, up,
//                                                                                                lm_head
//   split by input    X.weight [K, N] -> W x [K/W, N], scales per channel and bias are copies    o, down
//
// Of fewer ranks: the parts are put together. Where their scales differ, the larger scale_inv is taken and the codes
// of the others are made anew: code' = cast(value(code) * scale_inv * f32(1 / larger)), one rounding more. An input's
// scale_inv is the largest.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "fp8/quant/checkpoint/stream/stream_options.h"

namespace fp8::quant::inc {

enum class Split { output, input };

/// By the usual names (is_row_parallel_name): o_proj, down_proj and their like by input, all others by output.
Split usual_split(const std::string& module);

using SplitOf = std::function<Split(const std::string& module)>;

/// How many ranks a checkpoint is of. Throws io::Error for one that is not INC's.
int ranks_of(const std::filesystem::path& in);

/// Writes the checkpoint `in` (of one rank) for `world` ranks: its fp8 modules are shared out, the rest stays whole.
/// stream: overwrite, shard_bytes, progress and stop are taken. Throws io::Error naming the tensor: a size that `world`
/// does not divide, a checkpoint that is not INC's or has ranks already.
void split_checkpoint(const std::filesystem::path& in, const std::filesystem::path& out, int world,
                      StreamOptions stream = {}, const SplitOf& split = usual_split);

/// Writes the checkpoint `in` of several ranks for `world` ranks, a smaller divisor; 1 gives an ordinary checkpoint.
/// Tensors of high precision with a suffix are put together too ([N, K] as usual). Throws io::Error naming the tensor:
/// ranks that are missing, parts that do not fit.
void unify_checkpoint(const std::filesystem::path& in, const std::filesystem::path& out, int world = 1,
                      StreamOptions stream = {}, const SplitOf& split = usual_split);

}  // namespace fp8::quant::inc
