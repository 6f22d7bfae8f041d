// SPDX-License-Identifier: Apache-2.0
// All of training: transformer_engine, and the optimizers below it.
#pragma once
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "fp8/transformer_engine/trainer.h"
