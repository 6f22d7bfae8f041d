// SPDX-License-Identifier: Apache-2.0
// Spelling help of the configuration readers: runtime/io's.
#pragma once
#include "fp8/runtime/io/base/text.h"

namespace fp8::configs {

using io::closest;
using io::edit_distance;

}  // namespace fp8::configs
