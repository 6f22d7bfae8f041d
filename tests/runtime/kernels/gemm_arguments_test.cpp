// SPDX-License-Identifier: Apache-2.0
// gemm's arguments: it reads and writes nothing beside the operands that they name, and wrong ones are refused by the
// name of their field.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "fp8/runtime/kernels/gemm.h"
#include "fp8/runtime/kernels/simd.h"
#include "runtime/kernels/gemm_problem.h"
#include "runtime/kernels/kernel_test.h"

namespace fp8::kernels {
namespace {

using test::levels;
using test::Problem;

// Every operand and y end where readable memory ends (masked vector loads escape a sanitizer, not this).
TEST(Gemm, StaysWithinItsBuffers) {
  using Guarded = test::GuardedBuffer<std::uint8_t>;
  for (const SimdLevel level : levels()) {
    const ScopedSimdLevel scoped(level);
    for (const std::int64_t m : {1, 5, 17, 35})
      for (const std::int64_t n : {1, 15, 17, 66})
        for (const std::int64_t k : {1, 5, 61, 67, 257}) {
          Problem p;
          p.m = m, p.n = n, p.k = k;
          p.a_type = static_cast<Storage>(k % 5), p.y_type = static_cast<FloatType>(n % 3), p.w_channels = true,
          p.has_bias = true;
          p.fill(2);
          p.a_scale = {0x1p-12f};
          const auto guard = [](Guarded& buffer, const void* from, std::size_t bytes) {
            std::memcpy(buffer.data(), from, bytes);
          };
          Guarded a(p.a.size()), w(p.w.size()), packed(p.packed.size()), bias(p.bias.size()),
              scale(p.w_scale.size() * 4), y(p.y0.size());
          guard(a, p.a.data(), p.a.size());
          guard(w, p.w.data(), p.w.size());
          guard(packed, p.packed.data(), p.packed.size());
          guard(bias, p.bias.data(), p.bias.size());
          guard(scale, p.w_scale.data(), p.w_scale.size() * 4);
          for (const Layout layout : {Layout::packed, Layout::row_major}) {
            GemmArgs args = p.args(layout, p.y0);
            args.a = a.data(), args.w = layout == Layout::packed ? packed.data() : w.data(), args.bias = bias.data();
            args.w_scale_inv = reinterpret_cast<const float*>(scale.data()), args.y = y.data();
            gemm(args);
            p.check(std::vector<std::uint8_t>(y.data(), y.data() + p.y0.size()), name_of(level));
            if (HasFatalFailure()) return;
          }
        }
  }
}

TEST(Gemm, WrongArgumentsNameTheField) {
  Problem p;
  p.m = 2, p.n = 3, p.k = 4;
  p.fill(1);
  std::vector<std::uint8_t> y = p.y0;
  const auto message = [&](auto change) {
    GemmArgs args = p.args(Layout::row_major, y);
    change(args);
    try {
      gemm(args);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([](GemmArgs& g) { g.m = -1; }), "[gemm] m must be >= 0, got -1");
  EXPECT_EQ(message([](GemmArgs& g) { g.a_stride = 3; }), "[gemm] a_stride must be >= k = 4, got 3");
  EXPECT_EQ(message([](GemmArgs& g) { g.y_stride = 2; }), "[gemm] y_stride must be >= n = 3, got 2");
  EXPECT_EQ(message([](GemmArgs& g) { g.w_scale_stride = 2; }), "[gemm] w_scale_stride must be 0 or 1, got 2");
  EXPECT_EQ(message([](GemmArgs& g) { g.w = nullptr; }), "[gemm] w must be a pointer, got null");
  EXPECT_EQ(message([](GemmArgs& g) { g.n = std::numeric_limits<std::int64_t>::max(); }).substr(0, 14),
            "[packed_bytes]");
}

}  // namespace
}  // namespace fp8::kernels
