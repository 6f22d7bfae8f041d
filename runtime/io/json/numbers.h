// SPDX-License-Identifier: Apache-2.0
// Numbers that may be NaN or infinite, which JSON has no form for. No torch here.
#pragma once
#include <cmath>
#include <limits>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

inline Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// The shortest text that reads back as `value`, "2.0" of 2; "nan", "inf", "-inf".
inline std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Json(value).dump();
}

/// What reads back as it was: "nan", "inf" and "-inf" as texts.
inline Json number_or_text(double value) { return std::isfinite(value) ? Json(value) : Json(number_text(value)); }

/// Of what number_or_null() or number_or_text() gave. Throws Json::exception for anything else.
inline double number_or_nan(const Json& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value == "inf" || value == "-inf") return value == "inf" ? kInfinity : -kInfinity;
  return value.is_null() || value == "nan" ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace fp8::io
