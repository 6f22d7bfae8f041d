// SPDX-License-Identifier: Apache-2.0
// Training in fp8 as operators (the list of all: runtime/intercept/tag_operators.h).
//
//   fp8::attach_training(weights, modules, types, "nvidia")
//   every step:  r = fp8::enter_autocast("nvidia");  loss = model(x);  fp8::exit_autocast(r);
//                loss.backward();  optimizer.step()
//
// Parameters keep identity, dtype and values; any optimizer goes on with them. fp8::untag(weight) takes a weight out of
// fp8 again. A recipe is a preset's name ("habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"), a file's
// path, or JSON (configs/recipe_config.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fp8::te {

/// Gives linear weights their handlers; the recipe's rules for single modules count here. warm_start: a measurement
/// whose amaxes give the first step's scales. The report as JSON (quant/model/operators.h). Throws as
/// convert_for_training() does.
std::string attach_training(at::TensorList weights, const std::vector<std::string>& modules,
                            const std::vector<std::string>& types, const std::string& recipe,
                            const std::string& warm_start);

/// Opens a region on this thread (fp8_autocast.h). recipe: "": the outer region's, else habana. seed: of stochastic
/// rounding, from 0. group: the group_name of one of torch.distributed's, whose ranks share their amaxes; "": the outer
/// region's, else none.
std::int64_t enter_autocast(const std::string& recipe, bool enabled, bool calibrating,
                            std::optional<bool> is_first_microbatch, std::int64_t seed, const std::string& group = "");

/// Ends it. failed: as an exception does, no scale moves. Throws c10::Error for a number of no region, on another
/// thread than the one that entered, and while a region inside is open; what a process group throws ends the region all
/// the same.
void exit_autocast(std::int64_t region, bool failed);

/// A converted weight's state as JSON. Throws c10::Error for any other tensor.
std::string training_state(const at::Tensor& weight);

/// Whether the products of attached weights are passes of training: false in evaluation, where amaxes are not recorded
/// and scales stay. Conversion from C++ follows the modules' is_training(); here no module is known, so training is on
/// until this says otherwise, and what it says outlives another fp8::attach_training. Throws c10::Error for a weight
/// that is not converted.
void set_training(at::TensorList weights, bool training);

/// What training has seen, written as a measurement file that fp8::convert and `fp8 quantize` read. Returns the paths.
std::vector<std::string> export_amax_of(at::TensorList weights, const std::vector<std::string>& modules,
                                        const std::vector<std::string>& types, const std::string& prefix);

/// extra_state.h's two files, with the names that the weights were attached with. Throw c10::Error for a weight that is
/// not converted.
void save_training_state(at::TensorList weights, const std::string& folder);
std::string load_training_state(at::TensorList weights, const std::string& folder);

}  // namespace fp8::te
