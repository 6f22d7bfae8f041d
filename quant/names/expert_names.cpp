// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/expert_names.h"

#include <string_view>

namespace fp8::quant {
namespace {

constexpr std::string_view kUpList = ".w13_list.", kDownList = ".w2_list.";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::optional<ExpertInMemory> expert_in_memory(const std::string& module) {
  const std::string kExperts = ".block_sparse_moe.experts.";
  const auto at = module.rfind(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const std::string rest = module.substr(at + kExperts.size());  // "3.w1"
  const auto dot = rest.find('.');
  const std::string number = rest.substr(0, dot), weight = dot == std::string::npos ? "" : rest.substr(dot + 1);
  if (!is_number(number) || (weight != "w1" && weight != "w2" && weight != "w3")) return std::nullopt;
  const std::string mixture = module.substr(0, at + kExperts.size()) + "moe_op";
  return ExpertInMemory{mixture, mixture + std::string(weight == "w2" ? kDownList : kUpList) + number};
}

std::optional<ExpertWeight> expert_weight(const std::string& name) {
  for (const std::string_view list : {kUpList, kDownList}) {
    const auto at = name.rfind(list);
    if (at == std::string::npos) continue;
    const std::string number = name.substr(at + list.size());
    if (!is_number(number) || number.size() > 6) continue;
    return ExpertWeight{name.substr(0, at), static_cast<std::size_t>(std::stoul(number)), list == kDownList};
  }
  return std::nullopt;
}

}  // namespace fp8::quant
