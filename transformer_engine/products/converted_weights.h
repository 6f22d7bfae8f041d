// SPDX-License-Identifier: Apache-2.0
// The books of what was converted for training. Every outermost region that is enabled looks into them:
//
//   begins   a parameter that lost its handler (module->to(dtype), to(device), set_data by an engine) gets its own
//            again
//   ends     named in an error, as nothing else would tell: a module that ran no product because it holds another
//            tensor by now, and one that an optimizer steps while none of its products trains in fp8
//
// Internal to convert_training, fp8_autocast and the plugins.
#pragma once
#include <string>
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

/// At the end of an outermost region; an error's text, or none. It names the modules that ran no product since the last
/// call, while others of their model did (or none of any model), and whose weight is gone, or is another tensor on hpu
/// without a handler; and those whose weight has changed twice in place (an optimizer's step) while their products ran
/// without gradients (in somebody's autograd::Function, or with scales that never moved) or with copies of it that were
/// made in the region (casts). Weights whose modules are not known, and that never ran one: a warning in the first
/// region that runs no product at all, an error in the second that does so with gradients on. trained: products of any
/// kind ran a pass of training.
std::string check_converted(bool trained);

}  // namespace fp8::te
