// SPDX-License-Identifier: Apache-2.0
// The books of what was converted for training. Every outermost region that is enabled looks into them:
//
//   begins   a parameter that lost its handler (module->to(dtype), to(device), set_data by an engine) gets its own
//            again
//   ends     a module that ran no product because it holds another tensor by now is named in an error;
//            nothing else would tell
//
// Internal to convert_training, fp8_autocast and the plugins.
#pragma once
#include <vector>

#include "fp8/measure/model/module_tree.h"

namespace torch::nn {
class Module;
}

namespace fp8::te {

/// The class name of torch's attention; its packed projections.
inline constexpr char kTorchAttention[] = "MultiheadAttention", kPackedProjections[] = "in_proj_weight";

/// The weights that training may convert: measure::weight_modules(), and torch's attention, whose projections are no
/// modules.
std::vector<measure::WeightModule> trained_weights(const torch::nn::Module& model);

/// Notes the converted weights of a model, which replace what its modules had before. Nothing is kept alive; safe from
/// several threads.
void remember_converted(const torch::nn::Module& model);
/// The same of weights whose modules are not known (from Python): a parameter that is gone counts as replaced. Where
/// all of a conversion are, they may as well be a model that was dropped: only if the region ran no product in fp8.
void remember_converted(const std::vector<measure::WeightModule>& weights);

/// Gives every parameter on hpu that lost its handler its own again, state included. Some 10 ns a weight.
void put_back_converted();

/// At the end of an outermost region. Throws c10::Error naming the modules that ran no product since the last call,
/// while others of their model did (or none of any model), and whose weight is gone, or is another tensor on hpu
/// without a handler. Warns of weights whose modules are not known, that never ran one, if the region ran none at all.
/// Each is named once.
void check_converted();

}  // namespace fp8::te
