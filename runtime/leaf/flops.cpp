// SPDX-License-Identifier: Apache-2.0
// 2 M N K of products by their operands' sizes:
//
//   product      [.., M, K] x ..        -> [.., M, N]      2 * |result| * K      K: last size of the first operand
//   convolution  x, w [C_out, C_in/g, R, S]  -> [B, C_out, ..]   2 * |result| * |w| / C_out
//   attention    q [.., L, D], k [.., S, D], v [.., S, E]  -> [.., L, E]   2 * |q| / D * S * (D + E)
#include <array>
#include <functional>
#include <numeric>

#include "fp8/runtime/leaf/listeners.h"

namespace fp8::runtime::detail {
namespace {

using Tensors = std::span<const LeafTensor>;

std::int64_t count(const LeafTensor& t) {
  return std::accumulate(t.sizes.begin(), t.sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t of_product(std::size_t a, Tensors inputs, Tensors outputs) {
  if (inputs.size() < a + 2 || outputs.empty() || inputs[a].sizes.empty()) return 0;
  return 2 * count(outputs[0]) * inputs[a].sizes.back();
}

std::int64_t of_convolution(std::size_t x, Tensors inputs, Tensors outputs) {
  if (inputs.size() < x + 2 || outputs.empty() || inputs[x + 1].sizes.size() < 3 || inputs[x + 1].sizes[0] == 0)
    return 0;
  return 2 * count(outputs[0]) * (count(inputs[x + 1]) / inputs[x + 1].sizes[0]);
}

std::int64_t of_attention(std::size_t q, Tensors inputs, Tensors) {
  if (inputs.size() < q + 3) return 0;
  const auto &query = inputs[q].sizes, &key = inputs[q + 1].sizes, &value = inputs[q + 2].sizes;
  if (query.size() < 2 || key.size() < 2 || value.empty() || query.back() == 0) return 0;
  return 2 * (count(inputs[q]) / query.back()) * key[key.size() - 2] * (query.back() + value.back());
}

struct Row {
  std::string_view op;
  std::int64_t (*flops)(std::size_t first, Tensors inputs, Tensors outputs);
  std::size_t first = 0;  ///< operand that the formula begins with
};

constexpr auto kRows = std::to_array<Row>({
    {"aten::mm", of_product},
    {"aten::bmm", of_product},
    {"aten::addmm", of_product, 1},
    {"aten::baddbmm", of_product, 1},
    {"aten::mv", of_product},
    {"aten::linear", of_product},
    {"aten::matmul", of_product},
    {"aten::_grouped_mm", of_product},
    {"aten::_scaled_mm", of_product},
    {"aten::convolution", of_convolution},
    {"aten::_convolution", of_convolution},
    {"hpu::conv2d_fp8", of_convolution},
    {"fp8::weight_only_linear", of_product},
    {"fp8::block_linear", of_product},
    {"aten::scaled_dot_product_attention", of_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", of_attention},
    {"fp8::attention", of_attention},
    {"hpu::sdpa_fwd", of_attention},
    {"hpu::fp8_sdpa_fwd", of_attention},
});

}  // namespace

std::int64_t flops_of(std::string_view op, Tensors inputs, Tensors outputs) {
  const std::string_view name = op.substr(0, op.find('.'));
  for (const Row& row : kRows)
    if (row.op == name) return row.flops(row.first, inputs, outputs);
  return 0;
}

}  // namespace fp8::runtime::detail
