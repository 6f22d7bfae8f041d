// SPDX-License-Identifier: Apache-2.0
// gaudi_config.json (see gaudi_config.h).
#include "fp8/configs/training/gaudi_config.h"

#include "fp8/runtime/io/base/error.h"

namespace fp8::configs {
namespace rows {

constexpr const char* kOldPrecision = "of Habana mixed precision, which autocast has replaced";
constexpr const char* kVersion = "what wrote the file";

constexpr KeyRow kGaudiConfig[] = {
    {"use_torch_autocast", boolean(), read, "autocast to bf16", "--precision bf16-mixed"},
    {"autocast_bf16_ops", texts().or_null(), read, "LOWER_LIST: a file with one name on a line"},
    {"autocast_fp32_ops", texts().or_null(), read, "FP32_LIST: a file with one name on a line"},
    {"use_dynamic_shapes", boolean(), ignored, "an operator sees the sizes that it has: no shape is dynamic"},
    {"use_fused_adam", boolean(), ignored,
     "AdamW of fp8 train is a fused one either way; its epsilon is 1e-8, the vendor's 1e-6"},
    {"use_fused_clip_norm", boolean(), ignored, "--clip is the fused one either way"},
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

KeyRows gaudi_config_keys() { return rows::kGaudiConfig; }

Findings check_gaudi_config(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, rows::kGaudiConfig);
  const bool lower = find_value(json, kLowerOps) != nullptr, fp32 = find_value(json, kFp32Ops) != nullptr;
  if (lower != fp32)
    found.problems.push_back(key_where(where, lower ? kLowerOps : kFp32Ops) + ": found without " +
                             (lower ? kFp32Ops : kLowerOps) + ", and alone it has no effect, allowed: both or none");
  return found;
}

TrainCommand gaudi_config_command(const io::Json& json) {
  TrainCommand command;
  if (is_true(json, "use_torch_autocast")) command.arguments = {"--precision", "bf16-mixed"};
  if (find_value(json, kLowerOps) != nullptr && find_value(json, kFp32Ops) != nullptr)
    command.variables = {{"LOWER_LIST", "lower_list.txt"}, {"FP32_LIST", "fp32_list.txt"}};
  return command;
}

std::string op_list_text(const io::Json& ops) {
  std::string text;
  for (const io::Json& op : ops) text += op.get<std::string>() + "\n";
  return text;
}

}  // namespace fp8::configs
