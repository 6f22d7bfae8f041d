// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/scale_method.h"

#include "fp8/runtime/io/base/text.h"

namespace fp8::recipes {
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return io::lower(x) == io::lower(y); });
}

std::vector<NamedScaleMethod> make_table() {
  using enum Granularity;
  using enum ScaleValue;
  using enum Rounding;
  constexpr float kWeight = 0.5f, kActivation = 0.25f, kPerToken = 1.0f;  // backoffs
  const ScaleMethod unit{tensor, FIXED_VALUE, SCALE_UNIT, 1.0f};
  const ScaleMethod hw_fixed{tensor, FIXED_VALUE, HW_ALIGNED_FIXED, 1.0f};
  const ScaleMethod weight_hw{tensor, MAXABS, HW_ALIGNED, kWeight}, act_hw{tensor, MAXABS, HW_ALIGNED, kActivation};
  const ScaleMethod weight_pow2{tensor, MAXABS, POW2, kWeight}, act_pow2{tensor, MAXABS, POW2, kActivation};
  const ScaleMethod weight_any{tensor, MAXABS, IDENTITY, kWeight}, act_any{tensor, MAXABS, IDENTITY, kActivation};
  const ScaleMethod channel_pow2{channel, MAXABS, POW2, kWeight}, token_pow2{channel, MAXABS, POW2, kPerToken};
  const ScaleMethod opt_hw{tensor, OPT, HW_ALIGNED, kWeight}, opt_pow2{tensor, OPT, POW2, kWeight};
  const ScaleMethod channel_opt{channel, OPT, POW2, kWeight};
  constexpr bool kStatic = false, kDynamicOnly = true;
  return {
      {"UNIT_SCALE", unit, unit, kStatic},
      {"HW_ALIGNED_SINGLE_SCALE", hw_fixed, hw_fixed, kStatic},
      {"MAXABS_HW", weight_hw, act_hw, kStatic},
      {"MAXABS_POW2", weight_pow2, act_pow2, kStatic},
      {"MAXABS_ARBITRARY", weight_any, act_any, kStatic},
      {"MAXABS_HW_OPT_WEIGHT", opt_hw, act_hw, kStatic},
      {"MAXABS_POW2_OPT_WEIGHT", opt_pow2, act_pow2, kStatic},
      {"ACT_MAXABS_HW_WEIGHTS_PCS_MAXABS_POW2", channel_pow2, act_hw, kStatic},
      {"ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2", channel_pow2, act_pow2, kStatic},
      {"ACT_MAXABS_HW_WEIGHTS_PCS_OPT_POW2", channel_opt, act_hw, kStatic},
      {"ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2", channel_opt, act_pow2, kStatic},
      {"ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW", weight_hw, token_pow2, kDynamicOnly},
      {"MAXABS_PCS_POW2", channel_pow2, token_pow2, kDynamicOnly},
  };
}

using Methods = io::Registry<NamedScaleMethod>;

Methods& method_table() {
  static auto& table = *new Methods(scale_methods(), &NamedScaleMethod::name);
  return table;
}

Methods::Entry entry_of(const std::string& name, ScaleMethodPair methods) {
  if (name.size() > 100 || !io::is_name(io::lower(name), "_"))
    io::fail<std::invalid_argument>("scale method name '{}', allowed: up to 100 letters, digits and '_'",
                                    name.substr(0, 100));
  for (const ScaleMethod* method : {&methods.weight, &methods.activation})
    if ((method->value == ScaleValue::CUSTOM) != (method->custom != nullptr))
      io::fail<std::invalid_argument>(
          "scale method '{}': found {}, allowed: CUSTOM and a function go together", name,
          method->custom != nullptr ? "a function without CUSTOM" : "CUSTOM without a function");
  const std::string upper = io::upper(name);
  return {method_table(), upper,
          std::make_shared<const NamedScaleMethod>(
              NamedScaleMethod{upper, std::move(methods.weight), std::move(methods.activation)}),
          io::message("scale method '{}' exists already", upper)};
}

using RoundingMethods = io::Registry<RoundingMethod>;

RoundingMethods& rounding_methods() {
  const auto row = [](const char* name, decltype(RoundingMethod::round) round) {
    return RoundingMethods::Named{name, std::make_shared<const RoundingMethod>(RoundingMethod{name, std::move(round)})};
  };
  static auto& table =
      *new RoundingMethods(std::vector{row(kNearest, nullptr), row("gptq", kernels::round_compensated)});
  return table;
}

RoundingMethods::Entry entry_of(RoundingMethod method) {
  const std::string name = method.name, quoted = io::in_quotes(name);
  if (!io::is_name(name, "-"))
    io::fail<std::invalid_argument>("rounding: found the name {}, allowed: lower case letters, digits and '-'", quoted);
  if (!method.round) io::fail<std::invalid_argument>("rounding {}: found no function", quoted);
  return {rounding_methods(), name, std::make_shared<const RoundingMethod>(std::move(method)),
          io::message("rounding {}: the name is taken", quoted)};
}

}  // namespace

const std::vector<NamedScaleMethod>& scale_methods() {
  static const std::vector<NamedScaleMethod> table = make_table();
  return table;
}

const NamedScaleMethod* find_scale_method(std::string_view name) {
  return method_table().find_if([&](const auto& method) { return equal_ignoring_case(method.name, name); }).get();
}

const NamedScaleMethod* find_scale_method(const ScaleMethod& weight, const ScaleMethod& activation) {
  const auto matches = [&](const NamedScaleMethod& method) {
    return method.weight.same_kind(weight) && method.activation.same_kind(activation) &&
           method.weight.custom == weight.custom && method.activation.custom == activation.custom;
  };
  return method_table().find_if([&](const auto& method) { return matches(*method.row); }).get();
}

const NamedScaleMethod& scale_method_from_name(std::string_view name) {
  if (const NamedScaleMethod* method = find_scale_method(name)) return *method;
  io::fail<std::invalid_argument>("scale method '{}' is unknown, allowed: {}", name, list_of_scale_methods());
}

std::string list_of_scale_methods() { return io::lower(io::joined(method_table().names())); }

ScaleMethod custom_scale(CustomScale scale, Granularity granularity) {
  if (!scale) throw std::invalid_argument("custom_scale: found no function, allowed: amax, target -> scale_inv");
  ScaleMethod method;
  method.granularity = granularity;
  method.value = ScaleValue::CUSTOM;
  method.custom = std::make_shared<const CustomScale>(std::move(scale));
  return method;
}

ScaleMethodRegistration::ScaleMethodRegistration(std::string_view name, ScaleMethodPair methods)
    : entry_(entry_of(std::string(name), std::move(methods))) {}

std::shared_ptr<const RoundingMethod> rounding_method(std::string_view name) {
  if (auto found = rounding_methods().find(std::string(name))) return found;
  io::fail<std::invalid_argument>("rounding: found {}, allowed: {}", io::in_quotes(std::string(name)),
                                  io::joined(rounding_method_names()));
}

std::vector<std::string> rounding_method_names() { return rounding_methods().names(); }

RoundingRegistration::RoundingRegistration(RoundingMethod method) : entry_(entry_of(std::move(method))) {}

}  // namespace fp8::recipes
