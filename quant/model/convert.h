// SPDX-License-Identifier: Apache-2.0
// Converts the modules of a model in memory: weights become fp8 codes (the parameter object stays, its memory does
// not), a handler on each answers for it from then on. Modules without a weight (products, softmax, attention,
// key-value caches, mixtures of experts) get a handler in their slot. Forward functions are not touched.
#pragma once
#include <iosfwd>

#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/checkpoint/rounded.h"
#include "fp8/quant/plan/plan.h"

namespace fp8::quant {

struct ConvertedModule {
  std::string name, type, scheme;  ///< scheme: "E4M3 channel weights, dynamic token activations, ocp"
  std::int64_t bytes_before = 0, bytes_after = 0;
  std::vector<float> reduced_scale_inv = {};  ///< PlannedModule::reduced_scale_inv
  /// A plan's (convert_modules with plan_only) alone:
  double flops_per_row = 0;  ///< of its products: per row of the input (a token), per output position of a convolution
  std::int64_t operand_bytes = 0;  ///< training: of its weight as the products take it, codes and scales
  std::optional<double> expected_error =
      {};  ///< relative RMS error of its output: the weight's as cast, the input's as of a scale that fits
};

/// The modules that were converted, those that were not, and why.
struct ConversionReport {
  std::vector<ConvertedModule> converted;
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
  std::filesystem::path scales_of = {};  ///< a config's: the measurement or scale file that was read; empty: none
};
std::ostream& operator<<(std::ostream& out, const ConversionReport& report);

/// Converts by the plan that make_plan() makes of the model's modules. Throws c10::Error or io::Error naming the
/// module: weights not on hpu, NaN or Inf in a weight, an unmeasured module, measurements of another model, a LoRA
/// layer with its adapter set. Nothing is converted then.
ConversionReport convert(const torch::nn::Module& model, const PlanOptions& options);
/// TorchScript modules (scripted, traced, frozen afterwards). `optimize_for_inference` output holds weights as
/// constants: refused by name.
ConversionReport convert(const torch::jit::Module& model, const PlanOptions& options);
/// rounded: has the codes of some of the modules, by their names; the others are rounded to nearest.
ConversionReport convert(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
                         const PlanOptions& options, const RoundedCodes* rounded = nullptr);
inline ConversionReport convert(const std::vector<measure::WeightModule>& modules, const PlanOptions& options) {
  return convert(modules, {}, options);
}

/// The plan alone: what convert() would do.
Plan plan_for(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
              const PlanOptions& options);
inline Plan plan_for(const std::vector<measure::WeightModule>& modules, const PlanOptions& options) {
  return plan_for(modules, {}, options);
}
/// The nodes that a checkpoint has scales for, or that follow its weights: attention's own stay in high precision
/// there, whatever a config says.
std::vector<measure::OpNode> nodes_of_checkpoint(const torch::nn::Module& model);
/// Does what a plan says. used: gets the static scales that are in force, as a scale file stores them. rounded: as
/// above; throws io::Error naming a module whose codes were rounded for other scales.
ConversionReport convert_by(const Plan& plan, const std::vector<measure::WeightModule>& modules,
                            const std::vector<measure::OpNode>& nodes, std::vector<ModuleScales>* used = nullptr,
                            const RoundedCodes* rounded = nullptr);

/// Throws c10::Error for a planned LoRACompatibleLinear or -Conv whose lora_layer is set.
void refuse_set_adapters(const torch::nn::Module& model, const Plan& plan);
/// The weights of a TorchScript module; c10::Error if it has none left (frozen, optimize_for_inference).
std::vector<measure::WeightModule> script_weight_modules(const torch::jit::Module& model);

/// Of the weights that are in high precision.
measure::ModelFingerprint fingerprint_of(const std::vector<measure::WeightModule>& modules);

/// The scale of a module that set_scale() changes.
enum class ScaleOf : std::uint8_t { input, output, weight };

/// Changes a scale of a converted module (scale_inv: multiplies out of fp8), in force from the next call on; what INC
/// does with RUNTIME_SCALE_PATCHING. A weight's codes stay as they are. Not while a forward runs. index: of the input
/// or output, 0 for a weight. Throws c10::Error naming the module: not converted, scales per channel or made at each
/// call, no such index, a value that is not positive and finite.
void set_scale(const torch::nn::Module& model, const std::string& module, ScaleOf which, std::size_t index,
               float scale_inv);

/// The model's tree, one line a module; converted ones with format, granularity and dialect.
std::string describe(const torch::nn::Module& model);

/// Puts codes and scales on a module's weight (what convert() and the checkpoint reader end in). codes: fp8 on hpu, of
/// the weight's shape. original: the dtype that dequantizing the weight gives. watch: shared with the model's other
/// modules, or none.
void attach_fp8(const measure::WeightModule& module, const at::Tensor& codes, const std::vector<float>& scale_inv,
                const Scheme& scheme, at::ScalarType original, std::shared_ptr<InputWatch> watch = nullptr);

// The scales of weights in memory, as their plan wants them: of one tensor, of rows, blocks, or each expert.

/// The weight as a matrix of output channels: [C_out, rest] of a convolution, else [.., K] with one channel per row
/// (stacked experts [E, N, K] have E * N). parts: how many equal groups of rows have a tensor scale of their own (each
/// expert; else all is one).
struct Channels {
  std::int64_t rows, cols, parts;
};
Channels channels_of(const measure::WeightModule& module);

/// The scales that convert() gives every planned weight, in the plan's order. Throws for NaN, Inf, and weights that are
/// not the measured ones.
std::vector<WeightScales> planned_weight_scales(const Plan& plan, const std::vector<measure::WeightModule>& modules);

// allow and block of a conversion: which modules it leaves alone whatever else selects them.

/// The patterns that are an argument of convert_modules. Throws io::Error "convert_modules: NAME: pattern ..." for one
/// that does not compile.
inline configs::NamePatterns argument_patterns(const std::string& name, const std::vector<std::string>& patterns) {
  return {patterns, "convert_modules: " + name};
}

/// Adds a warning for each that is found in no module's name.
inline void warn_of_idle(const std::string& name, const configs::NamePatterns& patterns,
                         const std::vector<std::string>& modules, std::vector<std::string>& warnings) {
  for (const std::size_t i : patterns.idle(modules))
    warnings.push_back(io::message("{}[{}] \"{}\": no module has such a name", name, i, patterns[i].pattern()));
}

class NameLists {
 public:
  NameLists(const std::vector<std::string>& allow, const std::vector<std::string>& block)
      : allow_(argument_patterns("allow", allow)), block_(argument_patterns("block", block)) {}

  /// Why a module stays in high precision; nullopt: it need not. An empty allow allows all.
  std::optional<std::string> reason_to_keep(const std::string& module) const {
    if (const auto i = block_.first_match(module)) return "blocked by \"" + block_[*i].pattern() + "\"";
    if (!allow_.empty() && !allow_.matches(module)) return "not in the allow list";
    return std::nullopt;
  }

  void warn_of_idle(const std::vector<std::string>& modules, std::vector<std::string>& warnings) const {
    quant::warn_of_idle("allow", allow_, modules, warnings);
    quant::warn_of_idle("block", block_, modules, warnings);
  }

 private:
  configs::NamePatterns allow_, block_;
};

}  // namespace fp8::quant
