// SPDX-License-Identifier: Apache-2.0
// Parameters that are held in fp8 only: one byte an element, one scale, and no copy in high precision unless one is
// asked for.
//
//   te::quantized_model_init init({.preserve_high_precision_init_val = true});   modules made here hold fp8 weights
//   step:  w = decode(codes) or the kept copy;  update;  scale = f(max |w|);  codes = cast(w * scale)
//
// Without a kept copy the cast of a step rounds stochastically: updates smaller than half a step of the format would be
// lost for good else.
//
// The codes are the parameter (dtype float8_e4m3fn, or e5m2 for E5M2 recipes); its gradient has the dtype it would have
// had (Tensor::set_grad_dtype). Optimizers of runtime/optim know them (runtime::QuantizedParameter); upstream's throw
// on the dtype.
#pragma once
#include <torch/custom_class.h>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/transformer_engine/region/fp8_state.h"

namespace torch::nn {
class Module;
}

namespace fp8::te {

struct QuantizedInitOptions {
  bool enabled = true;
  /// Format and kind of scale (power of two or not); one scale per tensor: delayed or current. None: E4M3, power of
  /// two.
  std::optional<recipes::Recipe> recipe = {};
  bool preserve_high_precision_init_val =
      false;                 ///< keep the initial values in f32 until clear_high_precision_init_val()
  bool keep_master = false;  ///< optimizers work on an f32 copy instead of decoding the codes
};

/// te modules made on this thread while it lives hold fp8 weights (on hpu). Throws std::invalid_argument for a recipe
/// with block scales.
class quantized_model_init {
 public:
  explicit quantized_model_init(QuantizedInitOptions options = {});
  ~quantized_model_init();
  quantized_model_init& operator=(quantized_model_init&&) = delete;

 private:
  std::optional<QuantizedInitOptions> previous_;
};

/// The handler of a parameter that make_weight_parameter() makes. The parameter's memory holds it, so it must not hold
/// the parameter: once that is gone, what reads or writes its values throws c10::Error.
class Fp8Weight final : public runtime::OpHandler, public runtime::QuantizedParameter {
 public:
  explicit Fp8Weight(QuantizedInitOptions options);
  /// The codes of initial values (f32, bf16 or f16 on hpu): the parameter, which it is the handler of from now on.
  at::Tensor initialize(const at::Tensor& values);
  /// As above, for `codes`, a copy of the parameter (also of a part: without what is kept in high precision; also on
  /// the host, where it only remembers).
  std::shared_ptr<Fp8Weight> copy_for(const at::Tensor& codes) const;

  /// Both ways of the codes as a product's operand.
  runtime::Fp8Tensor operand(const at::Tensor& codes) const;
  float scale_inv() const { return scale_inv_; }
  at::Tensor codes() const;

  at::Tensor values() override;
  void assign(const at::Tensor& values) override;
  void adopt(runtime::OpHandler& source) override;
  void record_place(const at::Tensor& parameter) override;

  /// Values that must be stored beside the codes: {scale_inv, how often values were assigned}, and the kept copy
  /// (undefined without one). set_state() throws c10::Error for a scale_inv that is not positive and finite and a copy
  /// of other sizes; without one a kept copy becomes the decoded codes.
  std::pair<float, std::uint64_t> state() const { return {scale_inv_, assigned_}; }
  at::Tensor master() const { return master_; }
  void set_state(float scale_inv, std::uint64_t assigned, const at::Tensor& master = {});

  at::Tensor high_precision_init_val() const { return initial_; }  ///< undefined: not kept, or cleared
  void clear_high_precision_init_val() { initial_ = at::Tensor(); }

  at::Tensor linear(const runtime::LinearCall& call) override;
  at::Tensor convolution(const runtime::ConvolutionCall& call) override;
  at::Tensor dequantize(const runtime::WeightTag& tag, const runtime::WeightView& view,
                        const at::Tensor& weight) override;
  bool owns_values() const override { return true; }
  std::string scales() const override;
  bool one_scale() const override { return true; }
  std::shared_ptr<runtime::OpHandler> for_copy(const at::Tensor& copy) const override { return copy_for(copy); }
  std::shared_ptr<runtime::OpHandler> with_scales_of(const std::shared_ptr<runtime::OpHandler>&) const override {
    return nullptr;
  }
  std::string describe() const override;
  std::optional<at::ScalarType> values_dtype() const override { return at::kFloat; }
  runtime::QuantizedParameter* quantized_parameter() override { return this; }
  static constexpr std::string_view kKind = "fp8::te::Fp8Weight";
  std::string_view kind() const override { return kKind; }
  at::Tensor scale_inv_values() const override;

 private:
  at::Tensor cast(const at::Tensor& values, std::optional<std::uint64_t> stochastic);

  QuantizedInitOptions options_;
  recipes::Format format_;
  recipes::Dialect dialect_;
  float scale_inv_ = 1.0f;
  std::uint64_t assigned_ = 0;  ///< how often; with the values the seed of the rounding
  at::Tensor master_, initial_;
  // The parameter as recorded last. Its memory alone, and weakly: a TensorImpl that is referred to, be it weakly,
  // keeps its tag, and this.
  mutable std::mutex mutex_;
  c10::weak_intrusive_ptr<c10::StorageImpl> memory_;
  c10::VariableVersion version_;
  std::vector<std::int64_t> sizes_;
  std::int64_t offset_ = 0;
};

/// The parameter that a te module registers for a weight of these initial values: the tensor itself outside of
/// quantized_model_init, else fp8 codes with an Fp8Weight, named `module` in messages. Throws c10::Error there for
/// values that are not on hpu.
at::Tensor make_weight_parameter(at::Tensor values, const std::string& module);

/// The weight in `dtype` with a gradient that reaches the parameter: what a te module multiplies with where fp8 is off.
/// An ordinary parameter comes back as it is. Throws c10::Error for codes without a scale (moved to another device).
at::Tensor weight_values(const at::Tensor& parameter);

/// The dtype of a held parameter's gradient. Throws c10::Error where it learns and that is fp8.
at::ScalarType gradient_dtype(const at::Tensor& parameter);

/// The Fp8Weight of a parameter; null for ordinary ones.
Fp8Weight* fp8_weight(const at::Tensor& parameter);

/// The parameters of a module (recurse: of those below it too) that are held in fp8, by name.
std::vector<std::pair<std::string, Fp8Weight*>> fp8_weights(const torch::nn::Module& module, bool recurse = true);

/// A parameter that became a copy of `original`, codes and all, gets an Fp8Weight and a gradient dtype of its own; does
/// nothing for ordinary ones.
void own_fp8_weight(const at::Tensor& copy, const at::Tensor& original);

// Casts by recipe. What they give is multiplied by runtime/fp8_tensor/product.h.
//
//   recipe    along columns            along rows
//   delayed   one scale                the same codes; habana HYBRID: E5M2 codes of their own for x and w
//   current   one scale                the same codes
//   block     1x128 (w: 128x128)       128x1 (w: the same codes)
//   mxfp8     1x32, E8M0               32x1, E8M0
//
// With one scale the cast writes its codes twice: row by row, and column by column as the products along the rows read
// them. The former can go when the product at hand is done.
//
// recipes/scaling.h says which of these a recipe does; no recipe is asked for by name here.

using recipes::Role;

/// One operand of a product in one pass: of it and its recipe the CastSpecs of its two ways are made.
struct OperandPlan {
  const recipes::Recipe& recipe;
  recipes::Dialect dialect;
  Role role;
  bool need_rows = true;      ///< a later product sums along the rows; false: `rows` are the columns
  bool need_columns = true;   ///< one does along the columns; false: one scale may leave `columns` the rows
  bool both_stay = false;     ///< codes that serve both ways are to lie in memory once
  Fp8State* state = nullptr;  ///< gets amaxes and statistics
  const StepScales* scales = nullptr;
  int index = 0;                                 ///< of the tensor in its pass
  std::optional<std::uint64_t> stochastic = {};  ///< seed; none: round to nearest even
  bool statistics = false;
  at::Tensor input = {};  ///< of several products (q, k, v): cast once where their scale is one
};

/// x: [rows, cols] in f32, bf16 or f16, contiguous. plan.input: x is what this tensor became.
OperandPair quantize_operand(const at::Tensor& x, const OperandPlan& plan);

/// The seed, where this recipe's gradients are rounded stochastically: in the Gaudi dialect's HYBRID, unless
/// PT_TE_FORCE_SR_BWD says otherwise. One seed per product (name, and number among those of one name), step and
/// rank, the same in every process of that rank and on any number of threads.
std::optional<std::uint64_t> gradient_seed(const recipes::Recipe& recipe, const Fp8Region& region,
                                           const std::string& product, const StepScales& scales);

/// The cast of a tensor of this dtype where a recipe has one scale for it: with history that of `scales`, else of amax.
kernels::CastSpec one_scale_spec(const recipes::OperandScaling& how, recipes::Format format, recipes::Dialect dialect,
                                 const StepScales& scales, int index, float amax, at::ScalarType dtype);

/// current_scale() of a tensor of this dtype.
float current_scale_of(float amax, recipes::Format format, recipes::Dialect dialect, const recipes::OperandScaling& how,
                       at::ScalarType dtype);

}  // namespace fp8::te
