// SPDX-License-Identifier: Apache-2.0
// All of transformer_engine.
#pragma once
#include "fp8/transformer_engine/activation_checkpoint.h"
#include "fp8/transformer_engine/convert_training.h"
#include "fp8/transformer_engine/extra_state.h"
#include "fp8/transformer_engine/fp8_autocast.h"
#include "fp8/transformer_engine/fp8_weight.h"
#include "fp8/transformer_engine/linear.h"
#include "fp8/transformer_engine/precision_plugin.h"
