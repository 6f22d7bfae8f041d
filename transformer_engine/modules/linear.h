// SPDX-License-Identifier: Apache-2.0
// y = x w^T + b, in fp8 inside an enabled fp8_autocast region, else bit-equal to torch::nn::functional::linear.
#pragma once
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/products/fp8_linear.h"

namespace fp8::te {

/// Fills a weight in place. Default: normal(0, 0.023).
using InitMethod = std::function<void(at::Tensor)>;

/// Rows of a weight, and elements of its bias, that are parameters of their own: {"query", 64} are query_weight and
/// query_bias. Underscores at the end of names are dropped.
using ParametersSplit = std::vector<std::pair<std::string, std::int64_t>>;

struct LinearOptions {
  std::int64_t in_features = 0, out_features = 0;
  bool bias = true;                          ///< initialised to zeros
  bool return_bias = false;                  ///< forward_with_bias() gives the bias back instead of adding it
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;  ///< the fp8 weight is cast again in backward (also PT_HPU_FP8_MINIMIZE_MEMORY=1)
  std::string name = "linear";   ///< in messages, and in the seeds of stochastic rounding
  ParallelOptions parallel = {};
  ParametersSplit parameters_split = {};      ///< of out_features rows in all; `weight` and `bias` stay undefined then
  bool skip_weight_param_allocation = false;  ///< the weight, and the bias, come by set_weight()
  bool save_original_input = false;  ///< backward casts the input again instead of keeping its codes; same bits
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

/// A weight and a bias in one parameter each, or in several.
class ProductParameters {
 public:
  /// Registers them with `module`: the values of `weight`, and zeros.
  void add(torch::nn::Module& module, const char* kind, const std::string& name, const ParametersSplit& split,
           const at::Tensor& weight, bool bias);
  const at::Tensor& one_weight() const { return weight_; }  ///< undefined with a split
  const at::Tensor& one_bias() const { return bias_; }
  /// The whole of a weight and a bias; `weight` and `bias` are those of the module if there is no split.
  at::Tensor whole_weight(const at::Tensor& weight) const;
  at::Tensor whole_bias(const at::Tensor& bias) const;

 private:
  at::Tensor weight_, bias_;
  std::vector<at::Tensor> weights_, biases_;
};
/// Throws c10::Error naming what is wrong with a split.
void check_split(const char* module, const ParametersSplit& split, std::int64_t out_features);

class LinearImpl : public Fp8Cloneable<LinearImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit LinearImpl(LinearOptions options);
  LinearImpl(std::int64_t in_features, std::int64_t out_features)
      : LinearImpl(LinearOptions{.in_features = in_features, .out_features = out_features}) {}

  void reset() override;
  /// x: [..., in_features] -> [..., out_features]. With return_bias the bias is left out. fp8_output, fp8_grad: not
  /// built, refused.
  at::Tensor forward(const at::Tensor& x, std::optional<bool> is_first_microbatch = std::nullopt,
                     bool fp8_output = false, bool fp8_grad = false);
  /// {y, bias}: y without the bias, where return_bias is set; else {y, undefined}.
  std::pair<at::Tensor, at::Tensor> forward_with_bias(const at::Tensor& x,
                                                      std::optional<bool> is_first_microbatch = std::nullopt);

  /// With skip_weight_param_allocation: these tensors become the parameters (no copies). weight: [out_features,
  /// in_features]; bias: [out_features], needed if `bias` is set. Throws c10::Error naming the argument.
  void set_weight(const at::Tensor& weight, const at::Tensor& bias = {});

  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return {state_}; }
  void pretty_print(std::ostream& stream) const override;

  const LinearOptions& options() const { return options_; }

  at::Tensor weight;  ///< [out_features, in_features]
  at::Tensor bias;    ///< [out_features]; undefined without

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<bool>())}, {2, torch::nn::AnyValue(false)},
                           {3, torch::nn::AnyValue(false)})

 private:
  ProductParameters parameters_of_product_;
  LinearOptions options_;
  std::shared_ptr<Fp8State> state_;
};
TORCH_MODULE(Linear);

/// The product of every module: fp8_linear in an enabled region, else at::linear (after recording, in a
/// calibrating one).
at::Tensor linear_or_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::shared_ptr<Fp8State>& state, const Fp8LinearOptions& options);

/// The options of a module's product for linear_or_fp8(); minimize_memory also where PT_HPU_FP8_MINIMIZE_MEMORY=1.
Fp8LinearOptions product_options(bool minimize_memory, std::optional<bool> is_first_microbatch, bool training);

/// Throws c10::Error "[module] params_dtype: found ..., allowed: Float, BFloat16, Half".
void check_params_dtype(const char* module, at::ScalarType dtype);
/// As above, of a module with products; where they minimize memory, the flags say so from here on.
void check_options(const char* module, at::ScalarType params_dtype, bool minimize_memory);

/// A weight of these sizes, drawn by `init` (default normal(0, 0.023)) on `device`.
at::Tensor initial_weight(at::IntArrayRef sizes, const InitMethod& init, at::ScalarType dtype, at::Device device);

// Several linear layers of one shape, each for its own share of the rows (experts): y = concat_i(x_i w_i^T + b_i), each
// product in fp8 with scales of its own inside an enabled fp8_autocast region.

struct GroupedLinearOptions {
  std::int64_t num_gemms = 0, in_features = 0, out_features = 0;
  bool bias = true;
  bool return_bias = false;                  ///< the biases are not added; they are the members `biases`
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "grouped_linear";
  ParallelOptions parallel = {};
  bool save_original_input = false;                                   ///< as in Linear
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class GroupedLinearImpl : public Fp8Cloneable<GroupedLinearImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit GroupedLinearImpl(GroupedLinearOptions options);
  GroupedLinearImpl(std::int64_t num_gemms, std::int64_t in_features, std::int64_t out_features)
      : GroupedLinearImpl(
            GroupedLinearOptions{.num_gemms = num_gemms, .in_features = in_features, .out_features = out_features}) {}

  void reset() override;
  /// x: [..., in_features]; m_splits: num_gemms numbers >= 0 of rows (all but the last dimension counted together) that
  /// sum to those of x. Throws c10::Error naming both where they don't fit.
  at::Tensor forward(const at::Tensor& x, const std::vector<std::int64_t>& m_splits,
                     std::optional<bool> is_first_microbatch = std::nullopt);

  /// One per product.
  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return states_; }
  void pretty_print(std::ostream& stream) const override;

  const GroupedLinearOptions& options() const { return options_; }

  std::vector<at::Tensor> weights;  ///< parameters weight0, weight1, ...: [out_features, in_features]
  std::vector<at::Tensor> biases;   ///< bias0, ...: [out_features]; undefined without

 private:
  GroupedLinearOptions options_;
  std::vector<std::shared_ptr<Fp8State>> states_;
};
TORCH_MODULE(GroupedLinear);

// Rows for GroupedLinear in multiples of what fp8 products of the target take: zero rows behind each product's own, and
// off again.
//
//   auto [padded, splits] = padding->forward(x, m_splits);      [3 rows | 20 rows] ->
//                                                               [3 + 13 zeros | 20 + 12 zeros], {16, 32}
//   y = unpadding->forward(grouped(padded, splits), m_splits);  the rows of x again
//
// Results and gradients are those without padding; products on this host take any number of rows.

struct Fp8PaddingOptions {
  std::int64_t num_gemms = 0;
  std::optional<std::int64_t> align_size = {};  ///< default: as the recipe of the region asks, 32 of MXFP8, else 16
};

class Fp8PaddingImpl : public torch::nn::Cloneable<Fp8PaddingImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit Fp8PaddingImpl(Fp8PaddingOptions options);
  explicit Fp8PaddingImpl(std::int64_t num_gemms, std::optional<std::int64_t> align_size = {})
      : Fp8PaddingImpl(Fp8PaddingOptions{.num_gemms = num_gemms, .align_size = align_size}) {}
  void reset() override {}
  /// inp: [..., features]; m_splits: num_gemms numbers >= 0 that sum to its rows. {[padded rows, features], padded
  /// m_splits}; inp itself where nothing is to be padded. Throws c10::Error naming the argument.
  std::pair<at::Tensor, std::vector<std::int64_t>> forward(const at::Tensor& inp,
                                                           const std::vector<std::int64_t>& m_splits);
  void pretty_print(std::ostream& stream) const override;

 private:
  Fp8PaddingOptions options_;
};
TORCH_MODULE(Fp8Padding);

class Fp8UnpaddingImpl : public torch::nn::Cloneable<Fp8UnpaddingImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit Fp8UnpaddingImpl(Fp8PaddingOptions options);
  explicit Fp8UnpaddingImpl(std::int64_t num_gemms, std::optional<std::int64_t> align_size = {})
      : Fp8UnpaddingImpl(Fp8PaddingOptions{.num_gemms = num_gemms, .align_size = align_size}) {}
  void reset() override {}
  /// inp: [padded rows, features]; m_splits: as they were before padding. Result: [sum of m_splits, features]; inp
  /// itself where nothing was padded. Throws c10::Error naming the argument.
  at::Tensor forward(const at::Tensor& inp, const std::vector<std::int64_t>& m_splits);
  void pretty_print(std::ostream& stream) const override;

 private:
  Fp8PaddingOptions options_;
};
TORCH_MODULE(Fp8Unpadding);

}  // namespace fp8::te
