// SPDX-License-Identifier: Apache-2.0
// fp8 checkpoint folder in, the same model in another form or in high precision out. No torch here.
//
//   decoded       y = round to the type(f32(value(code) * scale_inv)), one rounding; NaN codes are refused
//   unchanged     codes and scales as they are, only spelt otherwise                               exact
//   spread        codes as they are, scale_inv repeated over smaller blocks                        exact
//   rescaled      requantize.h: for a dialect with another largest number                        exact where nothing
//                                                                                                  is rounded
//   requantized   code = RNE(clamp(f32(w * scale))) of w = f32(value * scale_inv), new scales      not exact
//
// "Exact" is promised of a module before anything is written: its dequantized weights are equal, bit for bit (decoded:
// the formula). Everything else in the folder is carried through: unquantized tensors and files byte for byte,
// config.json but for the keys concerned.
#pragma once

#include "fp8/quant/checkpoint/requantize.h"
#include "fp8/quant/checkpoint/stream/stream_options.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

struct ConvertOptions {
  std::optional<recipes::FloatType> type;   ///< to high precision; else to `form`
  std::string form = "compressed-tensors";  ///< one of form_names()

  // To a form. Empty: as the source has it, or the nearest that the form holds without rounding anything.
  std::optional<Granularity> weights;
  std::optional<Block> block;               ///< granularity block
  std::optional<bool> power_of_two;         ///< granularity block: E8M0 scales
  std::optional<recipes::Dialect> dialect;  ///< empty: the source's
  std::optional<Rescale> rescale;           ///< see rescaling()

  /// The source's form where config.json doesn't say it or weights are bytes (forms/assumed_form.h); empty elsewhere.
  std::string assume;
  /// NaN and Inf are copied and noted in fp8.json, instead of refused (nonfinite.h); a weight that has them is not
  /// requantized.
  bool allow_nonfinite = false;

  /// To a type: cast floating point tensors that are not in fp8 too (of a high precision source: always).
  bool cast_all = false;
  bool dry_run = false;
  bool join = false;     ///< make_checkpoint()'s
  StreamOptions stream;  ///< `identity` is made here
};

/// unchanged ... requantized: see above.
enum class Change : std::uint8_t { decoded, unchanged, spread, rescaled, requantized };
FP8_ENUM_NAMES(Change, {decoded, "decoded"}, {unchanged, "unchanged"}, {spread, "scales spread"},
               {rescaled, "rescaled"}, {requantized, "requantized"});

struct ConvertedWeight {
  std::string name;
  Change change = Change::unchanged;
  bool exact = true;                ///< promised
  std::string reason;               ///< why it is in high precision though fp8 was asked for
  std::optional<double> max_error;  ///< rescaled, requantized and written by this process: max |w - w'| / max |w|
};

struct ConvertReport : WriteReport {
  std::string from, to;                  ///< "compressed-tensors: E4M3 channel weights, ..."; "bf16"
  std::vector<ConvertedWeight> modules;  ///< that are fp8 in the source
  std::vector<std::string> notes;        ///< values dropped or changed, and other notices, one line each
  std::size_t kv = 0;                    ///< attention modules whose cache scales were carried
};

/// Throws io::Error or std::invalid_argument, naming file, tensor or key; nothing stands under `out` then. Among the
/// reasons: a high precision source and a form (that is quantize_checkpoint()'s work), a form that can't hold the
/// source's scales without requantization that `weights` did not ask for, static scales that the form needs and the
/// source lacks, values that leave the type's range, codes that no config explains.
ConvertReport convert_checkpoint(const std::filesystem::path& model, const std::filesystem::path& out,
                                 const ConvertOptions& options);

/// A module, or an unquantized tensor, of the source and what `out` has of it.
struct Difference {
  std::string name;
  bool exact = true;  ///< promised
  bool equal =
      true;  ///< found: dequantized values (decoded: after the rounding to the type; tensors: bytes) are the same
  double max_error = 0, rms_error = 0;  ///< max |w - w'| / max |w|, ||w - w'|| / ||w||
};

struct Verification {
  std::vector<Difference> modules;   ///< largest rms_error first
  std::size_t tensors = 0;           ///< unquantized ones, all compared
  std::vector<std::string> changed;  ///< of modules and tensors, those that were promised exact and are not
};

/// Streams both folders and compares them, with the promises that convert_checkpoint() makes for these options. Values
/// are read by another reader than convert_checkpoint()'s (reading.h), which finds weights and scales by the
/// tensors themselves. Throws io::Error for what can't be read or is missing.
Verification verify_conversion(const std::filesystem::path& model, const std::filesystem::path& out,
                               const ConvertOptions& options);

}  // namespace fp8::quant

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
