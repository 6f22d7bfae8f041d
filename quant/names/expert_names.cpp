// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/expert_names.h"

namespace fp8::quant {

std::optional<ExpertInMemory> expert_in_memory(const std::string& module) {
  const std::string kExperts = ".block_sparse_moe.experts.";
  const auto at = module.rfind(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const std::string rest = module.substr(at + kExperts.size());  // "3.w1"
  const auto dot = rest.find('.');
  const std::string number = rest.substr(0, dot), weight = dot == std::string::npos ? "" : rest.substr(dot + 1);
  if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos ||
      (weight != "w1" && weight != "w2" && weight != "w3"))
    return std::nullopt;
  const std::string mixture = module.substr(0, at + kExperts.size()) + "moe_op";
  return ExpertInMemory{mixture, mixture + (weight == "w2" ? ".w2_list." : ".w13_list.") + number};
}

}  // namespace fp8::quant
