// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/scheme/scheme.h"

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/kernels/scale_search.h"

namespace fp8::quant {
namespace {

recipes::IncTarget target_of(const Numbers& numbers) { return {numbers.dialect, numbers.format, numbers.hp}; }

/// INC makes scales per channel in the weight's own type, of which f16 has become bf16.
recipes::IncTarget weight_target(const Scheme& scheme, std::optional<recipes::FloatType> type) {
  recipes::IncTarget target = target_of(scheme);
  if (scheme.weights == Granularity::channel && type.has_value())
    target.hp = *type == recipes::FloatType::F16 ? recipes::FloatType::BF16 : *type;
  return target;
}

std::vector<float> to_vector(const Eigen::ArrayXf& a) { return {a.data(), a.data() + a.size()}; }

/// The weight in hp_dtype, held in f32 (every bf16 and f16 is an f32): what the vendor's cast is given.
std::vector<float> in_hp(const void* w, recipes::FloatType type, std::int64_t n, recipes::FloatType hp) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) out[i] = recipes::round_to(kernels::load_element(w, type, i), hp);
  return out;
}

/// The exponent that an infinite amax gives a block of MXFP8. Those of finite ones are less than 127 + 122.
constexpr std::uint8_t kInfiniteExponent = 0xFE;

void require_band(std::int64_t first_row, const Scheme& scheme) {
  if (first_row % scheme.block.rows == 0) return;
  io::fail<std::invalid_argument>("block scales: expected rows from a multiple of {}, found row {}", scheme.block.rows,
                                  first_row);
}

/// All of a cast but its scales.
kernels::CastArgs cast_args(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                            const Scheme& scheme, std::uint8_t* codes) {
  kernels::CastArgs args;
  args.x = w;
  args.type = type;
  args.rows = rows;
  args.cols = args.row_stride = cols;
  args.codes = codes;
  args.format = scheme.format;
  args.max = scheme.fp8_max();
  if (scheme.has_blocks()) {
    args.layout = kernels::ScaleLayout::blocks(scheme.block.rows, scheme.block.cols);
    args.power_of_two = scheme.power_of_two;
  }
  return args;
}

/// The largest magnitude that is rounded to zero: half of the smallest positive code, a tie that goes to the even one.
float largest_lost(recipes::Format format) { return kernels::decode_table(format)[1] / 2; }

void set_product(NodeScheme& scheme, float a, float b) {
  scheme.input_scale_inv = {a, b};
  scheme.output_scale_inv = {a * b};
  if (scheme.convention == Convention::inc) scheme.output_scale_inv[0] = recipes::round_to(a * b, scheme.hp);
}

void set_matmul(NodeScheme& scheme, const NodeMeasurement& from) {
  const float a = from.input(0);
  set_product(scheme, a, from.input(1));
}

void set_b2b_matmul(NodeScheme& scheme, const NodeMeasurement& from) {
  const float a = from.input(0);
  set_product(scheme, a, from.output(0));
}

void set_softmax(NodeScheme& scheme, const NodeMeasurement& from) { scheme.output_scale_inv = {from.output(0)}; }

void set_attention(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = {from.input(0), from.input(1), from.input(2), from.output(1)};
  if (scheme.convention == Convention::inc) scheme.output_scale_inv = {from.output(0)};
}

void set_kv_cache(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = scheme.output_scale_inv = {from.input(0)};
}

void set_experts(NodeScheme& scheme, const NodeMeasurement& from) {
  scheme.input_scale_inv = {from.input(0)};
  const std::vector<float> amax = from.measured != nullptr ? expert_amax(*from.measured, from.experts, from.warnings)
                                                           : std::vector<float>(from.experts, 0.0f);
  for (float a : amax) scheme.input_scale_inv.push_back(from.scale(a, "experts"));
  scheme.output_scale_inv = {from.output(0)};
}

WeightScales of_scale_inv(std::vector<float> scale_inv, const Scheme& scheme, recipes::FloatType type,
                          const std::string& module) {
  const bool inc = scheme.convention == Convention::inc;
  const auto hp = weight_target(scheme, type).hp;
  if (inc)
    for (float& v : scale_inv) v = recipes::round_to(v, hp);
  const Eigen::ArrayXf inv =
      Eigen::Map<const Eigen::ArrayXf>(scale_inv.data(), static_cast<Eigen::Index>(scale_inv.size()));
  return {to_vector(inc ? recipes::inc_scale(inv, hp) : recipes::scale_from_scale_inv(inv, module)),
          std::move(scale_inv)};
}

}  // namespace

kernels::ScaleLayout Scheme::layout() const {
  return has_blocks()                      ? kernels::ScaleLayout::blocks(block.rows, block.cols)
         : weights == Granularity::channel ? kernels::ScaleLayout::per_row()
                                           : kernels::ScaleLayout::per_tensor();
}

std::string mx_problem(const Scheme& scheme, std::int64_t cols) {
  if (!scheme.is_mx() || cols % kMxBlock.cols == 0) return "";
  return io::message("{} inputs are no multiple of {}, as MXFP8 has them", cols, kMxBlock.cols);
}

bool Scheme::least_error() const {
  if (search != ScaleSearch::mse) return false;
  if (convention == Convention::own) return !(has_blocks() && power_of_two);
  return weight_method.value == recipes::ScaleValue::MAXABS && weight_method.rounding == recipes::Rounding::IDENTITY;
}

std::string Scheme::describe() const {
  const std::string blocks = has_blocks() ? " " + block.text() + (power_of_two ? " E8M0" : "") : "",
                    grid = is_mx() ? name_of(WeightWord::mx) : name_of(weights) + blocks;
  return io::message("{} {} weights{}, {} activations, {}{}", kernels::name_of(format), grid,
                     least_error() ? ", scales of least error" : "", name_of(activations), kernels::name_of(dialect),
                     compute == Compute::fp8 ? "" : std::string(", ") + name_of(compute));
}

WeightScales WeightScales::of_rows(std::int64_t first, std::int64_t rows, const Scheme& scheme,
                                   std::int64_t cols) const {
  if (scale.size() <= 1) return *this;
  std::int64_t begin = first, end = first + rows;
  if (scheme.has_blocks()) {
    require_band(first, scheme);
    begin = scheme.layout().in_grid(first, 0, cols);
    end = begin + scale_grid(scheme, rows, cols).size();
  }
  const auto cut = [&](const std::vector<float>& v) { return std::vector<float>(v.begin() + begin, v.begin() + end); };
  return {cut(scale), cut(scale_inv)};
}

WeightScales weight_scales(const std::vector<float>& amax, const Scheme& scheme, const std::string& module,
                           std::optional<recipes::FloatType> type) {
  const Eigen::ArrayXf values = Eigen::Map<const Eigen::ArrayXf>(amax.data(), static_cast<Eigen::Index>(amax.size()));
  WeightScales out;
  if (scheme.convention == Convention::own) {
    Eigen::ArrayXf inv = recipes::scale_inv_from_amax(values, scheme.fp8_max(), module);
    if (scheme.is_mx()) {
      for (Eigen::Index i = 0; i < inv.size(); ++i)
        inv[i] = kernels::e8m0_value(kernels::e8m0_from_amax(values[i], scheme.fp8_max()));
    } else if (scheme.has_blocks() && scheme.power_of_two) {
      for (float& v : inv) v = kernels::block_scale_inv(v, 1.0f, true);
    }
    out.scale_inv = to_vector(inv);
    out.scale = to_vector(recipes::scale_from_scale_inv(inv, module));
  } else {
    const recipes::IncTarget target = weight_target(scheme, type);
    const Eigen::ArrayXf inv = recipes::inc_scale_inv(values, scheme.weight_method, target, module);
    out.scale_inv = to_vector(inv);
    out.scale = to_vector(recipes::inc_scale(inv, target.hp));
  }
  return out;
}

WeightScales least_error_scales(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                const WeightScales& from_amax, const Scheme& scheme, const std::string& module) {
  if (scheme.weights == Granularity::tensor) {
    TensorScaleSearch search(from_amax, scheme);
    search.add(w, type, rows, cols);
    return search.best(module);
  }
  std::vector<float> scale_inv = from_amax.scale_inv;
  std::vector<double> errors(scale_inv.size() * kernels::kScaleCandidates);
  kernels::CastArgs args = cast_args(w, type, rows, cols, scheme, nullptr);
  if (!scheme.has_blocks()) args.layout = kernels::ScaleLayout::per_row();
  kernels::scale_errors(args, from_amax.scale_inv.data(), errors.data());
  for (std::size_t i = 0; i < scale_inv.size(); ++i)
    scale_inv[i] =
        kernels::scale_candidate(scale_inv[i], kernels::least_error(errors.data() + i * kernels::kScaleCandidates));
  return of_scale_inv(std::move(scale_inv), scheme, type, module);
}

void TensorScaleSearch::add(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols) {
  type_ = type;
  std::vector<double> errors(static_cast<std::size_t>(rows) * kernels::kScaleCandidates);
  kernels::scale_errors(cast_args(w, type, rows, cols, scheme_, nullptr), &scale_inv_, errors.data());
  static_assert(kCandidates == kernels::kScaleCandidates);
  for (std::size_t i = 0; i < errors.size(); ++i) errors_[i % kernels::kScaleCandidates] += errors[i];
}

WeightScales TensorScaleSearch::best(const std::string& module) const {
  return of_scale_inv({kernels::scale_candidate(scale_inv_, kernels::least_error(errors_.data()))}, scheme_, type_,
                      module);
}

bool searches(const Scheme& scheme) {
  return scheme.convention == Convention::inc && scheme.weight_method.value == recipes::ScaleValue::OPT;
}

WeightScales searched_weight_scales(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                    const Scheme& scheme, const std::string& module) {
  const recipes::IncTarget target = weight_target(scheme, type);
  const std::vector<float> values = in_hp(w, type, rows * cols, target.hp);
  const Eigen::ArrayXf inv = recipes::opt_scale_inv(values.data(), rows, cols, scheme.weight_method, target, module);
  return {to_vector(recipes::inc_scale(inv, target.hp)), to_vector(inv)};
}

float activation_scale_inv(float amax, const Numbers& numbers, const recipes::ScaleMethod& method,
                           const std::string& tensor) {
  if (numbers.convention == Convention::own) return recipes::scale_inv_from_amax(amax, numbers.fp8_max(), tensor);
  return recipes::inc_scale_inv(amax, method, target_of(numbers), tensor);
}

void set_input_scale(Scheme& scheme, float amax, const recipes::ScaleMethod& method, const std::string& module) {
  scheme.input_scale_inv = activation_scale_inv(amax, scheme, method, module);
  scheme.input_scale = scale_for(scheme, scheme.input_scale_inv, module);
}

float scale_for(const Numbers& numbers, float scale_inv, const std::string& module) {
  return numbers.convention == Convention::own ? recipes::scale_from_scale_inv(scale_inv, module)
                                               : recipes::inc_scale(scale_inv, numbers.hp);
}

std::vector<float> block_amax(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                              const Scheme& scheme) {
  std::vector<float> amax(static_cast<std::size_t>(scale_grid(scheme, rows, cols).size()));
  kernels::CastArgs args = cast_args(w, type, rows, cols, scheme, nullptr);
  args.grid = amax.data();
  kernels::amax_blocks(args);
  return amax;
}

std::vector<float> quantize_weight_blocks(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                                          const Scheme& scheme, const std::string& module, std::uint8_t* codes) {
  if (scheme.convention != Convention::own)
    io::fail<std::invalid_argument>("{}: block scales are made by the own convention only, found INC's", module);
  std::vector<float> scale_inv(static_cast<std::size_t>(scale_grid(scheme, rows, cols).size()));
  kernels::CastArgs args = cast_args(w, type, rows, cols, scheme, codes);
  std::vector<std::uint8_t> exponents(scheme.is_mx() ? scale_inv.size() : 0);
  args.rule = scheme.is_mx() ? kernels::ScaleRule::e8m0 : kernels::ScaleRule::amax_over_max;
  args.e8m0 = exponents.data();
  args.grid = scale_inv.data();
  kernels::cast(args);
  for (std::size_t i = 0; i < exponents.size(); ++i)
    scale_inv[i] =
        exponents[i] == kInfiniteExponent ? std::numeric_limits<float>::infinity() : kernels::e8m0_value(exponents[i]);
  for (float v : scale_inv) {
    if (!std::isfinite(v)) recipes::scale_inv_from_amax(v, scheme.fp8_max(), module);  // says so
  }
  return scale_inv;
}

void decode_weight_rows(const std::uint8_t* codes, std::int64_t rows, std::int64_t cols, std::int64_t first_row,
                        const float* scale_inv, std::int64_t scales, const Scheme& scheme, void* y,
                        recipes::FloatType type) {
  if (!scheme.has_blocks()) {
    const bool per_row = scales > 1;
    return kernels::decode_from_fp8(
        {codes, rows, cols, scheme.format, y, type, {per_row ? 1 : 0, 0}, scale_inv + (per_row ? first_row : 0)});
  }
  const kernels::ScaleLayout layout = scheme.layout();
  const auto bands = [&](std::int64_t row, std::int64_t n) {  // first_row + row starts a band, or they are within one
    kernels::DecodeArgs args;
    args.codes = codes + row * cols;
    args.rows = n;
    args.cols = cols;
    args.format = scheme.format;
    args.layout = layout;
    args.scale_inv = scale_inv + layout.in_grid(first_row + row, 0, cols);
    args.y = static_cast<char*>(y) + row * cols * kernels::size_of(type);
    args.type = type;
    kernels::decode_blocks(args);
  };
  const std::int64_t begun = first_row % layout.rows, rest = begun == 0 ? 0 : std::min(rows, layout.rows - begun);
  if (rest > 0) bands(0, rest);
  if (rest < rows) bands(rest, rows - rest);
}

void cast_weight_rows(const void* w, recipes::FloatType type, std::int64_t rows, std::int64_t cols,
                      std::int64_t first_row, const WeightScales& scales, const Scheme& scheme, std::uint8_t* codes) {
  kernels::CastArgs args = cast_args(w, type, rows, cols, scheme, codes);
  args.scales = scales.scale.data();
  if (scheme.has_blocks()) {
    require_band(first_row, scheme);
    args.scales += scheme.layout().in_grid(first_row, 0, cols);
    return kernels::cast(args);
  }
  if (scales.scale.size() > 1) args.layout = kernels::ScaleLayout::per_row(), args.scales += first_row;
  if (scheme.convention == Convention::own) return kernels::cast_to_fp8(args);
  if (type == scheme.hp) {
    args.vendor = true;
    return kernels::cast_to_fp8(args);
  }
  // The product's rounding to hp_dtype is done here: the kernel rounds to the type of what it is given.
  std::vector<float> product = in_hp(w, type, rows * cols, scheme.hp);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float scale = args.scales[r * args.layout.rows];
    for (std::int64_t c = 0; c < cols; ++c)
      product[r * cols + c] = recipes::round_to(product[r * cols + c] * scale, scheme.hp);
  }
  args.x = product.data();
  args.type = recipes::FloatType::F32;
  args.scales = nullptr;
  kernels::cast_to_fp8(args);
}

Underflow underflow_of_codes(const void* values, recipes::FloatType type, std::int64_t n, const std::uint8_t* codes) {
  std::int64_t zero_codes = 0, zeros = 0;
  for (std::int64_t i = 0; i < n; ++i) zero_codes += (codes[i] & 0x7f) == 0 ? 1 : 0;
  if (4 * zero_codes <= n) return {zero_codes, n};
  for (std::int64_t i = 0; i < n; ++i) zeros += kernels::load_element(values, type, i) == 0.0f ? 1 : 0;
  return {zero_codes - zeros, n - zeros};
}

Underflow underflow_of_scale(const void* values, recipes::FloatType type, std::int64_t n, float scale,
                             recipes::Format format) {
  const float lost = largest_lost(format);
  Underflow out;
  for (std::int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(kernels::load_element(values, type, i));
    if (magnitude == 0.0f) continue;
    ++out.values;
    out.lost += magnitude * scale <= lost ? 1 : 0;
  }
  return out;
}

bool loses_most(float amax, float scale, recipes::Format format) {
  return amax > 0 && amax * scale <= 4 * largest_lost(format);
}

void UnderflowReport::add(const std::string& module, const Underflow& underflow) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++modules_;
  if (!underflow.most()) return;
  ++losing_;
  if (underflow.share() < worst_share_ || (underflow.share() == worst_share_ && !worst_.empty() && worst_ < module))
    return;
  worst_share_ = underflow.share();
  worst_ = module;
}

std::vector<std::string> UnderflowReport::warnings(const std::string& scale_method, const char* what) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (losing_ == 0) return {};
  char share[32];
  std::snprintf(share, sizeof share, "%.3g", 100 * worst_share_);
  return {"scale method " + scale_method + ": in " + std::to_string(losing_) + " of " + std::to_string(modules_) +
          " modules most " + what + " become zero in fp8 (the worst: " + worst_ + ", " + share +
          " % of those that are not zero); the scales are too large for them: take a method that " +
          "follows amax per tensor or channel, or leave these modules in high precision"};
}

using configs::ModuleKind;

std::string NodeScheme::describe() const {
  const configs::KindInfo* info = configs::find_kind(kind);
  const bool heads = info != nullptr && info->cache && input_scale_inv.size() > 1;
  const char* scales = heads       ? "static head scales"
                       : !dynamic  ? "static scales"
                       : per_token ? "dynamic token scales"
                                   : "dynamic tensor scales";
  return io::message("{} {}, {}, {}{}", kernels::name_of(format), configs::name_of(kind), scales,
                     kernels::name_of(dialect), compute == Compute::fp8 ? "" : std::string(", ") + name_of(compute));
}

float one_amax(const measure::Measurement& measured, bool input, std::size_t index) {
  const std::string where =
      io::message("measurements: {}{}{}]", measured.module, input ? ".inputs[" : ".outputs[", index);
  const auto& list = input ? measured.inputs : measured.outputs.value_or(std::vector<measure::Amax>{});
  if (index >= list.size()) io::fail<io::Error>("{}: it was not measured", where);
  if (list[index].empty()) io::fail<io::Error>("{}: expected an amax, found none", where);
  return *std::ranges::max_element(list[index]);
}

std::vector<float> expert_amax(const measure::Measurement& measured, std::size_t experts,
                               std::vector<std::string>& warnings) {
  const std::size_t found = measured.outputs.has_value() ? measured.outputs->size() : 0;
  if (found != experts + 1)
    io::fail<io::Error>(
        "measurements: {}.outputs: expected 1 and {} (each expert), found {}; measured with other ranks?",
        measured.module, experts, found);
  std::vector<float> amax;
  for (std::size_t e = 0; e < experts; ++e) amax.push_back(one_amax(measured, false, 1 + e));
  const float largest = amax.empty() ? 0.0f : *std::ranges::max_element(amax);
  std::vector<std::size_t> idle;
  for (std::size_t e = 0; e < experts; ++e) {
    if (amax[e] != 0.0f) continue;
    idle.push_back(e);
    amax[e] = largest;
  }
  if (!idle.empty())
    warnings.push_back(
        io::message("{}: calibration gave no token to expert {}; the largest intermediate scale of the others stands "
                    "in (more samples help)",
                    measured.module, io::joined(idle)));
  return amax;
}

float NodeMeasurement::scale(float amax, const char* tensor) const {
  return activation_scale_inv(amax, numbers, method, module + "." + tensor);
}

float NodeMeasurement::input(std::size_t i) const {
  return scale(measured != nullptr ? one_amax(*measured, true, i) : 0.0f, "inputs");
}

float NodeMeasurement::output(std::size_t i) const {
  return scale(measured != nullptr ? one_amax(*measured, false, i) : 0.0f, "outputs");
}

configs::KindTable<NodeScaleRule>& node_scale_rules() {
  static auto& table = *new configs::KindTable<NodeScaleRule>({{ModuleKind::matmul, set_matmul},
                                                               {ModuleKind::b2b_matmul, set_b2b_matmul},
                                                               {ModuleKind::softmax, set_softmax},
                                                               {ModuleKind::fused_sdpa, set_attention},
                                                               {ModuleKind::kv_cache, set_kv_cache},
                                                               {ModuleKind::dynamic_moe, set_experts}});
  return table;
}

void set_node_scales(NodeScheme& scheme, const measure::Measurement* measured, const recipes::ScaleMethod& method,
                     const std::string& module, std::size_t experts, std::vector<std::string>& warnings) {
  const auto rule = node_scale_rules().find(scheme.kind);
  if (rule == nullptr)
    io::fail<io::Error>("{}: modules of kind {} have no scales of their own", module, configs::name_of(scheme.kind));
  scheme.input_scale_inv.clear();
  scheme.output_scale_inv.clear();
  (*rule)(scheme, {scheme, measured, method, module, experts, warnings});
}

}  // namespace fp8::quant
