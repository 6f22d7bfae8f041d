// SPDX-License-Identifier: Apache-2.0
// QUANT_CONFIG from a text in the test, and the error that a text gives.
#pragma once
#include <map>

#include "fp8/configs/quant_config.h"
#include "fp8/runtime/io/json/json.h"
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

// The configurations that INC, Optimum Habana and vllm-gaudi publish, as facts: repository, path, keys and values. And
// which of them are refused, with the reason.

struct PublishedConfig {
  std::string repository, path;
  io::Json keys;
  std::string name() const { return repository + "/" + path; }
};

inline std::vector<PublishedConfig> published_configs() {
  std::vector<PublishedConfig> configs;
  const io::Json table = io::read_json(std::filesystem::path(FP8_SOURCE_DIR) / "tests/configs/published_configs.json");
  for (const io::Json& row : table["configs"])
    configs.push_back({row[0].get<std::string>(), row[1].get<std::string>(), row[2]});
  return configs;
}

/// Those that are right to be refused, and what the message says.
inline const std::map<std::string, std::string>& refused_configs() {
  static const std::map<std::string, std::string> refused = {
      // No such observer; the file is there to be refused.
      {"intel/neural-compressor/test/torch/algorithms/fp8_quant/test_jsons/test_fake_measure.json",
       "key 'observer': found \"fake\""},
      // INC knows classes by their names without a module: with these two it selects nothing, and says nothing.
      {"intel/neural-compressor/neural_compressor/torch/algorithms/fp8_quant/custom_config/measure_config.json",
       "key 'allowlist.types': found 'torch.nn.Linear', which is no class that can be quantized, did you mean "
       "'Linear'?"},
      {"intel/neural-compressor/neural_compressor/torch/algorithms/fp8_quant/custom_config/quant_config.json",
       "key 'allowlist.types': found 'torch.nn.Linear', which is no class that can be quantized, did you mean "
       "'Linear'?"},
      // A key that nothing of INC's reads: weights of 4 bits are asked for, and 8 would come.
      {"intel/neural-compressor/test/torch/quantization/jsons/test_hw_quant.json", "unknown key 'int4_weights'"},
  };
  return refused;
}

}  // namespace fp8::test
