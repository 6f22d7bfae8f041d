// SPDX-License-Identifier: Apache-2.0
// What fused operations keep to themselves, computed beside them for calibration: the largest probability of attention,
// and the largest activation of each expert of a mixture.
#pragma once
#include <vector>

#include "fp8/runtime/intercept/module_handler.h"

namespace fp8::measure {

/// max P of P = softmax(q . k^T * scale + mask), f32, before dropout. Row by row it is 1 / sum exp(l - max l), so P
/// itself is never made; memory: logits of 2^22 elements at a time. Rows that see nothing count as 0.
float largest_probability(const runtime::AttentionCall& call);

/// Per held expert e: max |act(x . w1[e]) * (x . w2[e])| over the tokens routed to it, in the inputs' own arithmetic; 0
/// without tokens; NaN if one is NaN.
std::vector<float> expert_amax(const runtime::MoeCall& call);

}  // namespace fp8::measure
