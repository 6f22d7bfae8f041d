// SPDX-License-Identifier: Apache-2.0
// conv2d on codes: each image's patches as rows (im2col, code 0 in the padding), one product per group with the weight
// as [C_out / groups, C_in / groups * R * S].
#include <ATen/ops/empty.h>

#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/gemm/gemm.h"

namespace fp8::runtime::ops {
namespace {

struct Geometry {
  std::int64_t batch, c_in, h, w, c_out, r, s, out_h, out_w, groups;
  std::int64_t stride[2], padding[2], dilation[2];
  std::int64_t patch() const { return c_in / groups * r * s; }
  std::int64_t pixels() const { return out_h * out_w; }
};

void fill_pair(const char* name, const std::vector<std::int64_t>& from, std::int64_t least, std::int64_t (&to)[2]) {
  TORCH_CHECK(from.size() == 1 || from.size() == 2, "[conv2d_fp8] expected ", name, " of 1 or 2 elements, got ",
              from.size());
  to[0] = from[0];
  to[1] = from.back();
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // sizes computed from it stay far from overflow
  TORCH_CHECK(to[0] >= least && to[1] >= least && to[0] <= kMost && to[1] <= kMost, "[conv2d_fp8] expected ", name,
              " >= ", least, " and <= ", kMost, ", got ", at::IntArrayRef(from));
}

Geometry geometry_of(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const ConvOptions& o) {
  check_fp8("conv2d_fp8", "input", input.scalar_type());
  check_fp8("conv2d_fp8", "weight", weight.scalar_type());
  check_high_precision("conv2d_fp8", "out_dtype", o.out_dtype);
  TORCH_CHECK(input.dim() == 4 && weight.dim() == 4,
              "[conv2d_fp8] expected input [B, C, H, W] and weight [C_out, C_in/groups, R, S], got ", input.sizes(),
              " and ", weight.sizes());
  Geometry g{input.size(0),
             input.size(1),
             input.size(2),
             input.size(3),
             weight.size(0),
             weight.size(2),
             weight.size(3),
             0,
             0,
             o.groups,
             {},
             {},
             {}};
  fill_pair("stride", o.stride, 1, g.stride);
  fill_pair("padding", o.padding, 0, g.padding);
  fill_pair("dilation", o.dilation, 1, g.dilation);
  TORCH_CHECK(
      g.groups >= 1 && g.c_in % g.groups == 0 && g.c_out % g.groups == 0 && weight.size(1) == g.c_in / g.groups,
      "[conv2d_fp8] expected groups that divide both channel counts and weight [C_out, C_in/groups, ...], got groups ",
      g.groups, ", input ", input.sizes(), ", weight ", weight.sizes());
  g.out_h = (g.h + 2 * g.padding[0] - g.dilation[0] * (g.r - 1) - 1) / g.stride[0] + 1;
  g.out_w = (g.w + 2 * g.padding[1] - g.dilation[1] * (g.s - 1) - 1) / g.stride[1] + 1;
  TORCH_CHECK(g.r >= 1 && g.s >= 1 && g.h + 2 * g.padding[0] >= g.dilation[0] * (g.r - 1) + 1 &&
                  g.w + 2 * g.padding[1] >= g.dilation[1] * (g.s - 1) + 1,
              "[conv2d_fp8] the kernel ", weight.sizes(), " is larger than the padded input ", input.sizes());
  TORCH_CHECK(o.scale_input.values.size() <= 1, "[conv2d_fp8] expected scale_input of 1 element, got ",
              o.scale_input.values.size());
  const auto ws = static_cast<std::int64_t>(o.scale_weight.values.size());
  TORCH_CHECK(ws <= 1 || ws == g.c_out, "[conv2d_fp8] expected scale_weight of 1 or ", g.c_out, " elements, got ", ws);
  if (bias.has_value() && bias->defined()) {
    TORCH_CHECK(bias->dim() == 1 && bias->size(0) == g.c_out && is_high_precision(bias->scalar_type()),
                "[conv2d_fp8] expected a bias [", g.c_out, "], got ", bias->sizes(), " of ", bias->scalar_type());
  }
  return g;
}

/// One image's patches of one group: rows = output pixels, columns = (c, r, s).
void im2col(const std::uint8_t* image, const Geometry& g, std::int64_t group, std::uint8_t* out) {
  const std::int64_t channels = g.c_in / g.groups;
  kernels::parallel_each(g.pixels(), 64, [&](std::int64_t pixel) {
    const std::int64_t y0 = pixel / g.out_w * g.stride[0] - g.padding[0],
                       x0 = pixel % g.out_w * g.stride[1] - g.padding[1];
    std::uint8_t* row = out + pixel * g.patch();
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::uint8_t* plane = image + (group * channels + c) * g.h * g.w;
      for (std::int64_t r = 0; r < g.r; ++r) {
        const std::int64_t y = y0 + r * g.dilation[0];
        for (std::int64_t s = 0; s < g.s; ++s) {
          const std::int64_t x = x0 + s * g.dilation[1];
          *row++ = y >= 0 && y < g.h && x >= 0 && x < g.w ? plane[y * g.w + x] : 0;
        }
      }
    }
  });
}

std::uint8_t const* bytes(const at::Tensor& t) { return static_cast<const std::uint8_t*>(t.const_data_ptr()); }

}  // namespace

at::Tensor conv2d_fp8_meta(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           ConvOptions o) {
  const Geometry g = geometry_of(input, weight, bias, o);
  return at::empty({g.batch, g.c_out, g.out_h, g.out_w}, input.options().dtype(o.out_dtype));
}

at::Tensor conv2d_fp8(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                      ConvOptions o) {
  LeafScope leaf("hpu::conv2d_fp8", input, weight);
  const kernels::Dialect dialect = device_dialect("conv2d_fp8");  // refuses the first generation
  const Geometry g = geometry_of(input, weight, bias, o);
  const CodesReader by_rows(weight);
  const at::Tensor x = input.view(at::kByte).contiguous(), w = weight.view(at::kByte).contiguous();
  const at::Tensor patches = at::empty({g.pixels(), g.patch()}, x.options());
  const at::Tensor rows = at::empty({g.batch, g.pixels(), g.c_out}, input.options().dtype(o.out_dtype));
  const at::Tensor b = bias.has_value() && bias->defined() ? bias->contiguous() : at::Tensor();
  const std::int64_t per_group = g.c_out / g.groups;
  for (std::int64_t image = 0; image < g.batch; ++image) {
    for (std::int64_t group = 0; group < g.groups; ++group) {
      im2col(bytes(x) + image * g.c_in * g.h * g.w, g, group, static_cast<std::uint8_t*>(patches.mutable_data_ptr()));
      kernels::GemmArgs p;
      p.m = g.pixels();
      p.n = per_group;
      p.k = g.patch();
      p.a = patches.const_data_ptr();
      p.a_type = storage_of(input.scalar_type());
      p.a_stride = p.k;
      p.w = bytes(w) + group * per_group * p.k;
      p.w_format = format_of(weight.scalar_type());
      p.a_scale_inv = o.scale_input.none() ? nullptr : o.scale_input.values.data();
      const bool per_channel = o.scale_weight.values.size() > 1;
      p.w_scale_inv =
          o.scale_weight.none() ? nullptr : o.scale_weight.values.data() + (per_channel ? group * per_group : 0);
      p.w_scale_stride = per_channel ? 1 : 0;
      if (b.defined()) {
        p.bias = static_cast<const char*>(b.const_data_ptr()) + group * per_group * b.element_size();
        p.bias_type = float_type_of(b.scalar_type());
      }
      p.y = static_cast<char*>(rows.mutable_data_ptr()) +
            (image * g.pixels() * g.c_out + group * per_group) * rows.element_size();
      p.y_type = float_type_of(o.out_dtype);
      p.y_stride = g.c_out;
      p.dialect = dialect;
      kernels::gemm(p);
    }
  }
  at::Tensor y = rows.view({g.batch, g.out_h, g.out_w, g.c_out}).permute({0, 3, 1, 2}).contiguous();
  leaf.gives(y);
  return y;
}

}  // namespace fp8::runtime::ops
