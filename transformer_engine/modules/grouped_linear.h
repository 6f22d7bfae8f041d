// SPDX-License-Identifier: Apache-2.0
// Several linear layers of one shape, each for its own share of the rows (experts): y = concat_i(x_i w_i^T + b_i), each
// product in fp8 with scales of its own inside an enabled fp8_autocast region.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <utility>
#include <vector>

#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {

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
