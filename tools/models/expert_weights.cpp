// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/expert_weights.h"

#include <charconv>

namespace fp8::models {
namespace {

constexpr std::string_view kBlock = ".block_sparse_moe.", kOp = "experts.moe_op.", kWeight = ".weight";
constexpr const char* kPrefixes[] = {".block_sparse_moe.", ".mlp."};

/// "w13_list.7.weight" -> the list's name and 7; nullopt for anything else.
struct Place {
  bool gate_up;
  std::int64_t expert;
};
std::optional<Place> place_of(std::string_view rest) {
  const auto dot = rest.find('.');
  if (dot == std::string_view::npos || rest.size() <= kWeight.size() || rest.substr(rest.size() - kWeight.size()) != kWeight) return std::nullopt;
  const auto list = rest.substr(0, dot);
  if (list != "w13_list" && list != "w2_list") return std::nullopt;
  const auto number = rest.substr(dot + 1, rest.size() - kWeight.size() - dot - 1);
  Place place{list == "w13_list", 0};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), place.expert);
  if (error != std::errc() || end != number.data() + number.size()) return std::nullopt;
  return place;
}

}  // namespace

std::vector<WeightPiece> pieces_of(const std::string& name, const io::Checkpoint& checkpoint) {
  const auto block = name.find(kBlock);
  if (block == std::string::npos) return {{name, std::nullopt}};
  const std::string layer = name.substr(0, block), rest = name.substr(block + kBlock.size());
  const auto place = rest.rfind(kOp, 0) == 0 ? place_of(std::string_view(rest).substr(kOp.size())) : std::nullopt;
  std::vector<std::vector<WeightPiece>> forms;
  for (const std::string prefix : kPrefixes) {
    if (!place.has_value()) {
      forms.push_back({{layer + prefix + rest, std::nullopt}});
      continue;
    }
    const std::string experts = layer + prefix + "experts.", expert = experts + std::to_string(place->expert) + ".";
    if (place->gate_up) {
      forms.push_back({{expert + "w1.weight", std::nullopt}, {expert + "w3.weight", std::nullopt}});
      forms.push_back({{experts + "gate_up_proj", place->expert}});
    } else {
      forms.push_back({{expert + "w2.weight", std::nullopt}});
      forms.push_back({{experts + "down_proj", place->expert}});
    }
  }
  for (const auto& form : forms) {
    if (checkpoint.contains(form[0].tensor)) return form;
  }
  return forms[0];
}

}  // namespace fp8::models
