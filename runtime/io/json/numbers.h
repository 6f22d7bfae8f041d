// SPDX-License-Identifier: Apache-2.0
// Numbers that may be NaN or infinite, which JSON has no form for. No torch here.
#pragma once
#include <cmath>
#include <limits>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

inline Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// Of what number_or_null() gave. Throws Json::exception for anything else.
inline double number_or_nan(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

/// The shortest text that reads back as `value`, "2.0" of 2; "nan", "inf", "-inf".
inline std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Json(value).dump();
}

}  // namespace fp8::io
