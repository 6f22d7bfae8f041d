// SPDX-License-Identifier: Apache-2.0
// Precompiled for the commands (see CMakeLists.txt). Each source includes what it uses all the same: FP8_PCH=OFF builds without this.
#pragma once
#include <fmt/format.h>

#include "fp8/quant/convert.h"
#include "fp8/runtime/io/json.h"
#include "fp8/tools/models/load.h"
