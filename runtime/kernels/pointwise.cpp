// SPDX-License-Identifier: Apache-2.0
// Checks around the loops of pointwise_simd.cpp.
#include "fp8/runtime/kernels/pointwise.h"

#include <stdexcept>

#include "fp8/runtime/kernels/pointwise_kernels.h"

namespace fp8::kernels {
namespace {

template <class T>
bool run(const PointwiseArgs& args) {
  const auto& kernel = pointwise_kernels_in_force<T>().of[static_cast<int>(args.op)];
  const auto *a = static_cast<const T*>(args.a), *b = static_cast<const T*>(args.b);
  auto* y = static_cast<T*>(args.y);
  const bool in_place = args.y == args.a || args.y == args.b;
  if (b == nullptr) {
    if (in_place && !kernel.check_number(a, args.number, y, args.n)) return false;
    return kernel.number(a, args.number, y, args.n);
  }
  if (in_place && !kernel.check_arrays(a, b, y, args.n)) return false;
  return kernel.arrays(a, b, y, args.n);
}

}  // namespace

bool pointwise(const PointwiseArgs& args) {
  if (args.type != FloatType::BF16 && args.type != FloatType::F32)
    throw std::invalid_argument("pointwise: type must be BF16 or F32");
  if (args.n < 0) throw std::invalid_argument("pointwise: n must not be negative");
  if (args.n == 0) return true;
  if (args.a == nullptr || args.y == nullptr) throw std::invalid_argument("pointwise: a and y must not be null");
  return args.type == FloatType::BF16 ? run<std::uint16_t>(args) : run<float>(args);
}

void widen(const std::uint16_t* x, float* y, std::int64_t n) { convert_kernels_in_force().widen(x, y, n); }
bool narrow(const float* x, std::uint16_t* y, std::int64_t n) { return convert_kernels_in_force().narrow(x, y, n); }

}  // namespace fp8::kernels
