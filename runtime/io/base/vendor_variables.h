// SPDX-License-Identifier: Apache-2.0
// The rest of the table in environment.h: variables of the vendor's stack that scripts and containers for it set. They
// are known and their values are looked at, so that a misspelt one is told apart; nothing here asks for them, and each
// row says why.
#pragma once
#include <span>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::io {

std::span<const Variable> vendor_variables();

}  // namespace fp8::io
