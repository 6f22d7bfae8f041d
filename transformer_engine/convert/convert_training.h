// SPDX-License-Identifier: Apache-2.0
// Conversion for training: every linear weight of a module tree gets a handler that runs its products in fp8 inside an
// fp8_autocast region. Nothing is re-initialised or replaced: parameters keep identity, dtype, device, requires_grad,
// so an optimizer that was built before works on.
//
//   Linear and classes derived from it   weight
//   torch::nn::MultiheadAttention        in_proj_weight where query, key and value are one tensor (slices of it, which
//                                        cross attention multiplies, stay in high precision: the report says so, and a
//                                        warning at the first one),
//                                        q_proj_weight, k_proj_weight, v_proj_weight; out_proj is a Linear
//   all else that has a matrix           stays in high precision, and the report says so
//
// Amaxes are recorded and scales move while the module that owns the weight trains (is_training()); fp8::set_training
// (training_operators.h) is the switch where no module is known.
//
// The handler follows the parameter object: optimizer steps, load, copy_ keep it. module->to(another dtype or device)
// and set_data() take it off; it is put back when the next outermost region begins, and where a module has got another
// tensor, that region ends with its name (converted_weights.h). clone() gives a
// model of its own that runs in fp8 too: its scales follow the original's until it trains itself.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/configs/recipe_config.h"
#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/model/convert.h"
#include "fp8/recipes/recipe.h"
#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

/// What to do with a weight whose sizes an fp8 GEMM of the target does not take (multiples of kAlignment).
enum class Alignment : std::uint8_t {
  any,    ///< convert it: the host takes all sizes; the report says "unpadded"
  leave,  ///< leave it in high precision
  pad  ///< convert it as the target would, zero padded; results are those of `any`, the report names the padded sizes
};
inline constexpr std::int64_t kAlignment = 16;

/// A recipe for some modules: the first rule whose pattern matches; none: the module stays in high precision. Modules
/// of transformer_engine obey rules, allow and block too; the report warns of patterns that meet no module.
using ModuleRecipe = configs::RecipeRule;

struct TrainingOptions {
  std::vector<ModuleRecipe> rules;
  std::vector<std::string> allow, block;  ///< Python regular expressions; empty allow: all
  Alignment alignment = Alignment::any;
  bool minimize_memory = false;  ///< fp8 weights are cast again in backward (also PT_HPU_FP8_MINIMIZE_MEMORY=1)
  bool plan_only = false;        ///< report with costs and expected errors, change nothing
  /// Scales of the first step from amaxes measured before (measure, or export_amax() of another run); needs `recipe`.
  std::optional<measure::MeasurementFile> warm_start;
  recipes::Recipe recipe =
      recipes::DelayedScaling::habana();  ///< what the region will say: for the report, and to seed scales by
};

/// Throws c10::Error or io::Error naming module or pattern: a weight that is not on hpu, one that is quantized for
/// inference, a rule that does not compile. Converting again keeps the state of what is converted already. Nothing is
/// changed when it throws. Patterns that match no module are reported as warnings.
quant::ConversionReport convert_for_training(const torch::nn::Module& model, const TrainingOptions& options = {});
/// The same of a model that is no torch::nn::Module.
quant::ConversionReport convert_for_training(const std::vector<measure::WeightModule>& modules,
                                             const TrainingOptions& options = {});

/// Takes the handlers off again: the model is what it was. Returns how many.
int restore(const torch::nn::Module& model);

/// The largest amaxes of inputs and weights that training has recorded, as a measurement file that quantization reads.
measure::MeasurementFile export_amax(const torch::nn::Module& model);
measure::MeasurementFile export_amax(const std::vector<measure::WeightModule>& modules);

/// Per module, what casts did since the last call (saturation, underflow, stale scales), by name.
std::map<std::string, CastStatistics> take_statistics(const torch::nn::Module& model);

}  // namespace fp8::te
