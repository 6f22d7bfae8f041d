// SPDX-License-Identifier: Apache-2.0
// What processes that send each other messages compare before they begin: each command its own facts, and these. No
// torch here.
#pragma once
#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// `facts` and what a program brings by itself: "version" and "instruction set". The same numbers need both.
io::Json with_program(io::Json facts);

}  // namespace fp8::commands
