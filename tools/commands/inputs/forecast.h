// SPDX-License-Identifier: Apache-2.0
// What a run is about to take, said before it begins where that is over a minute:
//
//   seconds = operations / speed     operations of a forward: 2 for each weight that multiplies a token, and 4 H for
//                                    each layer and token before it (scores and sums of attention, half of L of them);
//                                    of a training step three times that, as the gradients take two products more
//                                    (Kaplan et al. 2020, section 2.1)
//   speed    tried for a moment: products [256, 2048] x [2048, 2048] in the compute dtype on the run's device
#pragma once

#include "fp8/tools/commands/inputs/torch_scope.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::commands {

struct Work {
  std::string command;   ///< "measure"
  std::int64_t weights;  ///< that multiply each token
  std::int64_t tokens;
  double operations;   ///< of all tokens
  std::int64_t bytes;  ///< that the process takes at its highest, as far as it is known before
};

/// The weights of `model` that multiply a token: of a mixture's experts the share that a token is sent to; no tables of
/// embeddings.
std::int64_t multiplied_weights(const models::CausalLM& model);

/// One forward of so many tokens in rows of `columns`. bytes: as Work has it.
Work forward_work(const std::string& command, const models::CausalLM& model, std::int64_t tokens, std::int64_t columns,
                  std::int64_t bytes);

/// "measure: about 34 min and 17.1 GB of memory: 131,072 tokens x 8.0 G weights, reckoned at 47 GFLOP/s as tried on
/// this machine"; empty below a minute. flops: operations a second.
std::string forecast_text(const Work& work, double flops);

/// Tells the user before work begins that takes over a minute; says nothing with --quiet. dtype: that of the products.
void say_forecast(const Work& work, at::ScalarType dtype, const Context& context);

}  // namespace fp8::commands
