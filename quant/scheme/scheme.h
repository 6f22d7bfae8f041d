// SPDX-License-Identifier: Apache-2.0
// The settings that decide the numbers of one quantized module. A plain value; no torch here.
//
//   own convention   scale_inv = f32(amax / fp8_max), scale = f32(1 / scale_inv), code = RNE(clamp(f32(w * scale)))
//   inc convention   (a QUANT_CONFIG is in force) scale_inv = INC's method in hp_dtype,
//                    scale = 1 / scale_inv rounded to hp_dtype,
//                    code = the vendor's cast of the weight in hp_dtype (product rounded to hp_dtype)
#pragma once
#include <atomic>

#include "fp8/configs/module_types.h"
#include "fp8/configs/quant_config.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/recipes/recipes.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {

using fp8::name_of;

enum class Convention : std::uint8_t { own, inc };
FP8_ENUM_NAMES(Convention, {own, "own"}, {inc, "inc"});

using recipes::Granularity;

/// The granularities that a weight has; block: a scale per rectangle (Scheme::block).
inline EnumChoice<Granularity> weight_granularities() {
  return choice_of({Granularity::tensor, Granularity::channel, Granularity::block});
}

/// none: weights only. static_tensor: one measured scale. dynamic_token: a scale per row of the activation, at each
/// call. dynamic_tensor: one scale for all of it, at each call. dynamic_group: one per Scheme::block.cols neighbours in
/// a row, at each call.
enum class ActivationScaling : std::uint8_t { none, static_tensor, dynamic_token, dynamic_tensor, dynamic_group };
FP8_ENUM_NAMES(ActivationScaling, {none, "high precision"}, {static_tensor, "static tensor"},
               {dynamic_token, "dynamic token"}, {dynamic_tensor, "dynamic tensor"}, {dynamic_group, "dynamic group"});

/// fp8: products of codes. qdq: values are cast to fp8 and back, products are in high precision. fake_quant: the same
/// in training, weights keep their dtype and get gradients.
enum class Compute : std::uint8_t { fp8, qdq, fake_quant };
FP8_ENUM_NAMES(Compute, {fp8, "fp8"}, {qdq, "quantize-dequantize"}, {fake_quant, "fake quantization"});

using ScaleSearch = configs::WeightScaleSearch;

/// Settings that all tensors of a module share: the numbers' format and the arithmetic of scales.
struct Numbers {
  recipes::Format format = recipes::Format::E4M3;
  recipes::Dialect dialect = recipes::Dialect::ocp;
  Convention convention = Convention::own;
  recipes::FloatType hp = recipes::FloatType::BF16;  ///< inc only: the type that scales are computed in
  Compute compute = Compute::fp8;

  float fp8_max() const { return kernels::fp8_max(format, dialect); }
};

/// Rows (output channels) and columns of a weight that share a scale; at the right and lower edge there are fewer.
struct Block {
  std::int64_t rows = 128, cols = 128;
  std::string text() const { return std::to_string(rows) + "x" + std::to_string(cols); }
  bool operator==(const Block&) const = default;
};

/// MXFP8 (OCP Microscaling): 32 neighbours in a row share a power of two, which is stored as E8M0.
inline constexpr Block kMxBlock{1, 32};

/// The words of users for scales of weights: a granularity, or MXFP8.
enum class WeightWord : std::uint8_t { tensor, channel, block, mx };
FP8_ENUM_NAMES(WeightWord, {tensor, "tensor"}, {channel, "channel"}, {block, "block"}, {mx, "mx"});

/// Puts a word's meaning into options of a plan or a conversion, which have these three.
template <class Options>
void set_weights(Options& options, WeightWord word) {
  using enum WeightWord;
  options.weights = word == tensor ? Granularity::tensor : word == channel ? Granularity::channel : Granularity::block;
  if (word != mx) return;
  options.block = kMxBlock;
  options.power_of_two = true;
}

struct Scheme : Numbers {
  Granularity weights = Granularity::channel;  ///< not head
  ActivationScaling activations = ActivationScaling::dynamic_token;
  Block block;                ///< granularity block, dynamic_group
  bool power_of_two = false;  ///< granularity block: scale_inv is the smallest power of two >= amax / fp8_max (E8M0)
  ScaleSearch search = ScaleSearch::amax;
  /// inc only: how the weight's scale is made, and with dynamic activations that of each call.
  recipes::ScaleMethod weight_method, activation_method;
  /// static_tensor only: multipliers out of and into fp8.
  float input_scale_inv = 1.0f, input_scale = 1.0f;

  bool is_static() const { return activations == ActivationScaling::static_tensor; }
  bool has_blocks() const { return weights == Granularity::block; }
  /// MXFP8: scales of weights, and of activations that are not in high precision, are E8M0 by the rule of training's
  /// recipe (kernels::e8m0_from_amax): as power_of_two says, but down to 2^-127, which a block of zeros has.
  bool is_mx() const { return has_blocks() && power_of_two && block == kMxBlock; }
  /// Scales are searched for: powers of two and INC's methods that round or search theirs keep them.
  bool least_error() const;
  /// The part of a weight that one scale covers.
  kernels::ScaleLayout layout() const;
  /// "E4M3 channel weights, dynamic token activations, ocp"; of MXFP8 "E4M3 mx weights, ...".
  std::string describe() const;
};

/// The grid of scales of a weight [rows, cols].
inline kernels::ScaleLayout::Grid scale_grid(const Scheme& scheme, std::int64_t rows, std::int64_t cols) {
  return scheme.layout().grid(rows, cols);
}

/// Why a weight with so many inputs can't have the scheme: MXFP8 has whole blocks only. Empty if it can.
std::string mx_problem(const Scheme& scheme, std::int64_t cols);

/// A weight's multipliers: one value, one per output channel, or a grid of blocks in row-major order.
struct WeightScales {
  std::vector<float> scale, scale_inv;

  /// Those of output channels [first, first + rows) of a weight with `cols` columns; one value stands for all of them.
  /// Granularity block: `first` is a multiple of block.rows, std::invalid_argument otherwise.
  WeightScales of_rows(std::int64_t first, std::int64_t rows, const Scheme& scheme, std::int64_t cols) const;
};

/// amax (one value, one per output channel or block; f32, of the weight as it is stored) -> multipliers. type: the
/// weight's; INC makes scales per channel in that (f16: bf16) instead of hp. Throws std::invalid_argument naming
/// `module` for NaN or Inf, and for methods that search.
WeightScales weight_scales(const std::vector<float>& amax, const Scheme& scheme, const std::string& module,
                           std::optional<recipes::FloatType> type = std::nullopt);

/// scheme.least_error(): the scales of least error around from_amax, the weight's own of weight_scales(). w: [rows,
/// cols] dense in `type`, finite; with one scale all of it. INC's convention rounds them to hp_dtype.
WeightScales least_error_scales(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                const WeightScales& from_amax, const Scheme& scheme, const std::string& module);

/// The same of one scale for values that come in pieces, those of all weights that share it.
class TensorScaleSearch {
 public:
  TensorScaleSearch(const WeightScales& from_amax, const Scheme& scheme)
      : scale_inv_(from_amax.scale_inv.at(0)), scheme_(scheme), errors_(kCandidates) {}
  void add(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols);
  WeightScales best(const std::string& module) const;

 private:
  static constexpr std::size_t kCandidates = 25;
  float scale_inv_;
  const Scheme& scheme_;
  recipes::FloatType type_ = recipes::FloatType::F32;
  std::vector<double> errors_;  // of the candidates
};

/// True if the scales need the weight itself, not only its amax: INC's *_opt_* methods.
bool searches(const Scheme& scheme);
/// Those scales. w: [rows, cols] dense in `type`, rows = output channels.
WeightScales searched_weight_scales(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                    const Scheme& scheme, const std::string& module);

/// amax of an activation -> scale_inv. `method`: inc only. Throws std::invalid_argument naming `tensor` for NaN or Inf.
float activation_scale_inv(float amax, const Numbers& numbers, const recipes::ScaleMethod& method,
                           const std::string& tensor);

/// amax of a static activation -> scheme.input_scale_inv and input_scale. `method`: inc only.
void set_input_scale(Scheme& scheme, float amax, const recipes::ScaleMethod& method, const std::string& module);

/// The multiplier that goes with a stored scale_inv under the scheme's convention.
float scale_for(const Numbers& numbers, float scale_inv, const std::string& module);

/// Granularity block: amax of each block of w, [rows, cols] dense in `type`, in the order of scale_grid().
std::vector<float> block_amax(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                              const Scheme& scheme);

/// Granularity block: scales and codes of a piece of a weight, at once. w: [rows, cols] dense in `type`, starting at a
/// multiple of block.rows; codes [rows, cols]. Returns scale_inv of the piece's blocks, row by row of the grid: pieces
/// follow each other in it. Throws std::invalid_argument naming `module` for NaN or Inf, and for INC's convention.
std::vector<float> quantize_weight_blocks(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                          const Scheme& scheme, const std::string& module, std::uint8_t* codes);

/// Codes of rows [first_row, first_row + rows) of a weight -> y = round to type(f32(value * scale_inv)). codes, y:
/// [rows, cols] dense. scale_inv: of the whole weight: one value, one per row, or scale_grid()'s. Any first_row.
void decode_weight_rows(const std::uint8_t* codes, std::int64_t rows, std::int64_t cols, std::int64_t first_row,
                        const float* scale_inv, std::int64_t scales, const Scheme& scheme, void* y,
                        recipes::FloatType type);

/// Casts rows [first_row, first_row + rows) of a weight: w is [rows, cols] dense in `type`; codes [rows, cols]. scales:
/// of the whole weight. Granularity block: first_row is a multiple of block.rows, std::invalid_argument otherwise.
void cast_weight_rows(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                      std::int64_t first_row, const WeightScales& scales, const Scheme& scheme, std::uint8_t* codes);

// Scales that are too large for what they scale: values that are not zero and become zero in fp8. A method that does
// not look at the tensor (hw_aligned_single_scale), or one far outlier, can lose most of it, and nothing else would say
// so. No torch here.

/// Of the values that are not zero, how many are lost.
struct Underflow {
  std::int64_t lost = 0, values = 0;

  void add(const Underflow& other) { lost += other.lost, values += other.values; }
  bool most() const { return 2 * lost > values; }
  double share() const { return values == 0 ? 0.0 : static_cast<double>(lost) / static_cast<double>(values); }
};

/// Of n values and the codes that they became. Where few codes are zero, zeros among the values are not told from lost
/// ones.
Underflow underflow_of_codes(const void* values, recipes::FloatType type, std::int64_t n, const std::uint8_t* codes);

/// Of n values under one static scale (multiplies into fp8).
Underflow underflow_of_scale(const void* values, recipes::FloatType type, std::int64_t n, float scale,
                             recipes::Format format);

/// True if `scale` loses most of a tensor of this amax, even if its values are normally distributed: their median is
/// then less than a quarter of the amax. Tails that are heavier lose more.
bool loses_most(float amax, float scale, recipes::Format format);

/// Collects tensors that lose most of their values; thread-safe.
class UnderflowReport {
 public:
  void add(const std::string& module, const Underflow& underflow);
  /// No line, or one: how many modules, the worst, the way out. what: "weights", "inputs".
  std::vector<std::string> warnings(const std::string& scale_method, const char* what) const;

 private:
  mutable std::mutex mutex_;
  std::int64_t modules_ = 0, losing_ = 0;
  std::string worst_;
  double worst_share_ = 0;
};

/// Shared by the modules of one conversion: the first whose input is lost at its first call is named, the others are
/// not.
struct InputWatch {
  std::atomic<bool> said{false};
};

// A file's dtype and the kernels' word for it. No torch here.

/// F32, BF16 or F16: what the kernels cast from and decode to.
inline bool is_float(io::DType t) { return t == io::DType::F32 || t == io::DType::BF16 || t == io::DType::F16; }

/// t: one that is_float().
inline recipes::FloatType float_type(io::DType t) {
  return t == io::DType::F32    ? recipes::FloatType::F32
         : t == io::DType::BF16 ? recipes::FloatType::BF16
                                : recipes::FloatType::F16;
}

inline io::DType file_type(recipes::FloatType t) {
  return t == recipes::FloatType::F32    ? io::DType::F32
         : t == recipes::FloatType::BF16 ? io::DType::BF16
                                         : io::DType::F16;
}

// Scales of a key-value cache. No torch here.

/// Scales of an attention module's key-value cache: scale_inv of keys after the rotary embedding and of values, one
/// each or one per head; of queries one, or none, and engines take another for them.
struct KvScales {
  std::string attention;  ///< "model.layers.0.self_attn"
  std::vector<float> k, v, q = {};
};

// The settings of a module without a weight, and how its scales are made of its measurement. No torch here.
//
//   kind          input scales                               output scales
//   matmul        inputs 0, 1                                product of the two
//   b2b_matmul    input 0, output 0                          product of the two      (padding holds garbage in input 1)
//   softmax       -                                          output 0
//   fused_sdpa    inputs 0, 1, 2 (q, k, v), output 1 (P)     output 0 (o); none: o is not cast
//   kv_cache      input 0, or one for each head of it        the same
//   dynamic_moe   input 0, outputs 1 .. E (each expert)      output 0; not used: y stays in high precision

/// The granularities that a key-value cache has.
inline EnumChoice<Granularity> kv_granularities() { return choice_of({Granularity::tensor, Granularity::head}); }

struct NodeScheme : Numbers {
  configs::ModuleKind kind = configs::ModuleKind::matmul;
  bool dynamic = false;                 ///< scales are made at each call; the lists below are empty
  bool per_token = true;                ///< dynamic: one scale a row (a's) or column (b's), else one a tensor
  recipes::ScaleMethod dynamic_method;  ///< dynamic, INC's convention
  std::vector<float> input_scale_inv, output_scale_inv;

  /// "E4M3 matmul, static scales, gaudi2".
  std::string describe() const;
};

/// The source of the static scales of one module.
struct NodeMeasurement {
  const Numbers& numbers;
  const measure::Measurement* measured;  ///< null for methods of fixed values
  const recipes::ScaleMethod& method;
  const std::string& module;
  std::size_t experts;  ///< of dynamic_moe
  std::vector<std::string>& warnings;

  /// The scale_inv of the i-th input or output. Throws io::Error naming module and tensor: it was not measured.
  float input(std::size_t i) const;
  float output(std::size_t i) const;
  /// That of `amax`; `tensor` stands in messages.
  float scale(float amax, const char* tensor) const;
};

/// Fills in the two lists of scales, which are empty before.
using NodeScaleRule = std::function<void(NodeScheme& scheme, const NodeMeasurement& from)>;
/// The table above, and what registrations add (quant/handlers/node_handler.h).
configs::KindTable<NodeScaleRule>& node_scale_rules();

/// Fills in the static scales by the rule of scheme.kind. `measured`: null for methods of fixed values. experts: of
/// dynamic_moe. An expert that no token was given to in calibration (amax 0) takes the largest of the others, and
/// `warnings` says so. Throws io::Error naming module and tensor: measurements that are missing, or in another number
/// than the experts.
void set_node_scales(NodeScheme& scheme, const measure::Measurement* measured, const recipes::ScaleMethod& method,
                     const std::string& module, std::size_t experts, std::vector<std::string>& warnings);

/// The amax of each expert's intermediate values, as set_node_scales() takes them.
std::vector<float> expert_amax(const measure::Measurement& measured, std::size_t experts,
                               std::vector<std::string>& warnings);

/// One amax of a measurement: tensor "inputs" or "outputs", by index; of values per channel the largest. Throws
/// io::Error as above.
float one_amax(const measure::Measurement& measured, bool input, std::size_t index);

}  // namespace fp8::quant
