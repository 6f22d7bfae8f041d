// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>

#include <cmath>

#include "fp8/quant/damage/damage.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/products/quantized_operand.h"

namespace fp8::te {
namespace {

double length_of(const at::Tensor& t) {
  return at::linalg_vector_norm(t, 2, std::nullopt, false, at::kDouble).item<double>();
}

std::int64_t bytes_of(const runtime::Fp8Tensor& o) {
  const std::int64_t scales =
      o.grid.defined() ? static_cast<std::int64_t>(o.grid.nbytes()) : static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::int64_t>(o.codes.nbytes()) + scales;
}

}  // namespace

void add_plan(const at::Tensor& weight, const recipes::Recipe& recipe, quant::ConvertedModule& line) {
  const at::NoGradGuard no_grad;
  const auto dialect = runtime::device_dialect("convert_modules");
  line.flops_per_row = 6.0 * static_cast<double>(weight.numel());
  const at::Tensor w = weight.detach().contiguous();
  const float amax = runtime::amax_of(w);
  const bool usable = amax > 0.0f && std::isfinite(amax);
  Fp8State state(line.name, 2, 1);
  if (usable) state.seed({amax, amax}, recipe);
  StepScales scales;
  const Fp8StateValues values = state.values();
  const auto fill = [](const recipes::TensorMeta& meta, std::vector<float>& scale, std::vector<float>& scale_inv) {
    scale.assign(meta.scale.data(), meta.scale.data() + meta.scale.size());
    scale_inv.assign(meta.scale_inv.data(), meta.scale_inv.data() + meta.scale_inv.size());
  };
  fill(values.forward, scales.scale, scales.scale_inv);
  fill(values.hybrid, scales.hybrid_scale, scales.hybrid_scale_inv);
  if (scales.scale.empty()) scales.scale = scales.scale_inv = {1.0f, 1.0f};
  const OperandPair pair = quantize_operand(
      w,
      {.recipe = recipe, .dialect = dialect, .role = Role::weight, .both_stay = true, .scales = &scales, .index = 1});
  line.operand_bytes = bytes_of(pair.columns);
  if (pair.rows.codes.defined() && !pair.rows.codes.is_same(pair.columns.codes))
    line.operand_bytes += bytes_of(pair.rows);
  if (!usable) return;
  const double weight_error =
      length_of(at::sub(runtime::dequantize(pair.columns, at::kFloat), w.to(at::kFloat))) / length_of(w);
  line.expected_error =
      std::hypot(weight_error, quant::expected_rounding(recipes::forward_format(recipes::format_of(recipe))));
}

}  // namespace fp8::te
