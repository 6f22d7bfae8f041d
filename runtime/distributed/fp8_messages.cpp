// SPDX-License-Identifier: Apache-2.0
// Values that travel between ranks as E4M3 codes. Each row of a message has a scale of its own, amax / max:
//
//   x [ranks, m] --cast_rows--> [ranks, m codes | 4 bytes of scale_inv] --decode_rows--> f32 [ranks, m]
//
// fp8::all_reduce: the sum of partial results, in a quarter of the bytes of f32.
//
//   all-to-all    each rank gets its part of every rank's x, decodes the parts and adds them in f32
//   all-gather    the sums, cast once more: the same bits on every rank
//
// With scales that were measured (of what each rank adds, of the sum) all ranks know them, and codes go alone.
//
// fp8::cast_groups, fp8::decode_groups: the casts alone, for engines that send codes and scales themselves.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime::distributed {
namespace {

/// rows: [n, m].
Fp8Tensor cast_rows(const at::Tensor& rows, const char* op) {
  return quantize(rows, {.max = kernels::fp8_max(kernels::Format::E4M3, device_dialect(op)),
                         .layout = ScaleLayout::per_row(),
                         .rule = ScaleRule::amax_over_max});
}

constexpr const char* kAllReduce = "fp8::all_reduce";

/// Rows as bytes. scale_inv: of all of them; none: each has its own, behind its codes.
at::Tensor message_of(const at::Tensor& rows, std::optional<float> scale_inv) {
  if (!scale_inv.has_value()) {
    const Fp8Tensor cast = cast_rows(rows, kAllReduce);
    return at::cat({cast.codes.view(at::kByte), cast.grid.contiguous().view({-1, 1}).view(at::kByte)}, 1);
  }
  const float max = kernels::fp8_max(kernels::Format::E4M3, device_dialect(kAllReduce));
  return quantize(rows, {.max = max, .scale = 1.0f / *scale_inv, .scale_inv = *scale_inv}).codes.view(at::kByte);
}

at::Tensor values_of(const at::Tensor& message, std::optional<float> scale_inv) {
  const std::int64_t m = message.size(1) - (scale_inv.has_value() ? 0 : 4);
  Fp8Tensor cast{message.narrow(1, 0, m).contiguous().view(at::kFloat8_e4m3fn)};
  if (scale_inv.has_value()) {
    cast.scale_inv = *scale_inv;
  } else {
    cast.layout = ScaleLayout::per_row();
    cast.grid = message.narrow(1, m, 4).contiguous().view(at::kFloat);
  }
  return dequantize(cast, at::kFloat);
}

/// Of what ranks add, and of the sum.
std::array<std::optional<float>, 2> given_scales(const std::optional<std::vector<double>>& scale_inv) {
  if (!scale_inv.has_value()) return {};
  const auto fits = [](double s) { return std::isfinite(1.0f / static_cast<float>(s)) && s > 0 && std::isfinite(s); };
  TORCH_CHECK(scale_inv->size() == 2 && std::ranges::all_of(*scale_inv, fits),
              "[fp8::all_reduce] scale_inv: expected two positive finite numbers, of what ranks add and of the sum, "
              "found ",
              *scale_inv);
  return {static_cast<float>((*scale_inv)[0]), static_cast<float>((*scale_inv)[1])};
}

at::Tensor all_reduce(const at::Tensor& x, const std::string& group_name,
                      const std::optional<std::vector<double>>& scale_inv) {
  TORCH_CHECK(is_high_precision(x.scalar_type()) && (x.is_hpu() || x.is_cpu()),
              "[fp8::all_reduce] x: expected Float, "
              "BFloat16 or Half on hpu or cpu, found ",
              x.scalar_type(), " on ", x.device());
  const auto [of_added, of_sum] = given_scales(scale_inv);
  const auto group = c10d_group(group_name);
  const std::int64_t ranks = group->getSize(), part = (x.numel() + ranks - 1) / ranks;
  LeafScope leaf(kAllReduce, x);
  const at::NoGradGuard no_grad;
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;
  if (ranks == 1) return y.copy_(x);
  const at::Tensor parts = at::zeros({ranks, part}, x.options().device(at::kCPU));
  parts.view({-1}).narrow(0, 0, x.numel()).copy_(cpu_alias(x.detach()).reshape({-1}));

  const WithoutPython begun;
  auto& backend = *group->getBackend(at::kCPU);
  at::Tensor sent = message_of(parts, of_added), received = at::empty_like(sent), all = at::empty_like(sent);
  std::vector<std::int64_t> equal;
  backend.alltoall_base(received, sent, equal, equal)->wait();
  at::Tensor sum = message_of(values_of(received, of_added).sum(0, /*keepdim=*/true), of_sum);
  backend._allgather_base(all, sum)->wait();
  cpu_alias(y).copy_(values_of(all, of_sum).view({-1}).narrow(0, 0, x.numel()).view(x.sizes()));
  leaf.gives(y);
  return y;
}

/// A converted weight's, which have scales of their own.
void refuse_codes(const char* op, const at::Tensor& t) {
  if (const auto tag = tag_of_memory(t)) tag->check_access(op, t);
}

/// values: of any sizes, as `groups` rows one after the other. Returns bytes of its sizes, and scale_inv [groups].
std::tuple<at::Tensor, at::Tensor> cast_groups(const at::Tensor& values, std::int64_t groups) {
  TORCH_CHECK(groups > 0 && values.numel() > 0 && values.numel() % groups == 0, "[fp8::cast_groups] groups: found ",
              groups, ", allowed: a divisor of the ", values.numel(), " values");
  refuse_codes("fp8::cast_groups", values);
  const Fp8Tensor cast = cast_rows(values.detach().reshape({groups, -1}), "fp8::cast_groups");
  return {cast.codes.view(at::kChar).view(values.sizes()), cast.grid.view({groups}).to(values.device())};
}

at::Tensor decode_groups(const at::Tensor& codes, const at::Tensor& scale_inv) {
  const std::int64_t groups = scale_inv.numel();
  TORCH_CHECK(
      codes.element_size() == 1 && scale_inv.scalar_type() == at::kFloat && groups > 0 && codes.numel() % groups == 0,
      "[fp8::decode_groups] expected bytes and a Float for each group of them, found ", codes.numel(), " of ",
      codes.scalar_type(), " and ", groups, " of ", scale_inv.scalar_type());
  refuse_codes("fp8::decode_groups", codes);
  Fp8Tensor cast{codes.contiguous().view(at::kFloat8_e4m3fn).view({groups, -1})};
  cast.layout = ScaleLayout::per_row();
  cast.grid = scale_inv.contiguous().view({groups, 1});
  return dequantize(cast, at::kFloat).view(codes.sizes());
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("all_reduce(Tensor x, str group, float[]? scale_inv=None) -> Tensor", &all_reduce);
  m.def("cast_groups(Tensor values, int groups) -> (Tensor, Tensor)", &cast_groups);
  m.def("decode_groups(Tensor codes, Tensor scale_inv) -> Tensor", &decode_groups);
}

}  // namespace
}  // namespace fp8::runtime::distributed
