// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/names/expert_weights.h"

#include <algorithm>
#include <charconv>

namespace fp8::quant {
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
  if (dot == std::string_view::npos || rest.size() <= kWeight.size() ||
      rest.substr(rest.size() - kWeight.size()) != kWeight)
    return std::nullopt;
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
  const auto place = rest.starts_with(kOp) ? place_of(std::string_view(rest).substr(kOp.size())) : std::nullopt;
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

measure::MeasurementFile in_names_of_checkpoint(measure::MeasurementFile file) {
  constexpr std::string_view kMixture = ".experts.moe_op";
  const auto ends_in_mixture = [&](const std::string& name) {
    return name.size() > kMixture.size() && name.ends_with(kMixture);
  };
  const auto is_part = [&](const std::string& name) {
    return name.find(std::string(kMixture) + ".") != std::string::npos;
  };
  const bool any =
      std::any_of(file.modules.begin(), file.modules.end(), [&](const auto& m) { return ends_in_mixture(m.module); });
  if (!any) return file;
  measure::MeasurementFile out = file;
  out.model.reset();  // of the model in memory, which has other names
  out.modules.clear();
  std::erase_if(out.selected, [&](const std::string& name) { return ends_in_mixture(name) || is_part(name); });
  for (auto& m : file.modules) {
    if (!ends_in_mixture(m.module)) {
      if (!is_part(m.module)) out.modules.push_back(std::move(m));
      continue;
    }
    if (m.inputs.empty() || !m.outputs.has_value()) continue;
    const std::string experts = m.module.substr(0, m.module.size() - std::string_view("moe_op").size());
    for (std::size_t e = 0; e + 1 < m.outputs->size(); ++e) {
      const std::string expert = experts + std::to_string(e) + ".";
      for (const char* name : {"w1", "w2", "w3"}) {
        const auto& amax = std::string_view(name) == "w2" ? (*m.outputs)[e + 1] : m.inputs[0];
        out.modules.push_back({expert + name, {amax}, std::nullopt, std::nullopt});
        out.selected.push_back(expert + name);
      }
    }
  }
  return out;
}

}  // namespace fp8::quant
