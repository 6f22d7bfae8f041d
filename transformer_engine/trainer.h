// SPDX-License-Identifier: Apache-2.0
// te::Trainer and what belongs to it: the loop of runtime/trainer, which knows nothing of fp8, and how it does.
#pragma once
#include "fp8/transformer_engine/convert/precision_plugin.h"

namespace fp8::te {

using namespace fp8::trainer;

}  // namespace fp8::te
