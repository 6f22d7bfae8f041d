// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG from a text in the test, and the error that a text gives.
#pragma once
#include <string>

#include "fp8/configs/quant_config.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::test {

inline configs::QuantConfig parse(const char* text) {
  return configs::parse_quant_config(io::parse_json(text, "q.json"), "q.json");
}

inline std::string error_of(const char* text) {
  try {
    parse(text);
  } catch (const io::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace fp8::test
