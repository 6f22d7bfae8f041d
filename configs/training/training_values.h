// SPDX-License-Identifier: Apache-2.0
// Values of training arguments, for the rules and the command of gaudi_config.h. A value of another type, which is a
// problem of its own, reads as one that is absent.
#pragma once
#include <string>
#include <vector>

#include "fp8/configs/training/key_rows.h"

namespace fp8::configs::training {

bool is_false(const io::Json& json, const std::string& path);
std::string text_of(const io::Json& json, const std::string& path);  ///< absent: ""
double number_of(const io::Json& json, const std::string& path);     ///< absent: 0

/// The model runs on the CPU.
bool on_cpu(const io::Json& arguments);
/// eval_strategy by either of its names: "no", "steps", "epoch".
std::string eval_strategy(const io::Json& arguments);
/// The names of report_to, a string or an array of them.
std::vector<std::string> reports_to(const io::Json& arguments);

}  // namespace fp8::configs::training
