// SPDX-License-Identifier: Apache-2.0
// All of quant.
#pragma once
#include "fp8/quant/checkpoint/quantize.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/quant/model/load.h"
#include "fp8/quant/model/save.h"
#include "fp8/runtime/intercept/weight_tag.h"
