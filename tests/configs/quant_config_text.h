// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG from a text in the test, and the error that a text gives.
#pragma once

#include "fp8/configs/quant_config.h"
#include "support/throws_with.h"

namespace fp8::test {

/// Some observers, as who has them passes them: "mine" reads any parameter.
inline configs::ParseOptions with_observers() {
  using Parameters = std::vector<configs::ObserverParameter>;
  const configs::ObserverParameter bins{"bins", 2048, 16, 65536, true}, percentile{"percentile", 99.99, 0, 100},
      mib{"mib", 1, 0, 1e9};
  return {{{"maxabs", Parameters{}},
           {"percentile", Parameters{percentile, bins}},
           {"kl", Parameters{bins}},
           {"save", Parameters{mib}},
           {"mine"}}};
}

inline configs::QuantConfig parse(const std::string& text) {
  return configs::parse_quant_config(io::parse_json(text, "q.json"), "q.json", with_observers());
}

/// Of a caller that says nothing of observers.
inline configs::QuantConfig quant_config(const std::string& text) {
  return configs::parse_quant_config(io::parse_json(text, "q.json"), "q.json");
}

inline std::string config_error(const std::string& text) {
  return error_of<io::Error>([&] { parse(text); });
}

}  // namespace fp8::test
