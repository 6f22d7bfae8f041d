// SPDX-License-Identifier: Apache-2.0
// All of transformer_engine.
#pragma once
#include "fp8/transformer_engine/activation_checkpoint.h"
#include "fp8/transformer_engine/attention.h"
#include "fp8/transformer_engine/convert_training.h"
#include "fp8/transformer_engine/deepspeed_plugin.h"
#include "fp8/transformer_engine/extra_state.h"
#include "fp8/transformer_engine/fp8_autocast.h"
#include "fp8/transformer_engine/fp8_weight.h"
#include "fp8/transformer_engine/grouped_linear.h"
#include "fp8/transformer_engine/layer_norm.h"
#include "fp8/transformer_engine/layer_norm_linear.h"
#include "fp8/transformer_engine/layer_norm_mlp.h"
#include "fp8/transformer_engine/linear.h"
#include "fp8/transformer_engine/multihead_attention.h"
#include "fp8/transformer_engine/precision_plugin.h"
#include "fp8/transformer_engine/transformer_layer.h"
#include "fp8/transformer_engine/trainer/trainer.h"
