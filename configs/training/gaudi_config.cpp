// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json.
#include "fp8/configs/training/gaudi_config.h"

#include <algorithm>
#include <deque>

#include "fp8/runtime/io/base/file.h"

namespace fp8::configs {
namespace rows {

constexpr const char* kOldPrecision = "of Habana mixed precision, which autocast has replaced";
constexpr const char* kVersion = "what wrote the file";

constexpr KeyRow kGaudiConfig[] = {
    {"use_torch_autocast", boolean(), read, "autocast to bf16", "precision bf16-mixed"},
    {"autocast_bf16_ops", texts().or_null(), read,
     "the operators of autocast in bf16, which are a file in LOWER_LIST otherwise, and that wins"},
    {"autocast_fp32_ops", texts().or_null(), read,
     "the operators of autocast in f32, which are a file in FP32_LIST otherwise, and that wins"},
    {"use_dynamic_shapes", boolean(), ignored, "an operator sees the sizes that it has: no shape is dynamic"},
    {"use_fused_adam", boolean(), read,
     "AdamW is a fused one either way; true: the device's formula, {eps_mode} habana, false: torch's, {eps_mode} "
     "torch"},
    {"use_fused_clip_norm", boolean(), ignored, "{clip} is the fused one either way, with the same numbers"},
    {"use_habana_mixed_precision", words("false"), refused, "use_torch_autocast has replaced it"},
    {"hmp_bf16_ops", texts(), ignored, kOldPrecision},
    {"hmp_fp32_ops", texts(), ignored, kOldPrecision},
    {"hmp_is_verbose", boolean(), ignored, kOldPrecision},
    {"hmp_opt_level", text(), ignored, kOldPrecision},
    {"optimum_version", text().or_null(), ignored, kVersion},
    {"transformers_version", text().or_null(), ignored, kVersion},
    {"$schema", text(), ignored, "for editors"},
};

}  // namespace rows

namespace {

constexpr const char* kLowerOps = "autocast_bf16_ops";
constexpr const char* kFp32Ops = "autocast_fp32_ops";

}  // namespace

std::string flag_of(std::string_view option) {
  std::string flag(option);
  std::ranges::replace(flag, '_', '-');
  return flag.starts_with("--") ? flag : "--" + flag;
}

std::vector<KeyRow> with_flags(KeyRows rows) {
  static std::deque<std::string> notes;
  std::vector<KeyRow> all(rows.begin(), rows.end());
  for (KeyRow& row : all) {
    std::string note;
    for (std::string_view rest = row.note; !rest.empty();) {
      const auto open = rest.find('{'), close = rest.find('}', std::min(open, rest.size()));
      note += rest.substr(0, open);
      if (close == std::string_view::npos) break;
      note += flag_of(rest.substr(open + 1, close - open - 1));
      rest.remove_prefix(close + 1);
    }
    row.note = notes.emplace_back(std::move(note)).c_str();
  }
  return all;
}

KeyRows gaudi_config_keys() {
  static const std::vector<KeyRow> all = with_flags(rows::kGaudiConfig);
  return all;
}

Findings check_gaudi_config(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, gaudi_config_keys());
  const bool lower = find_value(json, kLowerOps) != nullptr, fp32 = find_value(json, kFp32Ops) != nullptr;
  if (lower != fp32)
    found.problems.push_back(key_where(where, lower ? kLowerOps : kFp32Ops) + ": found without " +
                             (lower ? kFp32Ops : kLowerOps) + ", and alone it has no effect, allowed: both or none");
  return found;
}

TrainCommand gaudi_config_command(const io::Json& json) {
  TrainCommand command;
  const char *autocast = "use_torch_autocast", *adam = "use_fused_adam";
  if (is_true(json, autocast)) command.settings.push_back({"precision", "bf16-mixed", autocast});
  if (find_value(json, adam) != nullptr) {
    const bool fused = is_true(json, adam);
    command.settings.push_back({"eps_mode", fused ? "habana" : "torch", adam});
    if (fused) command.settings.push_back({"eps", "1e-06", adam});
  }
  if (autocast_ops(json)) command.variables = {{"LOWER_LIST", "lower_list.txt"}, {"FP32_LIST", "fp32_list.txt"}};
  return command;
}

std::optional<AutocastOps> autocast_ops(const io::Json& json) {
  const io::Json *bf16 = find_value(json, kLowerOps), *fp32 = find_value(json, kFp32Ops);
  if (bf16 == nullptr || fp32 == nullptr) return std::nullopt;
  return AutocastOps{bf16->get<std::vector<std::string>>(), fp32->get<std::vector<std::string>>()};
}

std::string op_list_text(const std::vector<std::string>& ops) {
  std::string text;
  for (const auto& op : ops) text += op + "\n";
  return text;
}

std::vector<std::string> TrainCommand::arguments() const {
  std::vector<std::string> words;
  for (const auto& list : {settings, needed}) {
    for (const TrainSetting& setting : list) {
      words.push_back(flag_of(setting.option));
      if (setting.value) words.push_back(*setting.value);
    }
  }
  return words;
}

}  // namespace fp8::configs
