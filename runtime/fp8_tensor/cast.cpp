// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/fp8_tensor/cast.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

bool rows_are_contiguous(const at::Tensor& t) {
  return t.is_contiguous() || (t.dim() == 2 && t.stride(1) == 1 && t.stride(0) >= t.size(1));
}

/// x as the kernels read it, checked.
at::Tensor readable(const at::Tensor& x) {
  check_high_precision("quantize", "x of dtype", x.scalar_type());
  TORCH_CHECK(x.device().is_cpu() || x.device().is_hpu(), "[quantize] expected a tensor on hpu or cpu, got ",
              x.device());
  return rows_are_contiguous(x) ? x : x.detach().contiguous();
}

std::uint8_t* bytes_of(const at::Tensor& codes) { return static_cast<std::uint8_t*>(codes.mutable_data_ptr()); }

/// One cast, whose codes are wanted in rows and transposed.
bool in_both_layouts(const CastSpec& first, const CastSpec& second) {
  return first.transpose != second.transpose && first.same_codes(second);
}

/// x: readable(). codes: of its sizes, as the spec has them lie.
kernels::CastArgs arguments(const at::Tensor& x, const CastSpec& spec, const at::Tensor& codes) {
  kernels::CastArgs args{spec};
  args.x = x.const_data_ptr();
  args.type = float_type_of(x.scalar_type());
  args.cols = x.dim() == 0 ? 1 : x.size(-1);
  args.rows = args.cols == 0 ? 0 : x.numel() / args.cols;
  args.row_stride = x.dim() == 2 ? x.stride(0) : args.cols;
  if (args.row_stride < args.cols) args.row_stride = args.cols;  // of at most one row
  (spec.transpose ? args.transposed : args.codes) = bytes_of(codes);
  return args;
}

/// Rows and groups of a row keep the dimensions of x.
at::Tensor room_for_grid(const at::Tensor& x, const CastSpec& spec) {
  const ScaleLayout& l = spec.layout;
  auto sizes = x.sizes().vec();
  if (l.rows > 1) sizes[sizes.size() - 2] = kernels::blocks_of(x.size(-2), l.rows);
  if (!sizes.empty()) sizes.back() = l.cols == 0 ? 1 : kernels::blocks_of(x.size(-1), l.cols);
  return at::empty(sizes, x.options().dtype(spec.rule == ScaleRule::e8m0 ? at::kFloat8_e8m0fnu : at::kFloat));
}

/// A scale that is not finite makes NaN of all that it scales.
float nan_unless_finite(float scale_inv) {
  return std::isfinite(scale_inv) ? scale_inv : std::numeric_limits<float>::quiet_NaN();
}

void check_layout(const at::Tensor& x, const CastSpec& spec) {
  const ScaleLayout& l = spec.layout;
  TORCH_CHECK(!spec.transpose || (x.dim() == 2 && spec.rule == ScaleRule::given),
              "[quantize] expected a matrix and given scales for codes that lie column by column, got sizes ",
              x.sizes());
  TORCH_CHECK(l.rows >= 0 && l.cols >= 0 && l.first_row == 0, "[quantize] expected blocks of at least 1 x 1, got ",
              l.rows, " x ", l.cols);
  if (l.has_blocks()) {
    TORCH_CHECK(x.dim() == 2 || (x.dim() >= 1 && l.rows == 1), "[quantize] expected a matrix for blocks of ", l.rows,
                " x ", l.cols, ", got sizes ", x.sizes());
    TORCH_CHECK(spec.rule != ScaleRule::given, "[quantize] expected a rule for the scales of blocks");
    TORCH_CHECK(spec.rule != ScaleRule::e8m0 || l == ScaleLayout::blocks(1, kernels::kMxBlock) ||
                    l == ScaleLayout::blocks(kernels::kMxBlock, 1),
                "[quantize] expected MX blocks of 1 x 32 or 32 x 1, got ", l.rows, " x ", l.cols);
    return;
  }
  TORCH_CHECK(spec.rule == ScaleRule::given || (spec.rule == ScaleRule::amax_over_max && l.cols == 0),
              "[quantize] expected blocks for this rule, got scales over ", l.rows, " x ", l.cols);
  TORCH_CHECK(spec.rule != ScaleRule::given || l.one() || spec.scales != nullptr,
              "[quantize] expected the scales of rows or columns");
}

/// Room for the codes of quantize(x, spec) and for the scales that it makes.
Fp8Tensor room_for_cast(const at::Tensor& x, const CastSpec& spec) {
  const at::TensorOptions options = x.options().dtype(dtype_of(spec.format));
  Fp8Tensor out;
  out.codes = spec.transpose ? at::empty_strided(x.sizes(), {1, x.size(0)}, options) : at::empty(x.sizes(), options);
  out.layout = spec.layout;
  if (spec.rule == ScaleRule::given) {
    out.scale_inv = spec.scale_inv;
  } else if (!spec.layout.one()) {
    out.grid = room_for_grid(x, spec);
    out.power_of_two = spec.power_of_two || spec.rule == ScaleRule::e8m0;
  }
  return out;
}

/// What is to be done when both are written.
void finish_cast(const CastSpec& spec, const Fp8Tensor& result) {
  if (spec.rule != ScaleRule::amax_over_max || !result.grid.defined()) return;
  auto* scale_inv = result.grid.mutable_data_ptr<float>();
  std::transform(scale_inv, scale_inv + result.grid.numel(), scale_inv, nan_unless_finite);
}

Fp8Tensor quantized(const at::Tensor& input, const CastSpec& spec) {
  const at::Tensor x = readable(input);
  check_layout(x, spec);
  Fp8Tensor out = room_for_cast(x, spec);
  kernels::CastArgs args = arguments(x, spec, out.codes);
  if (spec.rule == ScaleRule::e8m0) {
    args.e8m0 = static_cast<std::uint8_t*>(out.grid.mutable_data_ptr());
  } else if (out.grid.defined()) {
    args.grid = out.grid.mutable_data_ptr<float>();
  } else if (spec.rule != ScaleRule::given) {
    out.scale_inv = nan_unless_finite(kernels::block_scale_inv(amax_of(x), spec.saturation(), false));
    args.rule = ScaleRule::given, args.scale = 1.0f / out.scale_inv;
  }
  kernels::cast(args);
  finish_cast(spec, out);
  return out;
}

}  // namespace

Fp8Tensor quantize(const at::Tensor& x, const CastSpec& spec) {
  OpScope leaf("fp8::quantize", x);
  Fp8Tensor y = quantized(x, spec);
  leaf.gives(y.codes, y.grid);
  note_cast(leaf, x, {{y.codes, spec.saturation()}});
  return y;
}

std::pair<Fp8Tensor, Fp8Tensor> quantize_both(const at::Tensor& input, const CastSpec& first, const CastSpec& second) {
  const bool one_cast = in_both_layouts(first, second);
  OpScope leaf(one_cast ? "fp8::quantize" : "fp8::quantize_both", input);
  if (first.rule != ScaleRule::given || second.rule != ScaleRule::given || !first.layout.one() ||
      !second.layout.one()) {
    std::pair<Fp8Tensor, Fp8Tensor> each{quantized(input, first), quantized(input, second)};
    leaf.gives(each.first.codes, each.second.codes);
    note_cast(leaf, input, {{each.first.codes, first.saturation()}, {each.second.codes, second.saturation()}});
    return each;
  }
  const at::Tensor x = readable(input);
  check_layout(x, first), check_layout(x, second);
  std::pair<Fp8Tensor, Fp8Tensor> both{room_for_cast(x, first), room_for_cast(x, second)};
  cast_into(x, first, both.first.codes, second, both.second.codes);
  leaf.gives(both.first.codes, both.second.codes);
  const CastResult one{both.first.codes, first.saturation()}, other{both.second.codes, second.saturation()};
  one_cast ? note_cast(leaf, x, {one}) : note_cast(leaf, x, {one, other});
  return both;
}

void cast_into(const at::Tensor& input, const CastSpec& spec, const at::Tensor& out) {
  const at::Tensor x = readable(input);
  kernels::cast_to_fp8(arguments(x, spec, out));
}

void cast_into(const at::Tensor& input, const CastSpec& first, const at::Tensor& out, const CastSpec& second,
               const at::Tensor& second_out) {
  const at::Tensor x = readable(input);
  kernels::CastArgs args = arguments(x, first, out);
  if (in_both_layouts(first, second)) {
    (first.transpose ? args.codes : args.transposed) = bytes_of(second_out);
    return kernels::cast_to_fp8(args);
  }
  kernels::cast_to_fp8_twice(args, arguments(x, second, second_out));
}

float amax_of(const at::Tensor& input) {
  const at::Tensor x = input.is_contiguous() ? input : input.detach().contiguous();
  return kernels::amax(cpu_alias(x).const_data_ptr(), float_type_of(x.scalar_type()), x.numel());
}

namespace {

double saturated(const at::Tensor& codes, float max) {
  const bool narrow = codes.scalar_type() == at::kFloat8_e4m3fn;
  const std::uint8_t largest = narrow ? c10::Float8_e4m3fn(max).x : c10::Float8_e5m2(max).x;
  const std::uint8_t infinite = narrow ? largest : std::uint8_t{0x7c};
  const auto* first = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  const auto count = std::count_if(first, first + codes.numel(), [=](std::uint8_t code) {
    const auto magnitude = static_cast<std::uint8_t>(code & 0x7f);
    return magnitude == largest || magnitude == infinite;
  });
  return static_cast<double>(count) / static_cast<double>(codes.numel());
}

}  // namespace

void note_cast(LeafScope& leaf, const at::Tensor& x, std::initializer_list<CastResult> results) {
  if (!leaves_heard() || !leaf.wants_numbers() || x.numel() == 0) return;
  constexpr std::array<const char*, 2> kNames = {"saturated", "saturated_2"};
  TORCH_INTERNAL_ASSERT(results.size() <= kNames.size());
  leaf.note("amax", amax_of(x));
  const char* const* name = kNames.begin();
  for (const auto& [codes, max] : results) leaf.note(*name++, saturated(codes, max));
}

namespace {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;

/// The casts and the amax of one tensor at one version; hangs on its Block.
struct Known final : c10::intrusive_ptr_target {
  struct Cast {
    CastSpec spec;
    at::ScalarType from;
    Fp8Tensor result;
  };

  std::mutex mutex;
  WeakTensor tensor{c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>()};
  std::uint32_t version = 0;
  std::vector<Cast> casts;
  std::optional<float> amax;
  at::ScalarType amax_from = at::kFloat;

  /// Forgets what is not of x as it is now.
  void turn_to(const at::Tensor& x) {
    const std::uint32_t now = x.unsafeGetTensorImpl()->version_counter().current_version();
    if (version == now && !tensor.expired() && tensor._unsafe_get_target() == x.unsafeGetTensorImpl()) return;
    tensor = WeakTensor(x.getIntrusivePtr());
    version = now;
    casts.clear();
    amax.reset();
  }

  const Fp8Tensor* find(const at::Tensor& values, const CastSpec& spec) const {
    for (const Cast& cast : casts) {
      if (cast.from == values.scalar_type() && cast.spec.same_result(spec) &&
          cast.result.codes.sizes() == values.sizes())
        return &cast.result;
    }
    return nullptr;
  }
  /// False where the cast must run for its amax.
  bool tell_amax(const at::Tensor& values, const CastSpec& spec) const {
    if (spec.amax == nullptr) return true;
    if (!amax.has_value() || amax_from != values.scalar_type()) return false;
    *spec.amax = *amax;
    return true;
  }

  void keep(const at::Tensor& values, CastSpec spec, const Fp8Tensor& result) {
    constexpr std::size_t kMost = 4;  // two formats, along rows and columns
    if (spec.amax != nullptr) keep_amax(values, *spec.amax);
    if (find(values, spec) != nullptr) return;
    if (casts.size() == kMost) casts.erase(casts.begin());
    spec.amax = nullptr;
    casts.push_back({spec, values.scalar_type(), result});
  }
  void keep_amax(const at::Tensor& values, float value) {
    amax = value;
    amax_from = values.scalar_type();
  }
};

/// Null where casts of x can't be kept: it has no version or no Block, or is a weight.
Block* block_to_keep_in(const at::Tensor& x) {
  Block* block = x.is_inference() ? nullptr : block_of(x);
  return block == nullptr || block->tag ? nullptr : block;  // a weight: its owner casts it
}

c10::intrusive_ptr<Known> known_of(const at::Tensor& x) {
  Block* block = block_to_keep_in(x);
  if (block == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(block->casts_mutex);
  if (!block->casts) block->casts = c10::make_intrusive<Known>();
  return c10::static_intrusive_pointer_cast<Known>(block->casts);
}

bool may_be_kept(const CastSpec& spec) { return !spec.stochastic.has_value() && spec.scales == nullptr; }

}  // namespace

// Casts run outside of the lock: profilers may call back from them.
Fp8Tensor cast_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& spec) {
  const auto known = may_be_kept(spec) ? known_of(x) : nullptr;
  if (known == nullptr) return quantize(values, spec);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    const Fp8Tensor* found = known->find(values, spec);
    if (found != nullptr && known->tell_amax(values, spec)) return *found;
  }
  const OrdinaryTensors kept;
  const Fp8Tensor result = quantize(values, spec);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(values, spec, result);
  return result;
}

void keep_cast(const at::Tensor& x, const CastSpec& spec, const Fp8Tensor& result) {
  const auto known = may_be_kept(spec) && !result.codes.is_inference() ? known_of(x) : nullptr;
  if (known == nullptr) return;
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(x, spec, result);
}

std::pair<Fp8Tensor, Fp8Tensor> cast_both_once(const at::Tensor& x, const at::Tensor& values, const CastSpec& first,
                                               const CastSpec& second) {
  const auto known = may_be_kept(first) && may_be_kept(second) ? known_of(x) : nullptr;
  if (known == nullptr) return quantize_both(values, first, second);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    const Fp8Tensor *one = known->find(values, first), *other = known->find(values, second);
    if (one != nullptr && other != nullptr && known->tell_amax(values, first)) return {*one, *other};
  }
  const OrdinaryTensors kept;
  auto both = quantize_both(values, first, second);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep(values, first, both.first);
  known->keep(values, second, both.second);
  return both;
}

float amax_once(const at::Tensor& x, const at::Tensor& values) {
  const auto known = known_of(x);
  if (known == nullptr) return amax_of(values);
  {
    const std::lock_guard<std::mutex> lock(known->mutex);
    known->turn_to(x);
    if (known->amax.has_value() && known->amax_from == values.scalar_type()) return *known->amax;
  }
  const float amax = amax_of(values);
  const std::lock_guard<std::mutex> lock(known->mutex);
  known->turn_to(x);
  known->keep_amax(values, amax);
  return amax;
}

namespace {

bool is_of_rows(const CastSpec& spec) {
  if (spec.stochastic.has_value() || spec.amax != nullptr || spec.transpose) return false;
  if (spec.rule == ScaleRule::given) return spec.layout.one();
  return spec.rule == ScaleRule::amax_over_max && spec.layout == ScaleLayout::per_row();
}

}  // namespace

CastBeside::CastBeside(const at::Tensor& y, const NextCast& next) : y_(y) {
  if (!next.has_value() || !is_of_rows(*next) || y.dim() == 0 || y.numel() == 0 || block_to_keep_in(y) == nullptr)
    return;
  spec_ = &*next;
  result_ = room_for_cast(y, *next);
}

kernels::CastArgs CastBeside::rows() const {
  if (spec_ == nullptr) return {};
  kernels::CastArgs cast{*spec_};
  cast.codes = static_cast<std::uint8_t*>(result_.codes.mutable_data_ptr());
  if (result_.grid.defined()) cast.grid = result_.grid.mutable_data_ptr<float>();
  return cast;
}

void CastBeside::keep() const {
  if (spec_ == nullptr) return;
  finish_cast(*spec_, result_);
  keep_cast(y_, *spec_, result_);
}

}  // namespace fp8::runtime
