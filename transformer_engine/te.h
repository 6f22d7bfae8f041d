// SPDX-License-Identifier: Apache-2.0
// All of training: transformer_engine, and the optimizers below it.
#pragma once
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/convert/precision_plugin.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/fp8_module.h"
#include "fp8/transformer_engine/modules/layer_norm.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"
#include "fp8/transformer_engine/products/fp8_weight.h"
#include "fp8/transformer_engine/region/fp8_autocast.h"
#include "fp8/transformer_engine/trainer.h"
