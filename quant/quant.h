// SPDX-License-Identifier: Apache-2.0
// All of quant.
#pragma once
#include "fp8/quant/checkpoint_quantize.h"
#include "fp8/quant/convert.h"
#include "fp8/quant/load.h"
#include "fp8/quant/plan.h"
#include "fp8/quant/save.h"
#include "fp8/quant/scheme.h"
#include "fp8/runtime/intercept/weight_values.h"
