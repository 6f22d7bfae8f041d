// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/fp8_weight.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>

#include <bit>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::te {
namespace {

thread_local std::optional<QuantizedInitOptions> t_options;

/// Without one E4M3: three bits of mantissa for what is read in every step.
recipes::Recipe recipe_of(const QuantizedInitOptions& options) {
  return options.recipe.value_or(recipes::Recipe(recipes::DelayedScaling{.fp8_format = recipes::RecipeFormat::HYBRID}));
}

/// Of the rounding of values that are assigned for the n-th time. Two weights draw different numbers, a weight the same
/// ones on every rank that holds it and after a resume: what they differ by is the values themselves.
std::uint64_t assignment_seed(const at::Tensor& values, std::uint64_t n) {
  constexpr std::int64_t kLooked = 64;
  std::uint64_t h = n * 0x9e3779b97f4a7c15ull;
  const float* v = values.const_data_ptr<float>();
  for (std::int64_t i = 0, count = std::min(kLooked, values.numel()); i < count; ++i)
    h = (h ^ std::bit_cast<std::uint32_t>(v[i])) * 0x100000001b3ull;
  return h ^ (h >> 31);
}

/// Decoded values whose gradient goes to the codes' parameter.
struct Decode : torch::autograd::Function<Decode> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& parameter) {
    context->saved_data["dtype"] = gradient_dtype(parameter);
    return fp8_weight(parameter)->values().detach().clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].defined() ? gradients[0].to(context->saved_data["dtype"].toScalarType()) : at::Tensor()};
  }
};

using recipes::Format, recipes::OperandScaling, recipes::ScalingRule;
using runtime::CastSpec, runtime::Fp8Tensor, runtime::ScaleLayout, runtime::ScaleRule;

float dtype_max(at::ScalarType type) {
  return type == at::kHalf ? 65504.0f : type == at::kBFloat16 ? 0x1.FEp127f : std::numeric_limits<float>::max();
}

/// Elements at the largest code, and non-zero elements that became zero.
template <class T>
void count_elements(const at::Tensor& x, const at::Tensor& codes, Format format, recipes::Dialect dialect,
                    Fp8State& state) {
  const float max = recipes::fp8_max(format, dialect);
  const std::uint8_t top = format == Format::E5M2 ? 0x7B : max == 240.0f ? 0x77 : 0x7E;
  const T* values = x.const_data_ptr<T>();
  const auto* code = static_cast<const std::uint8_t*>(codes.const_data_ptr());
  std::int64_t saturated = 0, underflowed = 0;
  for (std::int64_t i = 0, n = x.numel(); i < n; ++i) {
    const std::uint8_t magnitude = code[i] & 0x7F;
    saturated += magnitude == top;
    underflowed += magnitude == 0 && static_cast<float>(values[i]) != 0.0f;
  }
  state.count(x.numel(), saturated, underflowed);
}

void count_if_wanted(const at::Tensor& x, const Fp8Tensor& operand, Format format, const OperandPlan& plan) {
  if (!plan.statistics || plan.state == nullptr) return;
  switch (x.scalar_type()) {
    case at::kFloat: return count_elements<float>(x, operand.codes, format, plan.dialect, *plan.state);
    case at::kBFloat16: return count_elements<at::BFloat16>(x, operand.codes, format, plan.dialect, *plan.state);
    default: return count_elements<at::Half>(x, operand.codes, format, plan.dialect, *plan.state);
  }
}

Fp8Tensor cast(const at::Tensor& x, const CastSpec& spec, const OperandPlan& plan) {
  return plan.input.defined() ? runtime::cast_once(plan.input, x, spec) : runtime::quantize(x, spec);
}

/// {along columns, along rows}.
OperandPair cast_both(const at::Tensor& x, const CastSpec& columns, const CastSpec& rows, const OperandPlan& plan) {
  auto [first, second] = plan.input.defined() ? runtime::cast_both_once(plan.input, x, columns, rows)
                                              : runtime::quantize_both(x, columns, rows);
  return {std::move(first), std::move(second)};
}

float amax_of(const at::Tensor& x, const OperandPlan& plan) {
  return plan.input.defined() ? runtime::amax_once(plan.input, x) : runtime::amax_of(x);
}

/// The recipe's cast along the columns. An amax of x that it knows, or that the cast will find, lies in `amax`.
CastSpec spec_of(const at::Tensor& x, const OperandScaling& how, Format format, const OperandPlan& plan, float& amax) {
  if (how.one_scale()) {
    if (how.rule == ScalingRule::tensor) amax = amax_of(x, plan);
    CastSpec spec = one_scale_spec(how, format, plan.dialect, *plan.scales, plan.index, amax, x.scalar_type());
    spec.stochastic = plan.stochastic;
    if (how.rule == ScalingRule::history && plan.scales->record) spec.amax = &amax;
    return spec;
  }
  CastSpec spec{.format = format, .max = recipes::fp8_max(format, plan.dialect)};
  spec.layout = ScaleLayout::blocks(how.block_rows, how.block_cols);
  spec.rule = how.rule == ScalingRule::mx ? ScaleRule::e8m0 : ScaleRule::max_over_amax;
  spec.power_of_two = how.power_of_two;
  spec.amax_epsilon = how.amax_epsilon;
  return spec;
}

/// One scale for both ways.
OperandPair cast_pair(const at::Tensor& x, CastSpec spec, const OperandPlan& plan) {
  const bool columns = plan.need_columns || plan.statistics;  // which are counted row by row
  if (plan.need_rows && !plan.both_stay && columns) {
    CastSpec rows = spec;
    rows.transpose = true;
    rows.amax = nullptr;
    return cast_both(x, spec, rows, plan);
  }
  spec.transpose = !columns && plan.need_rows;
  const Fp8Tensor both = cast(x, spec, plan);
  return {both, both};
}

/// One scale for each way, of which that along rows is of E5M2 (habana HYBRID).
OperandPair cast_hybrid(const at::Tensor& x, const CastSpec& spec, const OperandPlan& plan) {
  const auto i = static_cast<std::size_t>(plan.index);
  CastSpec wide{.format = Format::E5M2, .max = recipes::fp8_max(Format::E5M2, plan.dialect)};
  wide.scale = plan.scales->hybrid_scale[i], wide.scale_inv = plan.scales->hybrid_scale_inv[i];
  wide.transpose = true;
  if (plan.need_columns || spec.amax != nullptr) return cast_both(x, spec, wide, plan);
  const Fp8Tensor both = cast(x, wide, plan);
  return {both, both};
}

OperandPair cast_blocks(const at::Tensor& x, CastSpec spec, const OperandPlan& plan) {
  const Fp8Tensor columns = cast(x, spec, plan);
  if (!plan.need_rows || spec.layout.rows == spec.layout.cols) return {columns, columns};
  std::swap(spec.layout.rows, spec.layout.cols);
  return {columns, cast(x, spec, plan)};
}

/// The amax of x goes to the state: to its history, or of an input, for export.
void record_amax(const at::Tensor& x, const OperandScaling& how, float amax, float max, const OperandPlan& plan) {
  if (plan.state == nullptr || plan.scales == nullptr) return;
  if (how.rule == ScalingRule::history) {
    if (plan.scales->record)
      plan.state->record(plan.role == Role::grad ? Pass::backward : Pass::forward, *plan.scales, plan.index, amax, max);
  } else if (plan.role == Role::input && plan.scales->trains) {
    plan.state->record_input(*plan.scales, plan.index, how.rule == ScalingRule::tensor ? amax : amax_of(x, plan));
  }
}

}  // namespace

quantized_model_init::quantized_model_init(QuantizedInitOptions options) : previous_(t_options) {
  const recipes::Recipe recipe = recipe_of(options);
  recipes::validate(recipe);
  if (!recipes::scaling_of(recipe).one_scale())
    io::fail<std::invalid_argument>(
        "quantized_model_init: recipe: found {}, allowed: delayed, current (one scale per tensor)",
        recipes::name_of(recipe));
  t_options = std::move(options);
}
quantized_model_init::~quantized_model_init() { t_options = std::move(previous_); }

Fp8Weight::Fp8Weight(QuantizedInitOptions options)
    : options_(std::move(options)),
      format_(recipes::forward_format(recipes::format_of(recipe_of(options_)))),
      dialect_(runtime::device_dialect("quantized_model_init")),
      memory_(c10::intrusive_ptr<c10::StorageImpl>()) {}

at::Tensor Fp8Weight::initialize(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const at::Tensor initial = values.detach().to(at::kFloat).contiguous(), codes = cast(initial, std::nullopt);
  record_place(codes);
  if (options_.preserve_high_precision_init_val) initial_ = initial.clone();
  if (options_.keep_master) master_ = initial.clone();
  return codes;
}

std::shared_ptr<Fp8Weight> Fp8Weight::copy_for(const at::Tensor& codes) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<Fp8Weight>(options_);
  copy->format_ = format_;
  copy->dialect_ = dialect_;
  copy->scale_inv_ = scale_inv_;
  copy->assigned_ = assigned_;
  if (codes.is_hpu()) copy->record_place(codes);
  if (master_.defined() && master_.sizes() == codes.sizes()) copy->master_ = master_.clone();
  if (initial_.defined() && initial_.sizes() == codes.sizes()) copy->initial_ = initial_.clone();
  return copy;
}

std::string Fp8Weight::scales() const {
  char text[64];
  std::snprintf(text, sizeof text, ", dialect %d, one scale %a", static_cast<int>(dialect_),
                static_cast<double>(scale_inv_));
  return recipes::name_of(format_) + std::string(text);
}

void Fp8Weight::record_place(const at::Tensor& parameter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  memory_ = parameter.storage().getWeakStorageImpl();
  version_ = parameter.unsafeGetTensorImpl()->version_counter();
  sizes_ = parameter.sizes().vec();
  offset_ = parameter.storage_offset();
}

at::Tensor Fp8Weight::codes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto memory = memory_.lock();
  TORCH_CHECK(memory.defined(),
              "[Fp8Weight] the parameter is gone: expected its values to be read or written while it lives");
  const auto dtype = c10::scalarTypeToTypeMeta(runtime::ops::dtype_of(format_));
  at::Tensor codes = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(memory)),
                                                              c10::DispatchKeySet(c10::DispatchKey::HPU), dtype);
  codes.unsafeGetTensorImpl()->set_storage_offset(offset_);
  codes.unsafeGetTensorImpl()->set_sizes_contiguous(sizes_);
  codes.unsafeGetTensorImpl()->set_version_counter(version_);
  return codes;
}

at::Tensor Fp8Weight::cast(const at::Tensor& values, std::optional<std::uint64_t> stochastic) {
  const float max = recipes::fp8_max(format_, dialect_), amax = runtime::amax_of(values);
  recipes::DelayedScaling rule = recipes::DelayedScaling::nvidia();
  if (recipes::scaling_of(recipe_of(options_)).weight.power_of_two) rule = recipes::DelayedScaling::habana();
  const float scale = recipes::next_scale(amax, 1.0f, max, rule);
  scale_inv_ = 1.0f / scale;
  runtime::CastSpec spec{.format = format_, .max = max, .scale = scale, .scale_inv = scale_inv_};
  spec.stochastic = stochastic;
  return runtime::quantize(values, spec).codes;
}

runtime::Fp8Tensor Fp8Weight::operand(const at::Tensor& codes) const {
  runtime::Fp8Tensor x{codes.detach()};
  x.scale_inv = scale_inv_;
  return x;
}

at::Tensor Fp8Weight::values() {
  return master_.defined() ? master_ : runtime::dequantize(operand(codes()), at::kFloat);
}

void Fp8Weight::set_state(float scale_inv, std::uint64_t assigned, const at::Tensor& master) {
  TORCH_CHECK(scale_inv > 0.0f && std::isfinite(scale_inv), "[Fp8Weight] scale_inv: found ", scale_inv,
              ", allowed: finite values > 0");
  TORCH_CHECK(!master.defined() || (master.sizes() == codes().sizes() && master.scalar_type() == at::kFloat),
              "[Fp8Weight] the high-precision copy: expected Float of sizes ", codes().sizes(), ", got ",
              master.scalar_type(), " of sizes ", master.sizes());
  const at::NoGradGuard no_grad;
  scale_inv_ = scale_inv;
  assigned_ = assigned;
  if (master_.defined()) master_.copy_(master.defined() ? master : runtime::dequantize(operand(codes()), at::kFloat));
}

void Fp8Weight::assign(const at::Tensor& values) {
  const at::Tensor parameter = codes();
  TORCH_CHECK(values.sizes() == parameter.sizes(), "[Fp8Weight] expected values of sizes ", parameter.sizes(), ", got ",
              values.sizes());
  const at::NoGradGuard no_grad;
  const at::Tensor v = values.detach().to(at::kFloat).contiguous();
  if (master_.defined() && !master_.is_same(values)) master_.copy_(v);
  ++assigned_;
  const at::Tensor codes =
      cast(v, master_.defined() ? std::nullopt : std::optional<std::uint64_t>(assignment_seed(v, assigned_)));
  parameter.view(at::kByte).copy_(codes.view(at::kByte));
}

void Fp8Weight::adopt(runtime::OpHandler& source) {
  if (const auto* other = runtime::handler_as<Fp8Weight>(&source))
    return set_state(other->scale_inv_, other->assigned_, other->master_);
  QuantizedParameter::adopt(source);
}

at::Tensor Fp8Weight::linear(const runtime::LinearCall& call) {
  return at::linear(call.x, dequantize(call.tag, call.view, call.weight).to(call.x.scalar_type()), call.bias);
}

at::Tensor Fp8Weight::convolution(const runtime::ConvolutionCall& call) {
  TORCH_CHECK(false, "[Fp8Weight] the weight of module '", call.tag.module_names(),
              "' is held in fp8: expected a linear product, got a convolution");
}

at::Tensor Fp8Weight::dequantize(const runtime::WeightTag&, const runtime::WeightView&, const at::Tensor& weight) {
  return runtime::dequantize(operand(weight), at::kFloat);
}

std::string Fp8Weight::describe() const { return std::string(recipes::name_of(format_)) + " parameter, one scale"; }

at::Tensor Fp8Weight::scale_inv_values() const { return at::full({1}, scale_inv_, at::kFloat); }

at::Tensor make_weight_parameter(at::Tensor values, const std::string& module) {
  if (!t_options.has_value() || !t_options->enabled) return values;
  TORCH_CHECK(values.is_hpu(), "[quantized_model_init] '", module, "': device: found ", values.device(),
              ", allowed: hpu");
  const auto handler = std::make_shared<Fp8Weight>(*t_options);
  const at::Tensor codes = handler->initialize(values);
  runtime::tag_weight(codes, module, handler);
  codes.requires_grad_(true);
  codes.set_grad_dtype(values.scalar_type());
  return codes;
}

Fp8Weight* fp8_weight(const at::Tensor& parameter) {
  if (runtime::quantized_parameter(parameter) == nullptr) return nullptr;  // records the place
  return runtime::handler_as<Fp8Weight>(runtime::find_tag(parameter)->handler.get());
}

std::vector<std::pair<std::string, Fp8Weight*>> fp8_weights(const torch::nn::Module& module, bool recurse) {
  std::vector<std::pair<std::string, Fp8Weight*>> weights;
  for (const auto& p : module.named_parameters(recurse))
    if (auto* w = p.value().defined() ? fp8_weight(p.value()) : nullptr) weights.emplace_back(p.key(), w);
  return weights;
}

void own_fp8_weight(const at::Tensor& copy, const at::Tensor& original) {
  const auto* weight = fp8_weight(original);
  if (weight == nullptr) return;
  runtime::tag_weight(copy, runtime::find_tag(original)->module_names(), weight->copy_for(copy));
  copy.set_grad_dtype(original.grad_dtype());
}

at::ScalarType gradient_dtype(const at::Tensor& parameter) {
  const at::ScalarType dtype = parameter.grad_dtype().value_or(at::kFloat);
  TORCH_CHECK(!parameter.requires_grad() || !c10::isFloat8Type(dtype),
              "[gradient] a weight that is held in fp8: grad_dtype: found ", dtype,
              ", allowed: Float, BFloat16, Half (a copy of a parameter alone has none; copy its module, or set it)");
  return c10::isFloat8Type(dtype) ? at::kFloat : dtype;
}

at::Tensor weight_values(const at::Tensor& parameter) {
  if (!c10::isFloat8Type(parameter.scalar_type())) return parameter;
  TORCH_CHECK(fp8_weight(parameter) != nullptr,
              "[weight_values] found fp8 codes without their scale: a parameter of quantized_model_init that was moved "
              "to another device or replaced; allowed: on hpu, where it was made");
  return at::GradMode::is_enabled() ? Decode::apply(parameter) : fp8_weight(parameter)->values();
}

OperandPair quantize_operand(const at::Tensor& x, const OperandPlan& plan) {
  const recipes::RecipeScaling scaling = recipes::scaling_of(plan.recipe);
  const OperandScaling& how = scaling.of(plan.role);
  float amax = 0.0f;
  const CastSpec spec = spec_of(x, how, scaling.format(plan.role), plan, amax);
  const bool hybrid = how.rule == ScalingRule::history && plan.role != Role::grad && plan.need_rows &&
                      !plan.scales->hybrid_scale.empty();
  const OperandPair pair = spec.layout.has_blocks() ? cast_blocks(x, spec, plan)
                           : hybrid                 ? cast_hybrid(x, spec, plan)
                                                    : cast_pair(x, spec, plan);
  record_amax(x, how, amax, spec.saturation(), plan);
  count_if_wanted(x, pair.columns, spec.format, plan);
  return pair;
}

std::optional<std::uint64_t> gradient_seed(const recipes::Recipe& recipe, const Fp8Region& region,
                                           const std::string& product, const StepScales& scales) {
  if (!runtime::forced_stochastic_gradients().value_or(recipes::scaling_of(recipe).stochastic_gradients))
    return std::nullopt;
  std::uint64_t h = 0xcbf29ce484222325ull ^ region.options().seed;
  for (const char c : product) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  h ^= static_cast<std::uint64_t>(scales.step) * 0x9e3779b97f4a7c15ull;
  h ^= static_cast<std::uint64_t>(scales.instance) * 0xff51afd7ed558ccdull;
  h ^= static_cast<std::uint64_t>(region.rank()) * 0xc4ceb9fe1a85ec53ull;
  h = (h ^ (h >> 31)) * 0xbf58476d1ce4e5b9ull;
  return h ^ (h >> 29);
}

CastSpec one_scale_spec(const OperandScaling& how, Format format, recipes::Dialect dialect, const StepScales& scales,
                        int index, float amax, at::ScalarType dtype) {
  const auto i = static_cast<std::size_t>(index);
  const bool known = how.rule == ScalingRule::history;
  CastSpec spec{.format = format, .max = recipes::fp8_max(format, dialect)};
  spec.scale = known ? scales.scale[i] : current_scale_of(amax, format, dialect, how, dtype);
  spec.scale_inv = known ? scales.scale_inv[i] : 1.0f / spec.scale;
  return spec;
}

float current_scale_of(float amax, Format format, recipes::Dialect dialect, const OperandScaling& how,
                       at::ScalarType dtype) {
  const recipes::CurrentScaling rule{.power_of_two_scale = how.power_of_two, .amax_epsilon = how.amax_epsilon};
  return recipes::current_scale(amax, recipes::fp8_max(format, dialect), rule, dtype_max(dtype));
}

}  // namespace fp8::te
