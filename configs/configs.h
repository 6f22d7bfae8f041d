// SPDX-License-Identifier: Apache-2.0
// Everything in configs: JSON that users write, as typed values with errors that name file and key. No tensors.
#pragma once
#include "fp8/configs/quant_config.h"
#include "fp8/configs/recipe_config.h"
