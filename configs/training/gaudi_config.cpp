// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json.
#include "fp8/configs/training/gaudi_config.h"

#include <algorithm>
#include <deque>

#include "fp8/runtime/io/base/file.h"
#include "optimum_json.h"

namespace fp8::configs {
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

namespace {

std::vector<KeyRow> optimum_table(const char* name) {
  static const auto& tables = *new io::KeyTables(kOptimumJson);
  return with_flags(tables[name]);
}

}  // namespace

KeyRows gaudi_config_keys() {
  static const std::vector<KeyRow> all = optimum_table("gaudi_config");
  return all;
}

KeyRows training_argument_keys() {
  static const std::vector<KeyRow> all = optimum_table("arguments");
  return all;
}

Findings check_gaudi_config(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, gaudi_config_keys());
  const bool lower = find_value(json, kLowerOps) != nullptr, fp32 = find_value(json, kFp32Ops) != nullptr;
  if (lower != fp32)
    found.problems.push_back(io::message("{}: found without {}, and alone it has no effect, allowed: both or none",
                                         key_where(where, lower ? kLowerOps : kFp32Ops), lower ? kFp32Ops : kLowerOps));
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
