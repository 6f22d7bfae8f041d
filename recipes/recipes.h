// SPDX-License-Identifier: Apache-2.0
// Everything in recipes: values and formulas from amax to scale. No torch, no files, no modules.
#pragma once
#include "fp8/recipes/inc_scale.h"
#include "fp8/recipes/recipe.h"
#include "fp8/recipes/tensor_meta.h"
