// SPDX-License-Identifier: Apache-2.0
// The files besides QUANT_CONFIG that `fp8 config` knows: recipes, DeepSpeed's JSON, gaudi_config.json and training
// arguments of Optimum Habana.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/configs/training/gaudi_config.h"
#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/tools/commands/config/config.h"

namespace fp8::commands {

enum class ConfigKind : std::uint8_t { quant, recipe, deepspeed, gaudi, arguments };
constexpr auto names_of(ConfigKind) {
  using enum ConfigKind;
  return std::to_array<EnumName<ConfigKind>>(
      {{quant, "quant"}, {recipe, "recipe"}, {deepspeed, "deepspeed"}, {gaudi, "gaudi"}, {arguments, "arguments"}});
}
using fp8::name_of;

/// The kind whose keys most of the file's are, quant where none is; gaudi_config.json by its name.
ConfigKind kind_of(const io::Json& json, const std::filesystem::path& file);

/// Of every kind but quant. source: the file.
configs::Findings check_kind(ConfigKind kind, const io::Json& json, const std::string& source,
                             const configs::DeepSpeedUse& use);

/// Every key with value and effect, what the whole comes to, and `findings`. Of every kind but quant.
Explanation explain_kind(ConfigKind kind, const io::Json& json, const std::string& source,
                         const configs::DeepSpeedUse& use, const configs::Findings& findings);

/// Writes the two lists of a gaudi_config.json into a folder, named as its variables say; nothing if it has none.
void write_op_lists(const io::Json& json, const std::filesystem::path& folder);

/// fp8 config deepspeed: DeepSpeed's JSON of a strategy that is called so, or whose arguments stand in a file.
/// settings: "stage=3", over those.
io::Json deepspeed_of(const std::filesystem::path& strategy, const std::vector<std::string>& settings);

}  // namespace fp8::commands
