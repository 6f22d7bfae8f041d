// SPDX-License-Identifier: Apache-2.0
// The table of spellings (see scale_method.h).
#include "fp8/recipes/scale_method.h"

#include <algorithm>
#include <stdexcept>

namespace fp8::recipes {
namespace {

// std::tolower depends on the locale; names here are ASCII.
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower(std::string text) {
  for (char& c : text) c = lower(c);
  return text;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::vector<NamedScaleMethod> make_table() {
  using enum Granularity;
  using enum ScaleValue;
  using enum Rounding;
  constexpr float kWeight = 0.5f, kActivation = 0.25f, kPerToken = 1.0f;  // backoffs
  const ScaleMethod unit{PTS, FIXED_VALUE, SCALE_UNIT, 1.0f};
  const ScaleMethod hw_fixed{PTS, FIXED_VALUE, HW_ALIGNED_FIXED, 1.0f};
  const ScaleMethod weight_hw{PTS, MAXABS, HW_ALIGNED, kWeight}, act_hw{PTS, MAXABS, HW_ALIGNED, kActivation};
  const ScaleMethod weight_pow2{PTS, MAXABS, POW2, kWeight}, act_pow2{PTS, MAXABS, POW2, kActivation};
  const ScaleMethod weight_any{PTS, MAXABS, IDENTITY, kWeight}, act_any{PTS, MAXABS, IDENTITY, kActivation};
  const ScaleMethod channel_pow2{PCS, MAXABS, POW2, kWeight}, token_pow2{PCS, MAXABS, POW2, kPerToken};
  const ScaleMethod opt_hw{PTS, OPT, HW_ALIGNED, kWeight}, opt_pow2{PTS, OPT, POW2, kWeight};
  const ScaleMethod channel_opt{PCS, OPT, POW2, kWeight};
  constexpr bool kStatic = false, kDynamicOnly = true, kBuilt = true, kNotBuilt = false;
  return {
      {"UNIT_SCALE", unit, unit, kStatic, kBuilt},
      {"HW_ALIGNED_SINGLE_SCALE", hw_fixed, hw_fixed, kStatic, kBuilt},
      {"MAXABS_HW", weight_hw, act_hw, kStatic, kBuilt},
      {"MAXABS_POW2", weight_pow2, act_pow2, kStatic, kBuilt},
      {"MAXABS_ARBITRARY", weight_any, act_any, kStatic, kBuilt},
      {"MAXABS_HW_OPT_WEIGHT", opt_hw, act_hw, kStatic, kNotBuilt},
      {"MAXABS_POW2_OPT_WEIGHT", opt_pow2, act_pow2, kStatic, kNotBuilt},
      {"ACT_MAXABS_HW_WEIGHTS_PCS_MAXABS_POW2", channel_pow2, act_hw, kStatic, kBuilt},
      {"ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2", channel_pow2, act_pow2, kStatic, kBuilt},
      {"ACT_MAXABS_HW_WEIGHTS_PCS_OPT_POW2", channel_opt, act_hw, kStatic, kNotBuilt},
      {"ACT_MAXABS_POW2_WEIGHTS_PCS_OPT_POW2", channel_opt, act_pow2, kStatic, kNotBuilt},
      {"ACT_MAXABS_PCS_POW2_WEIGHT_MAXABS_PTS_POW2_HW", weight_hw, token_pow2, kDynamicOnly, kNotBuilt},
      {"MAXABS_PCS_POW2", channel_pow2, token_pow2, kDynamicOnly, kNotBuilt},
  };
}

}  // namespace

const char* name_of(Granularity granularity) { return granularity == Granularity::PTS ? "PTS" : "PCS"; }

const char* name_of(ScaleValue value) {
  switch (value) {
    case ScaleValue::MAXABS: return "MAXABS";
    case ScaleValue::FIXED_VALUE: return "FIXED_VALUE";
    case ScaleValue::OPT: return "OPT";
    case ScaleValue::DUMMY_SCALES: break;
  }
  return "DUMMY_SCALES";
}

const char* name_of(Rounding rounding) {
  switch (rounding) {
    case Rounding::IDENTITY: return "IDENTITY";
    case Rounding::POW2: return "POW2";
    case Rounding::HW_ALIGNED: return "HW_ALIGNED";
    case Rounding::HW_ALIGNED_FIXED: return "HW_ALIGNED_FIXED";
    case Rounding::SCALE_UNIT: break;
  }
  return "SCALE_UNIT";
}

const std::vector<NamedScaleMethod>& scale_methods() {
  static const std::vector<NamedScaleMethod> table = make_table();
  return table;
}

const NamedScaleMethod* find_scale_method(std::string_view name) {
  for (const NamedScaleMethod& method : scale_methods()) {
    if (equal_ignoring_case(method.name, name)) return &method;
  }
  return nullptr;
}

const NamedScaleMethod& scale_method_from_name(std::string_view name) {
  if (const NamedScaleMethod* method = find_scale_method(name)) return *method;
  throw std::invalid_argument("scale method '" + std::string(name) +
                              "' is unknown, allowed: " + list_of_scale_methods(false));
}

void require_built(const NamedScaleMethod& method) {
  if (method.built) return;
  throw std::invalid_argument("scale method '" + lower(method.name) +
                              "' is not built yet, allowed: " + list_of_scale_methods(true));
}

std::string list_of_scale_methods(bool built_only) {
  std::string list;
  for (const NamedScaleMethod& method : scale_methods()) {
    if (built_only && !method.built) continue;
    if (!list.empty()) list += ", ";
    list += lower(method.name);
  }
  return list;
}

}  // namespace fp8::recipes
