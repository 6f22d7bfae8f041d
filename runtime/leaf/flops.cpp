// SPDX-License-Identifier: Apache-2.0
// Additions and multiplications by the operands' sizes; masks leave nothing out. |t|: elements of t.
//
//   product      [.., M, K] x ..        -> [.., M, N]      2 * |result| * K      K: last size of the first operand
//   convolution  x, w [C_out, C_in/g, R, S]  -> [B, C_out, ..]   2 * |result| * |w| / C_out
//                backward: as much for dx and for dw, of those that are made: 2 * |dy| * |w| / C_out each
//   attention    q [.., L, D], k [.., S, D], v [.., S, E]  -> [.., L, E]   2 * |q| / D * S * (D + E)
//                backward: dP = dy v^T and dv = P^T dy of E, dq = dS k and dk = dS^T q of D: 4 * |q| / D * S * (D + E);
//                and where P is made again of q k^T, 2 * |q| / D * S * D more
//   RMS norm     r = 1 / sqrt(mean x^2 + eps), y = x r w: 4 |x|; backward, with n = x r: dw += dy n,
//                dx = r (dy w - n mean(dy w n)): 9 |x|
//   rotation     y = x cos + turned(x) sin, and back: 3 |x|
#include <algorithm>
#include <array>
#include <numeric>

#include "fp8/runtime/leaf/leaf.h"

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

/// 2 * |y| * |w| / C_out.
std::int64_t of_convolved(const LeafTensor& y, const LeafTensor& w) {
  return w.sizes.size() < 3 || w.sizes[0] == 0 ? 0 : 2 * count(y) * (count(w) / w.sizes[0]);
}

std::int64_t of_convolution(std::size_t x, Tensors inputs, Tensors outputs) {
  return inputs.size() < x + 2 || outputs.empty() ? 0 : of_convolved(outputs[0], inputs[x + 1]);
}

/// dy, x, w -> of dx, dw and the bias's gradient those that were asked for.
std::int64_t of_convolution_backward(std::size_t dy, Tensors inputs, Tensors outputs) {
  if (inputs.size() < dy + 3) return 0;
  const auto made = std::ranges::count_if(outputs, [](const LeafTensor& t) { return t.sizes.size() >= 3; });
  return made * of_convolved(inputs[dy], inputs[dy + 2]);
}

/// Times `d` of D, `e` of E: 2 * |q| / D * S * (d * D + e * E).
std::int64_t of_scores(std::size_t q, Tensors inputs, std::int64_t d, std::int64_t e) {
  if (inputs.size() < q + 3) return 0;
  const auto &query = inputs[q].sizes, &key = inputs[q + 1].sizes, &value = inputs[q + 2].sizes;
  if (query.size() < 2 || key.size() < 2 || value.empty() || query.back() == 0) return 0;
  return 2 * (count(inputs[q]) / query.back()) * key[key.size() - 2] * (d * query.back() + e * value.back());
}

std::int64_t of_attention(std::size_t q, Tensors inputs, Tensors) { return of_scores(q, inputs, 1, 1); }
std::int64_t of_attention_backward(std::size_t q, Tensors inputs, Tensors) { return of_scores(q, inputs, 2, 2); }
std::int64_t of_attention_again(std::size_t q, Tensors inputs, Tensors) { return of_scores(q, inputs, 3, 2); }

/// `Each` of every element.
template <std::int64_t Each>
std::int64_t of_elements(std::size_t x, Tensors inputs, Tensors) {
  return inputs.size() <= x ? 0 : Each * count(inputs[x]);
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
    {"aten::addmv", of_product, 1},
    {"aten::linear", of_product},
    {"aten::matmul", of_product},
    {"aten::_grouped_mm", of_product},
    {"aten::_scaled_mm", of_product},
    {"fp8::weight_only_linear", of_product},
    {"fp8::block_linear", of_product},
    {"aten::convolution", of_convolution},
    {"aten::_convolution", of_convolution},
    {"aten::convolution_backward", of_convolution_backward},
    {"hpu::conv2d_fp8", of_convolution},
    {"aten::scaled_dot_product_attention", of_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", of_attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", of_attention_again, 1},
    {"fp8::attention", of_attention},
    {"hpu::sdpa_fwd", of_attention},
    {"hpu::sdpa_bwd", of_attention_backward, 1},
    {"hpu::sdpa_recomp_fwd", of_attention},
    {"hpu::sdpa_recomp_bwd", of_attention_again, 1},
    {"hpu::fp8_sdpa_fwd", of_attention},
    {"hpu::fp8_sdpa_bwd", of_attention_backward, 1},
    {"hpu::fp8_sdpa_recomp_fwd", of_attention},
    {"hpu::fp8_sdpa_recomp_bwd", of_attention_again, 1},
    {"hpu::rms_norm", of_elements<4>},
    {"hpu::rms_norm_backward", of_elements<9>},
    {"fp8::rms_norm", of_elements<4>},
    {"hpu::rotary_pos_embedding", of_elements<3>},
    {"hpu::rotary_pos_embedding_backward", of_elements<3>},
    {"fp8::rotary", of_elements<3>},
});

}  // namespace

std::int64_t flops_of(std::string_view op, Tensors inputs, Tensors outputs) {
  const std::string_view name = op.substr(0, op.find('.'));
  for (const Row& row : kRows)
    if (row.op == name) return row.flops(row.first, inputs, outputs);
  return 0;
}

}  // namespace fp8::runtime::detail
