// SPDX-License-Identifier: Apache-2.0
// The callbacks and loggers that run files know, with Lightning's arguments. Not for users.
#pragma once
#include <map>
#include <string>

#include "fp8/runtime/trainer/parts/part_registry.h"

namespace fp8::trainer {

std::map<std::string, MakePart<TrainerCallback>> callback_parts();

}  // namespace fp8::trainer
