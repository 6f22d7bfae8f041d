// SPDX-License-Identifier: Apache-2.0
// Converts the modules of a model in memory: weights become fp8 codes (the parameter object stays, its memory does not), a handler on
// each answers for it from then on. Forward functions are not touched.
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

#include "fp8/measure/module_tree.h"
#include "fp8/quant/plan.h"

namespace fp8::quant {

struct ConvertedModule {
  std::string name, type, scheme;  ///< scheme: "E4M3 channel weights, dynamic token activations, ocp"
  std::int64_t bytes_before = 0, bytes_after = 0;
};

/// What was converted, what was not, and why.
struct ConversionReport {
  std::vector<ConvertedModule> converted;
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
};
std::ostream& operator<<(std::ostream& out, const ConversionReport& report);

/// Converts by the plan that make_plan() makes of the model's modules. Throws c10::Error or io::Error naming the module: weights not on hpu,
/// NaN or Inf in a weight, an unmeasured module, measurements of another model. Nothing is converted then.
ConversionReport convert(const torch::nn::Module& model, const PlanOptions& options);
/// TorchScript modules (scripted, traced, frozen afterwards). `optimize_for_inference` output holds weights as constants: refused by name.
ConversionReport convert(const torch::jit::Module& model, const PlanOptions& options);
ConversionReport convert(const std::vector<measure::WeightModule>& modules, const PlanOptions& options);

/// The plan alone: what convert() would do.
Plan plan_for(const std::vector<measure::WeightModule>& modules, const PlanOptions& options);

/// The model's tree, one line a module; converted ones with format, granularity and dialect.
std::string describe(const torch::nn::Module& model);

/// Puts codes and scales on a module's weight (what convert() and the checkpoint reader end in). codes: fp8 on hpu, of the weight's shape.
/// original: the dtype that dequantizing the weight gives.
void attach_fp8(const measure::WeightModule& module, const at::Tensor& codes, const std::vector<float>& scale_inv, const Scheme& scheme,
                at::ScalarType original);

}  // namespace fp8::quant
