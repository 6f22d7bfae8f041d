// SPDX-License-Identifier: Apache-2.0
// Tensors, types and threads around simd_kernels.h. Fp8 moments take two passes, because the new scale needs the
// largest of all new values: the first updates the weight and takes the maximum, the second computes the same moment
// again from what memory still holds and casts it. That costs one more read of the gradient and no memory.
#include "fp8/runtime/kernels/optim.h"

#include <algorithm>
#include <cstring>

#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/highway/simd_kernels.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::kernels {
namespace {

constexpr std::int64_t kGrain = 16;  // chunks per range
constexpr int kSlots = 5;

void require(bool ok, const char* what, const char* rule) {
  if (!ok) throw std::invalid_argument(std::string(what) + ": " + rule);
}

void check(const char* what, const Array& a, std::int64_t n, bool fp8_allowed = false) {
  require(a.n >= 0 && a.n == n, what, "all arrays of a tensor must have the same length, not negative");
  require(n == 0 || a.data != nullptr, what, "data must not be null for a non-empty array");
  require(fp8_allowed || !is_fp8(a.type), what, "an array is fp8, allowed are F32, BF16 and F16");
}

Format format_of(Storage type) { return type == Storage::E4M3 ? Format::E4M3 : Format::E5M2; }

/// The chunks of all tensors in a row.
class Chunks {
 public:
  explicit Chunks(std::size_t tensors) { first_.reserve(tensors + 1); }
  void add(std::int64_t n) {
    first_.push_back(first_.back() + (n + kOptimChunk - 1) / kOptimChunk), sizes_.push_back(n);
  }
  std::size_t count() const { return static_cast<std::size_t>(first_.back()); }

  /// body(tensor, chunk, begin, n, scratch) for every chunk; `chunk` counts over all tensors.
  template <class Body>
  void run(const Body& body) const {
    parallel_for(first_.back(), kGrain, [&](std::int64_t from, std::int64_t to) {
      const std::unique_ptr<float[]> scratch(new float[kSlots * kOptimChunk]);
      auto tensor = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), from) - first_.begin()) - 1;
      for (std::int64_t chunk = from; chunk < to; ++chunk) {
        while (chunk >= first_[tensor + 1]) ++tensor;
        const std::int64_t begin = (chunk - first_[tensor]) * kOptimChunk;
        body(tensor, static_cast<std::size_t>(chunk), begin, std::min(kOptimChunk, sizes_[tensor] - begin),
             scratch.get());
      }
    });
  }

  /// of[chunk] folded over each tensor's chunks in order.
  template <class T, class Fold>
  T fold(std::size_t tensor, const std::vector<T>& of, const Fold& add) const {
    T result{};
    for (std::int64_t c = first_[tensor]; c < first_[tensor + 1]; ++c)
      result = add(result, of[static_cast<std::size_t>(c)]);
    return result;
  }

 private:
  std::vector<std::int64_t> first_{0}, sizes_;
};

/// Elements [begin, begin + n) in f32: the array itself, or `slot` after conversion.
float* load(const OptimKernels& k, const Array& a, std::int64_t begin, std::int64_t n, float* slot, float scale_inv = 1,
            Dialect dialect = Dialect::ocp) {
  if (a.type == Storage::F32) return static_cast<float*>(a.data) + begin;
  if (a.type == Storage::BF16) {
    k.widen(static_cast<const std::uint16_t*>(a.data) + begin, slot, n);
    return slot;
  }
  if (a.type == Storage::F16) {
    const auto* bits = static_cast<const std::uint16_t*>(a.data) + begin;
    for (std::int64_t i = 0; i < n; ++i) slot[i] = f16_to_f32(bits[i]);
    return slot;
  }
  DecodeArgs args;
  args.codes = static_cast<const std::uint8_t*>(a.data) + begin;
  args.rows = 1;
  args.cols = n;
  args.format = format_of(a.type);
  args.y = slot;
  args.scale_inv = &scale_inv;
  args.dialect = dialect;
  decode_from_fp8(args);
  return slot;
}

/// Writes what load() gave back to a bf16 or f16 array.
void store(const OptimKernels& k, const Array& a, std::int64_t begin, std::int64_t n, const float* values) {
  if (a.type == Storage::F16) {
    auto* bits = static_cast<std::uint16_t*>(a.data) + begin;
    for (std::int64_t i = 0; i < n; ++i) bits[i] = f32_to_f16(values[i]);
  }
  if (a.type == Storage::BF16) k.narrow(values, static_cast<std::uint16_t*>(a.data) + begin, n);
}

/// One of the two moments of a tensor.
struct Moment {
  Array array;
  float* scale = nullptr;
  float new_scale = 1;
  float scale_inv() const { return scale != nullptr ? 1 / *scale : 1; }
};

Moment moment_of(const Array& array, float* scale, std::int64_t n) {
  check("adam_step", array, n, true);
  if (!is_fp8(array.type)) return {array};
  require(scale != nullptr && *scale > 0 && std::isfinite(*scale), "adam_step",
          "an fp8 moment needs a scale that is a positive number");
  return {array, scale, *scale};
}

std::uint32_t magnitude_bits(float amax) { return std::bit_cast<std::uint32_t>(amax); }

/// Second pass over the fp8 moments of one chunk.
void cast_moments(const OptimKernels& k, const AdamTensor& t, const Moment (&moments)[2], Dialect dialect,
                  std::int64_t begin, std::int64_t n, float* scratch) {
  const float* grad = load(k, t.grad, begin, n, scratch);
  for (int which = 0; which < 2; ++which) {
    const Moment& moment = moments[which];
    if (!is_fp8(moment.array.type)) continue;
    float* values = load(k, moment.array, begin, n, scratch + kOptimChunk, moment.scale_inv(), dialect);
    if (which == 0) k.scale_add(values, grad, n, t.factors.beta1, t.factors.rest1);
    if (which == 1) k.scale_add_square(values, grad, n, t.factors.beta2, t.factors.rest2);
    const Format format = format_of(moment.array.type);
    CastArgs args = dense_cast(values, 1, n, static_cast<std::uint8_t*>(moment.array.data) + begin, format,
                               fp8_max(format, dialect), &moment.new_scale);
    args.stochastic = mix(t.seed ^ mix(static_cast<std::uint64_t>(begin) * 2 + static_cast<std::uint64_t>(which) + 1));
    cast_to_fp8(args);
  }
}

struct Both {
  Moment moments[2];
  bool fp8 = false;
};

/// The new scale of each fp8 moment, from the maxima of its chunks. As bits NaN is above infinity and that above all
/// numbers.
void choose_scales(const Chunks& chunks, const std::vector<std::uint32_t> (&amax)[2], Dialect dialect,
                   std::vector<Both>& all) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int which = 0; which < 2; ++which) {
      Moment& moment = all[i].moments[which];
      if (!is_fp8(moment.array.type)) continue;
      const auto bits = chunks.fold(i, amax[which], [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
      moment.new_scale = moment_scale(std::bit_cast<float>(bits), format_of(moment.array.type), dialect, *moment.scale);
    }
  }
}

}  // namespace

float moment_scale(float amax, Format format, Dialect dialect, float old) {
  if (!(amax > 0) || !std::isfinite(amax)) return old;
  const int exponent = std::ilogb(static_cast<double>(fp8_max(format, dialect)) / amax);  // floor of the logarithm
  return std::ldexp(1.0f, std::clamp(exponent, -126, 126));
}

void scale_add(std::span<const ScaleAdd> work) {
  Chunks chunks(work.size());
  for (const ScaleAdd& t : work) {
    check("scale_add", t.y, t.y.n);
    if (t.x.data != nullptr) check("scale_add", t.x, t.y.n);
    chunks.add(t.y.n);
  }
  const OptimKernels& k = optim_kernels_in_force();
  chunks.run([&](std::size_t i, std::size_t, std::int64_t begin, std::int64_t n, float* scratch) {
    const ScaleAdd& t = work[i];
    float* y = load(k, t.y, begin, n, scratch);
    if (t.x.data == nullptr) {
      k.scale(y, n, t.a);
    } else {
      k.scale_add(y, load(k, t.x, begin, n, scratch + kOptimChunk), n, t.a, t.b);
    }
    store(k, t.y, begin, n, y);
  });
}

void sums_of_squares(std::span<const Array> x, double* out) {
  require(x.empty() || out != nullptr, "sums_of_squares", "out must not be null");
  Chunks chunks(x.size());
  for (const Array& a : x) check("sums_of_squares", a, a.n), chunks.add(a.n);
  std::vector<double> sums(chunks.count());
  const OptimKernels& k = optim_kernels_in_force();
  chunks.run([&](std::size_t i, std::size_t chunk, std::int64_t begin, std::int64_t n, float* scratch) {
    sums[chunk] = k.sum_of_squares(load(k, x[i], begin, n, scratch), n);
  });
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = chunks.fold(i, sums, [](double a, double b) { return a + b; });
}

namespace {

/// Adam on one chunk, straight on the arrays where all are f32 or bf16, weight and gradient of one type, and both
/// moments.
bool adam_in_place(const OptimKernels& k, const AdamTensor& t, std::int64_t begin, std::int64_t n) {
  const auto direct = [](const Array& a) { return a.type == Storage::F32 || a.type == Storage::BF16; };
  if (t.weight.type != t.grad.type || t.m.type != t.v.type || !direct(t.weight) || !direct(t.m)) return false;
  const bool low_weight = t.weight.type == Storage::BF16, low_moment = t.m.type == Storage::BF16;
  const auto at = [begin](const Array& a, bool low) { return static_cast<char*>(a.data) + begin * (low ? 2 : 4); };
  k.adam[low_weight][low_moment](at(t.weight, low_weight), at(t.grad, low_weight), at(t.m, low_moment),
                                 at(t.v, low_moment), n, t.factors);
  return true;
}

}  // namespace

void adam_step(std::span<const AdamTensor> work, Dialect dialect) {
  Chunks chunks(work.size());
  std::vector<Both> all(work.size());
  bool any_fp8 = false;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const AdamTensor& t = work[i];
    check("adam_step", t.weight, t.weight.n);
    check("adam_step", t.grad, t.weight.n);
    all[i] = {{moment_of(t.m, t.m_scale, t.weight.n), moment_of(t.v, t.v_scale, t.weight.n)}};
    any_fp8 |= all[i].fp8 = is_fp8(t.m.type) || is_fp8(t.v.type);
    chunks.add(t.weight.n);
  }
  const OptimKernels& k = optim_kernels_in_force();
  std::vector<std::uint32_t> amax[2];
  for (auto& values : amax) values.resize(any_fp8 ? chunks.count() : 0);

  chunks.run([&](std::size_t i, std::size_t chunk, std::int64_t begin, std::int64_t n, float* scratch) {
    const AdamTensor& t = work[i];
    if (adam_in_place(k, t, begin, n)) return;
    float* weight = load(k, t.weight, begin, n, scratch);
    const float* grad = load(k, t.grad, begin, n, scratch + kOptimChunk);
    float* moment[2];
    for (int which = 0; which < 2; ++which) {
      const Moment& of = all[i].moments[which];
      moment[which] = load(k, of.array, begin, n, scratch + (2 + which) * kOptimChunk, of.scale_inv(), dialect);
    }
    k.adam[0][0](weight, grad, moment[0], moment[1], n, t.factors);
    store(k, t.weight, begin, n, weight);
    for (int which = 0; which < 2; ++which) {
      const Array& array = all[i].moments[which].array;
      store(k, array, begin, n, moment[which]);
      if (is_fp8(array.type)) {
        amax[which][chunk] = magnitude_bits(kernels::amax(moment[which], FloatType::F32, n));
      }
    }
  });
  if (!any_fp8) return;

  choose_scales(chunks, amax, dialect, all);
  chunks.run([&](std::size_t i, std::size_t, std::int64_t begin, std::int64_t n, float* scratch) {
    if (all[i].fp8) cast_moments(k, work[i], all[i].moments, dialect, begin, n, scratch);
  });
  for (const Both& both : all) {
    for (const Moment& moment : both.moments) {
      if (moment.scale != nullptr) *moment.scale = moment.new_scale;
    }
  }
}

void sgd_step(std::span<const SgdTensor> work) {
  Chunks chunks(work.size());
  for (const SgdTensor& t : work) {
    check("sgd_step", t.weight, t.weight.n);
    check("sgd_step", t.grad, t.weight.n);
    if (t.buffer.data != nullptr) check("sgd_step", t.buffer, t.weight.n);
    chunks.add(t.weight.n);
  }
  const OptimKernels& k = optim_kernels_in_force();
  chunks.run([&](std::size_t i, std::size_t, std::int64_t begin, std::int64_t n, float* scratch) {
    const SgdTensor& t = work[i];
    const auto bytes = static_cast<std::size_t>(n) * sizeof(float);
    float* weight = load(k, t.weight, begin, n, scratch);
    const float* grad = load(k, t.grad, begin, n, scratch + kOptimChunk);
    float* d = scratch + 2 * kOptimChunk;
    std::memcpy(d, grad, bytes);
    if (t.weight_decay != 0) k.scale_add(d, weight, n, 1, t.weight_decay);
    if (t.buffer.data != nullptr) {
      float* buffer = load(k, t.buffer, begin, n, scratch + 3 * kOptimChunk);
      if (t.first) {
        std::memcpy(buffer, d, bytes);
      } else {
        k.scale_add(buffer, d, n, t.momentum, t.rest);
      }
      store(k, t.buffer, begin, n, buffer);
      if (t.nesterov) {
        k.scale_add(d, buffer, n, 1, t.momentum);
      } else {
        std::memcpy(d, buffer, bytes);
      }
    }
    k.scale_add(weight, d, n, 1, t.neg_lr);
    store(k, t.weight, begin, n, weight);
  });
}

void lamb_direction(std::span<const LambTensor> work, double (*squares)[2]) {
  require(work.empty() || squares != nullptr, "lamb_direction", "squares must not be null");
  Chunks chunks(work.size());
  for (const LambTensor& t : work) {
    for (const Array* a : {&t.weight, &t.grad, &t.m, &t.v, &t.step}) check("lamb_direction", *a, t.weight.n);
    chunks.add(t.weight.n);
  }
  const OptimKernels& k = optim_kernels_in_force();
  std::vector<double> sums[2] = {std::vector<double>(chunks.count()), std::vector<double>(chunks.count())};
  chunks.run([&](std::size_t i, std::size_t chunk, std::int64_t begin, std::int64_t n, float* scratch) {
    const LambTensor& t = work[i];
    const float* weight = load(k, t.weight, begin, n, scratch);
    const float* grad = load(k, t.grad, begin, n, scratch + kOptimChunk);
    float *m = load(k, t.m, begin, n, scratch + 2 * kOptimChunk),
          *v = load(k, t.v, begin, n, scratch + 3 * kOptimChunk);
    float* step = load(k, t.step, begin, n, scratch + 4 * kOptimChunk);
    if (t.clip != 1) {
      for (std::int64_t j = 0; j < n; ++j) scratch[kOptimChunk + j] = grad[j] / t.clip;
      grad = scratch + kOptimChunk;
    }
    k.scale_add(m, grad, n, t.beta1, t.beta3);
    k.scale_add_square(v, grad, n, t.beta2, t.rest2);
    k.lamb(step, m, v, weight, n, t);
    sums[0][chunk] = k.sum_of_squares(weight, n);
    sums[1][chunk] = k.sum_of_squares(step, n);
    store(k, t.m, begin, n, m);
    store(k, t.v, begin, n, v);
    store(k, t.step, begin, n, step);
  });
  for (std::size_t i = 0; i < work.size(); ++i) {
    for (int which = 0; which < 2; ++which) {
      squares[i][which] = chunks.fold(i, sums[which], [](double a, double b) { return a + b; });
    }
  }
}

}  // namespace fp8::kernels
