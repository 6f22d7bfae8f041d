// SPDX-License-Identifier: Apache-2.0
// Rows for GroupedLinear in multiples of what fp8 products of the target take: zero rows behind each product's own, and
// off again.
//
//   auto [padded, splits] = padding->forward(x, m_splits);      [3 rows | 20 rows] ->
//                                                               [3 + 13 zeros | 20 + 12 zeros], {16, 32}
//   y = unpadding->forward(grouped(padded, splits), m_splits);  the rows of x again
//
// Results and gradients are those without padding; products on this host take any number of rows.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <utility>
#include <vector>

namespace fp8::te {

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
