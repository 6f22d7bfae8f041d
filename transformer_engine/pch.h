// SPDX-License-Identifier: Apache-2.0
// Precompiled for this folder (see CMakeLists.txt). Each source includes what it uses all the same: FP8_PCH=OFF builds without this.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "fp8/recipes/recipe.h"
#include "fp8/runtime/io/json.h"
