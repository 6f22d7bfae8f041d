// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/decoder/decoder_math.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <numbers>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/kernels/attention/decoder_math.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {
namespace {

using runtime::CastBeside;
using runtime::cpu_alias;
using runtime::NextCast;
using runtime::run_node;

/// True if our kernels may read these (but those undefined) as arrays of one type in host memory, and no gradient or
/// autocast needs the operations.
bool in_one_pass(std::initializer_list<const at::Tensor*> tensors) {
  const at::Tensor& first = **tensors.begin();
  const auto type = first.scalar_type();
  const auto device = first.device();
  if ((type != at::kBFloat16 && type != at::kFloat) || (!device.is_cpu() && device.type() != at::kHPU) ||
      at::autocast::is_autocast_enabled(device.type()))
    return false;
  for (const at::Tensor* t : tensors) {
    if (!t->defined()) continue;
    if (t->scalar_type() != type || t->device() != device || t->layout() != at::kStrided || t->is_neg() ||
        (t->requires_grad() && at::GradMode::is_enabled()))
      return false;
    const auto* block = runtime::block_of(*t);
    if (!device.is_cpu() && (block == nullptr || block->tag)) return false;
  }
  return true;
}

/// A kernel over the rows of tensors like `x`: its result, whose codes are kept too.
template <class Args>
at::Tensor rows_in_one_pass(void (*kernel)(const Args&), Args args, const at::Tensor& x, const NextCast& next) {
  const at::Tensor y = at::empty(x.sizes(), x.options());
  args.type = runtime::float_type_of(x.scalar_type());
  args.n = x.size(-1), args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  args.y = cpu_alias(y).mutable_data_ptr();
  const CastBeside cast(y, next);
  args.cast = cast.rows();
  kernel(args);
  cast.keep();
  return y;
}

at::Tensor rms_norm_in_one_pass(const at::Tensor& given, const at::Tensor& weight, double eps, RmsNormForm form,
                                const NextCast& next) {
  runtime::OpScope leaf("fp8::rms_norm", given, weight);
  const at::Tensor x = given.contiguous(), from = cpu_alias(x), by = cpu_alias(weight);
  kernels::RmsNormArgs args;
  args.x = from.const_data_ptr(), args.x_stride = x.size(-1);
  args.weight = by.const_data_ptr();
  args.eps = static_cast<float>(eps);
  args.wide = form.wide, args.offset = static_cast<float>(form.offset);
  const at::Tensor y = rows_in_one_pass(kernels::rms_norm, args, x, next);
  leaf.gives(y);
  return y;
}

at::Tensor layer_norm_in_one_pass(const at::Tensor& given, const at::Tensor& weight, const at::Tensor& bias, double eps,
                                  const NextCast& next) {
  runtime::OpScope leaf("fp8::layer_norm", given, weight, bias);
  const at::Tensor x = given.contiguous(), from = cpu_alias(x);
  const at::Tensor by = weight.defined() ? cpu_alias(weight) : weight, plus = bias.defined() ? cpu_alias(bias) : bias;
  kernels::LayerNormArgs args;
  args.x = from.const_data_ptr(), args.x_stride = x.size(-1);
  args.weight = by.defined() ? by.const_data_ptr() : nullptr;
  args.bias = plus.defined() ? plus.const_data_ptr() : nullptr;
  args.eps = static_cast<float>(eps);
  const at::Tensor y = rows_in_one_pass(kernels::layer_norm, args, x, next);
  leaf.gives(y);
  return y;
}

/// Rows of contiguous elements, equally far apart: halves of a projection are.
bool has_even_rows(const at::Tensor& t) {
  if (t.dim() < 2 || t.stride(-1) != 1 || t.stride(-2) < t.size(-1)) return false;
  for (std::int64_t d = 0; d + 2 < t.dim(); ++d)
    if (t.stride(d) != t.stride(d + 1) * t.size(d + 1)) return false;
  return true;
}

at::Tensor silu_mul_in_one_pass(const at::Tensor& gate, const at::Tensor& up, const NextCast& next) {
  runtime::OpScope leaf("fp8::silu_mul", gate, up);
  const at::Tensor left = cpu_alias(gate), right = cpu_alias(up);
  kernels::SiluMulArgs args;
  args.gate = left.const_data_ptr(), args.gate_stride = gate.stride(-2);
  args.up = right.const_data_ptr(), args.up_stride = up.stride(-2);
  const at::Tensor y = rows_in_one_pass(kernels::silu_mul, args, gate, next);
  leaf.gives(y);
  return y;
}

at::Tensor rotate_in_one_pass(const at::Tensor& x, const RotaryAngles& angles) {
  runtime::OpScope leaf("fp8::rotary", x, angles.cos);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  const at::Tensor from = cpu_alias(x), cos = cpu_alias(angles.cos), sin = cpu_alias(angles.sin);
  kernels::RotaryArgs args;
  args.type = runtime::float_type_of(x.scalar_type());
  args.batch = x.size(0), args.heads = x.size(1), args.length = x.size(2), args.width = x.size(3);
  args.x = from.const_data_ptr();
  args.x_batch = x.stride(0), args.x_head = x.stride(1), args.x_length = x.stride(2);
  args.cos = cos.const_data_ptr(), args.sin = sin.const_data_ptr();
  args.angle_batch = angles.cos.size(0) > 1 ? args.length * args.width : 0;
  args.y = cpu_alias(y).mutable_data_ptr();
  kernels::rotary(args);
  leaf.gives(y);
  return y;
}

/// Angles of the positions of x, for all heads, of each sequence or of all.
bool fits(const at::Tensor& x, const RotaryAngles& angles) {
  const std::int64_t batch = angles.cos.dim() == 4 ? angles.cos.size(0) : 0;
  const std::int64_t sizes[] = {batch, 1, x.size(2), x.size(3)};
  return (batch == 1 || batch == x.size(0)) && angles.cos.sizes() == at::IntArrayRef(sizes) &&
         angles.sin.sizes() == angles.cos.sizes() && angles.cos.is_contiguous() && angles.sin.is_contiguous();
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form, const NextCast& next) {
  if (in_one_pass({&x, &weight}) && x.dim() > 0 && weight.is_contiguous() && weight.numel() == x.size(-1))
    return run_node("fp8::rms_norm", std::array{x, weight},
                    [=](at::TensorList t) { return rms_norm_in_one_pass(t[0], t[1], eps, form, next); });
  return rms_norm_by_operations(x, weight, eps, form);
}

at::Tensor rms_norm_by_operations(const at::Tensor& x, const at::Tensor& weight, double eps, RmsNormForm form) {
  const auto wide = x.to(at::kFloat);
  const auto variance = wide.pow(2).mean({-1}, /*keepdim=*/true);
  const auto y = wide * at::rsqrt(variance + eps);
  if (!form.wide) return weight * y.to(x.scalar_type());
  return (y * (weight.to(at::kFloat) + form.offset)).to(x.scalar_type());
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps,
                      const NextCast& next) {
  const auto fits_row = [&](const at::Tensor& t) {
    return !t.defined() || (t.dim() == 1 && t.is_contiguous() && t.numel() == x.size(-1));
  };
  if (in_one_pass({&x, &weight, &bias}) && x.dim() > 0 && fits_row(weight) && fits_row(bias))
    return run_node("fp8::layer_norm", std::array{x, weight, bias},
                    [=](at::TensorList t) { return layer_norm_in_one_pass(t[0], t[1], t[2], eps, next); });
  return at::layer_norm(x, x.sizes().slice(static_cast<std::size_t>(x.dim() - 1)), weight, bias, eps);
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const NextCast& next) {
  if (gate.sizes() == up.sizes() && in_one_pass({&gate, &up}) && has_even_rows(gate) && has_even_rows(up))
    return run_node("fp8::silu_mul", std::array{gate, up},
                    [=](at::TensorList t) { return silu_mul_in_one_pass(t[0], t[1], next); });
  return at::silu(gate) * up;
}

at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  if (x.dim() == 4 && x.size(-1) % 2 == 0 && x.stride(-1) == 1 && in_one_pass({&x, &angles.cos, &angles.sin}) &&
      fits(x, angles))
    return run_node("fp8::rotary", std::array{x, angles.cos, angles.sin},
                    [](at::TensorList t) { return rotate_in_one_pass(t[0], {t[1], t[2]}); });
  const auto half = x.size(-1) / 2;
  const auto rotated = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return x * angles.cos + rotated * angles.sin;
}

NormImpl::NormImpl(std::string type, std::vector<std::int64_t> shape, const NormSpec& spec)
    : torch::nn::Module(std::move(type)), spec_(spec) {
  if (spec.weight) weight = register_parameter("weight", placeholder(shape));
  if (spec.bias) bias = register_parameter("bias", placeholder(shape));
}

std::string norm_type(const std::string& type, const NormSpec& spec) {
  return type + (spec.kind == NormSpec::Kind::rms ? "RMSNorm" : "LayerNorm");
}

Norm add_norm(torch::nn::Module& root, const std::string& name, const DecoderConfig& config, std::int64_t width) {
  if (name.empty()) return nullptr;
  const std::vector shape{width > 0 ? width : config.shape.hidden};
  return add_module(root, name, Norm(norm_type(config.type, config.norm), shape, config.norm));
}

at::Tensor NormImpl::forward(const at::Tensor& x, const runtime::NextCast& next) {
  return spec_.kind == NormSpec::Kind::rms ? rms(x, next) : layer(x, next);
}

at::Tensor NormImpl::rms(const at::Tensor& x, const runtime::NextCast& next) const {
  if (!weight.defined()) {
    const auto wide = x.to(at::kFloat);
    return (wide * at::rsqrt(wide.pow(2).mean({-1}, /*keepdim=*/true) + spec_.eps)).to(x.scalar_type());
  }
  const RmsNormForm form{.wide = spec_.wide || spec_.plus_one, .offset = spec_.plus_one ? 1.0 : 0.0};
  return is_training() || weight.dim() > 1 ? rms_norm_by_operations(x, weight, spec_.eps, form)
                                           : rms_norm(x, weight, spec_.eps, form, next);
}

const at::Tensor& NormImpl::weight_plus_one() {
  const bool known =
      summed_.defined() && summed_.is_alias_of(weight) && !weight.is_inference() && !weight.requires_grad();
  if (!known || version_ != weight._version()) {
    sum_ = weight + 1;
    summed_ = weight.detach();
    version_ = weight.is_inference() ? 0 : weight._version();
  }
  return sum_;
}

at::Tensor NormImpl::layer(const at::Tensor& x, const runtime::NextCast& next) {
  const auto width = x.sizes().slice(static_cast<std::size_t>(x.dim() - 1));
  const auto& by = weight.defined() && spec_.plus_one ? weight_plus_one() : weight;
  if (!by.defined() || by.dim() == 1)
    return is_training() ? at::layer_norm(x, width, by, bias, spec_.eps) : layer_norm(x, by, bias, spec_.eps, next);
  const auto y = at::layer_norm(x.to(at::kFloat), width, {}, {}, spec_.eps) * by.to(at::kFloat);
  return (bias.defined() ? y + bias : y).to(x.scalar_type());
}

// f32 throughout, in transformers' order of operations: the last bit of a frequency turns far positions visibly.

namespace {

constexpr std::int64_t kTableRows = 256;

/// theta^(2i/d): the wavelengths / 2 pi.
at::Tensor powers(double theta, std::int64_t dims) {
  return at::pow(at::Scalar(theta), at::arange(0, dims, 2, at::kFloat) / static_cast<double>(dims));
}

at::Tensor llama3(const at::Tensor& frequencies, const RopeSpec& rope) {
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const double low = original / rope.low_freq_factor, high = original / rope.high_freq_factor;
  const auto wavelength = 2 * std::numbers::pi / frequencies;
  auto scaled = at::where(wavelength > low, frequencies / rope.factor, frequencies);
  const auto smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const auto smoothed = (1 - smooth) * scaled / rope.factor + smooth * scaled;
  const auto medium = wavelength.ge(high).logical_and(wavelength.le(low));
  return at::where(medium, smoothed, scaled);
}

at::Tensor yarn(const RopeSpec& rope) {
  const auto dims = static_cast<double>(rope.dims);
  const auto original = static_cast<double>(rope.original_max_position_embeddings);
  const auto element_that_turns = [&](double times) {
    return dims * std::log(original / (times * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = element_that_turns(rope.beta_fast), high = element_that_turns(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  const auto ramp = ((at::arange(rope.dims / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
  const auto wide = powers(rope.theta, rope.dims), kept = 1 - ramp;
  return (rope.factor * wide).reciprocal() * (1 - kept) + wide.reciprocal() * kept;
}

}  // namespace

at::Tensor rotary_frequencies(const RopeSpec& rope, std::int64_t positions) {
  using Kind = RopeSpec::Kind;
  const std::int64_t original = rope.original_max_position_embeddings;
  switch (rope.kind) {
    case Kind::none: break;
    case Kind::linear: return powers(rope.theta, rope.dims).reciprocal() / rope.factor;
    case Kind::dynamic: {
      if (positions <= original) break;
      const double stretched =
          rope.factor * static_cast<double>(positions) / static_cast<double>(original) - (rope.factor - 1);
      const auto dims = static_cast<double>(rope.dims);
      return powers(rope.theta * std::pow(stretched, dims / (dims - 2)), rope.dims).reciprocal();
    }
    case Kind::llama3: return llama3(powers(rope.theta, rope.dims).reciprocal(), rope);
    case Kind::yarn: return yarn(rope);
    case Kind::longrope: {
      const auto by = at::tensor(positions > original ? rope.long_factor : rope.short_factor, at::kFloat);
      return (by * powers(rope.theta, rope.dims)).reciprocal();
    }
  }
  return powers(rope.theta, rope.dims).reciprocal();
}

RotaryEmbeddingImpl::RotaryEmbeddingImpl(std::string type, std::vector<RopeSpec> ropes)
    : torch::nn::Module(std::move(type)), ropes_(std::move(ropes)), tables_(ropes_.size()) {
  for (const auto& rope : ropes_) frequencies_.push_back(rotary_frequencies(rope, 1));
}

/// Made on the host, where the angles are the same for every device, then moved.
RotaryAngles RotaryEmbeddingImpl::angles_of(std::size_t i, const at::Tensor& positions, std::int64_t in_use,
                                            bool longer, const at::Tensor& like) const {
  const RopeSpec& rope = ropes_[i];
  const auto frequencies = longer ? rotary_frequencies(rope, in_use) : frequencies_[i];
  const auto angles = positions.unsqueeze(-1) * frequencies;
  const auto both = at::cat({angles, angles}, -1).unsqueeze(1);
  auto cos = both.cos(), sin = both.sin();
  const double factor = longer && rope.long_attention_factor > 0 ? rope.long_attention_factor : rope.attention_factor;
  if (factor != 1) cos = cos * factor, sin = sin * factor;
  return {cos.to(like.options()), sin.to(like.options())};
}

std::shared_ptr<const RotaryEmbeddingImpl::Table> RotaryEmbeddingImpl::table_of(std::size_t i, std::int64_t position,
                                                                                bool longer, const at::Tensor& like) {
  const std::int64_t first = position / kTableRows * kTableRows;
  const bool inference = c10::InferenceMode::is_enabled();  // what is made there can't be part of a training step
  std::shared_ptr<const Table> table;
  {
    const std::lock_guard lock(mutex_);
    table = tables_[i];
  }
  if (table != nullptr && table->first == first && table->longer == longer && table->inference == inference &&
      table->angles.cos.scalar_type() == like.scalar_type() && table->angles.cos.device() == like.device())
    return table;
  const auto positions = at::arange(first, first + kTableRows, at::kFloat).unsqueeze(0);
  auto made = std::make_shared<Table>(
      Table{first, longer, inference, angles_of(i, positions, first + kTableRows, longer, like)});
  const std::lock_guard lock(mutex_);
  return tables_[i] = std::move(made);
}

std::vector<RotaryAngles> RotaryEmbeddingImpl::forward(const at::Tensor& positions, std::int64_t in_use,
                                                       const at::Tensor& like) {
  std::vector<RotaryAngles> all;
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const auto& rope = ropes_[i];
    const bool longer = (rope.kind == RopeSpec::Kind::dynamic || rope.kind == RopeSpec::Kind::longrope) &&
                        in_use > rope.original_max_position_embeddings;
    if (positions.numel() == 1 && !(longer && rope.kind == RopeSpec::Kind::dynamic)) {
      const auto position = static_cast<std::int64_t>(positions.item<float>());
      if (position >= 0) {
        const auto table = table_of(i, position, longer, like);
        const std::int64_t row = position - table->first;
        all.push_back({table->angles.cos.narrow(2, row, 1), table->angles.sin.narrow(2, row, 1)});
        continue;
      }
    }
    all.push_back(angles_of(i, positions, in_use, longer, like));
  }
  return all;
}

}  // namespace fp8::models
