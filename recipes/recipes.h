// SPDX-License-Identifier: Apache-2.0
// Everything in recipes: values and formulas from amax to scale. No torch, no files, no modules.
#pragma once
#include "fp8/recipes/block_scaling.h"
#include "fp8/recipes/current_scaling.h"
#include "fp8/recipes/delayed_scaling.h"
#include "fp8/recipes/format.h"
#include "fp8/recipes/inc_scale.h"
#include "fp8/recipes/mxfp8.h"
#include "fp8/recipes/nvfp4.h"
#include "fp8/recipes/opt_scale.h"
#include "fp8/recipes/own_recipe.h"
#include "fp8/recipes/recipe.h"
#include "fp8/recipes/recipe_registry.h"
#include "fp8/recipes/recipe_scaling.h"
#include "fp8/recipes/scale.h"
#include "fp8/recipes/scale_method.h"
#include "fp8/recipes/tensor_meta.h"
