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
// is the switch where no module is known.
//
// The handler follows the parameter object: optimizer steps, load, copy_ keep it. module->to(another dtype or device)
// and set_data() take it off; it is put back when the next outermost region begins, and where a module has got another
// tensor, that region ends with its name (converted_weights.h). clone() gives a
// model of its own that runs in fp8 too: its scales follow the original's until it trains itself.
#pragma once
#include <tuple>

#include "fp8/quant/model/convert.h"
#include "fp8/transformer_engine/products/converted_weights.h"

namespace fp8::te {

/// The treatment of a weight whose sizes an fp8 GEMM of the target does not take (multiples of kAlignment).
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
      recipes::DelayedScaling::habana();  ///< the region's recipe: for the report, and to seed scales by
};

/// Throws c10::Error or io::Error naming module or pattern: a weight that is not on hpu, one that is quantized for
/// inference, a rule that does not compile. Converting again keeps the state of what is converted already. Nothing is
/// changed when it throws. Patterns that match no module are reported as warnings.
quant::ConversionReport convert_for_training(const torch::nn::Module& model, const TrainingOptions& options = {});
/// As above, of a model that is no torch::nn::Module.
quant::ConversionReport convert_for_training(const std::vector<measure::WeightModule>& modules,
                                             const TrainingOptions& options = {});

/// Takes the handlers off again: the model is what it was. Returns how many.
int restore(const torch::nn::Module& model);

/// The largest amaxes of inputs and weights that training has recorded, as a measurement file that quantization reads.
measure::MeasurementFile export_amax(const torch::nn::Module& model);
measure::MeasurementFile export_amax(const std::vector<measure::WeightModule>& modules);

/// From training to inference in one call: restore(), then the weights that trained in fp8 become fp8 codes, with
/// static scales for activations, of the amaxes that training recorded; quant::save() writes a checkpoint of it. Throws
/// c10::Error for a model that has recorded none; and what quant::convert() throws, the model then being restored.
quant::ConversionReport to_inference(const torch::nn::Module& model);

/// Per module, what casts did since the last call (saturation, underflow, stale scales), by name.
std::map<std::string, CastStatistics> take_statistics(const torch::nn::Module& model);

// The cost and the error of training one weight in fp8, before it is converted.
//
//   flops          2 N K of the forward product, 4 N K of the two backward ones, per row of the input
//   operand        bytes that the products read and backward keeps: codes and scales, along columns and rows where
//                  these differ
//   error          sqrt(e_w^2 + e_x^2), relative RMS of y = x . w^T.
//                  e_w: of this weight, cast as the recipe casts it once its scale has settled.
//                  e_x: of an input that its scale fits (quant/damage/damage.h)

/// Fills flops_per_row, operand_bytes, expected_error (none for a weight of no elements, of zeros, or with a NaN or
/// Inf). weight: [N, K] on hpu in f32, bf16 or f16.
void add_plan(const at::Tensor& weight, const recipes::Recipe& recipe, quant::ConvertedModule& line);

// Training in fp8 as operators (the list of all: runtime/intercept/tag_operators.h).
//
//   fp8::attach_training(weights, modules, types, "nvidia")
//   every step:  r = fp8::enter_autocast("nvidia");  loss = model(x);  fp8::exit_autocast(r);
//                loss.backward();  optimizer.step()
//
// Parameters keep identity, dtype and values; any optimizer works with them. fp8::untag(weight) takes a weight out of
// fp8 again. A recipe is a preset's name ("habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"), a file's
// path, or JSON (configs/recipe_config.h).

/// Gives linear weights their handlers; the recipe's rules for single modules count here. warm_start: a measurement
/// whose amaxes give the first step's scales. minimize_memory: as in TrainingOptions. whatever_region: the recipe is
/// these modules' own. The report as JSON (quant/model/operators.h). Throws as convert_for_training() does.
std::string attach_training(at::TensorList weights, const std::vector<std::string>& modules,
                            const std::vector<std::string>& types, const std::string& recipe,
                            const std::string& warm_start, bool minimize_memory, bool whatever_region = false);

/// Opens a region on this thread (fp8_autocast.h). recipe: "": the outer region's, else habana. seed: of stochastic
/// rounding, from 0. group: the group_name of one of torch.distributed's, whose ranks share their amaxes; "": the outer
/// region's, else none.
std::int64_t enter_autocast(const std::string& recipe, bool enabled, bool calibrating,
                            std::optional<bool> is_first_microbatch, std::int64_t seed, const std::string& group = "",
                            std::optional<bool> force_measurement = {});

/// Ends it. failed: as an exception does, no scale moves. Throws c10::Error for a number of no region, on another
/// thread than the one that entered, and while a region inside is open; what a process group throws ends the region all
/// the same.
void exit_autocast(std::int64_t region, bool failed);

/// A converted weight's state as JSON. Throws c10::Error for any other tensor.
std::string training_state(const at::Tensor& weight);

/// Sets whether products of attached weights are passes of training: false in evaluation, where amaxes are not recorded
/// and scales stay. Conversion from C++ follows the modules' is_training(); here no module is known, so training is on
/// until this says otherwise, and what it says outlives another fp8::attach_training. Throws c10::Error for a weight
/// that is not converted.
void set_training(at::TensorList weights, bool training);

/// The amaxes that training has recorded, written as a measurement file that fp8::convert and `fp8 quantize` read.
/// Returns the paths.
std::vector<std::string> export_amax_of(at::TensorList weights, const std::vector<std::string>& modules,
                                        const std::vector<std::string>& types, const std::string& prefix);

/// extra_state.h's two files, with the names that the weights were attached with. Throw c10::Error for a weight that is
/// not converted.
void save_training_state(at::TensorList weights, const std::string& folder);
std::string load_training_state(at::TensorList weights, const std::string& folder);

/// One weight's state as bytes (state_text() of extra_state.h), whatever its name. Throw c10::Error for a weight that
/// is not converted, and what set_state_text() throws; nothing has changed then.
at::Tensor training_state_bytes(const at::Tensor& weight);
void set_training_state_bytes(const at::Tensor& weight, const at::Tensor& bytes);

/// A parameter of initial values (f32, bf16 or f16 on hpu) holds fp8 codes from now on (fp8_weight.h); its gradients
/// have the dtype that it had. recipe: "": E4M3 and a scale that is a power of two. Throws std::invalid_argument for
/// one with block scales.
void hold_in_fp8(const at::Tensor& parameter, const std::string& module, const std::string& recipe);

/// What stands beside the codes: {scale_inv, how often values were assigned}, from which the rounding is drawn; codes
/// and numbers of another one; new values. Throw c10::Error for another tensor, and for what does not fit.
std::tuple<double, std::int64_t> held_state(const at::Tensor& weight);
void set_held(const at::Tensor& weight, const at::Tensor& codes, double scale_inv, std::int64_t assigned);
void assign_held(const at::Tensor& weight, const at::Tensor& values);

/// What a weight takes of a state_dict: one that holds codes takes these, with what stands beside them (held), or
/// values, and none is returned; of one in high precision the values of codes, for it to take.
/// key: the state_dict's, in messages.
std::optional<at::Tensor> read_held(const at::Tensor& weight, const at::Tensor& given, at::ArrayRef<double> held,
                                    const std::string& key);

/// The fp8 state of one product that a module owns, where its weight can't: gathered for each step, or of a class that
/// makes weights anew. In Python torch.classes.fp8.State(name, recipe="", minimize_memory=False, attention=False);
/// recipe: its own, whatever the region's; attention: of the tensors of fp8::fused_attention. With it
///
///   y = fp8::linear(x, weight, bias, state)
///
/// is the product that a converted weight has: in fp8 inside of an enabled region, with nodes for backward where
/// gradients are on. Those keep fp8 codes: the weight's memory may be gone by then, but with minimize_memory.
/// A pickle has the state.
class State final : public torch::CustomClassHolder {
 public:
  State(const std::string& name, std::string recipe, bool minimize_memory, bool attention = false);
  State(std::shared_ptr<TrainingHandler> handler, std::string recipe, bool minimize_memory);
  ~State() override;
  State& operator=(State&&) = delete;

  /// For one product. Throws c10::Error where it is of a linear product and an attention's is asked for, or the other
  /// way round.
  const std::shared_ptr<Fp8State>& for_product(bool attention) const;
  const std::string& name() const { return handler_->state()->name(); }
  const std::string& recipe() const { return recipe_; }
  bool minimizes_memory() const { return minimize_memory_; }
  bool of_attention() const { return handler_->state()->forward_tensors() == 4; }
  std::string values() const;  ///< training_state()'s JSON
  at::Tensor bytes() const;    ///< training_state_bytes()'s
  void set_bytes(const at::Tensor& bytes);
  void set_training(bool training) { handler_->set_training(training); }
  at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias);

  /// Weights that are sharded over ranks, gathered in fp8. The codes of a part of the weight, as bytes, with the scale
  /// that the next product of this region casts all of it with. amax: of the whole. again: as the last call did,
  /// whatever the region is (in backward). Throws c10::Error for recipes with more than one scale.
  at::Tensor cast_part(const at::Tensor& part, double amax, bool again);
  /// All of the codes: what products take from now on, of whose `weight` only sizes and gradient count; none: values
  /// again.
  void set_gathered(const std::optional<at::Tensor>& codes);

 private:
  kernels::CastSpec spec_of_parts(double amax, at::ScalarType dtype);

  std::optional<kernels::CastSpec> cast_;  ///< of parts
  GatheredWeight parts_;                   ///< what they make, without codes
  std::string recipe_;
  bool minimize_memory_;
  std::shared_ptr<TrainingHandler> handler_;
};

/// Makes the class known, once: files whose operators take one call it before they register these.
bool register_state();

/// A converted weight's own state, for its module: it outlives the weight, which an engine that shards parameters puts
/// another in place of. recipe, minimize_memory: what it was converted with. Throws c10::Error for a weight that is not
/// converted.
c10::intrusive_ptr<State> state_of_weight(const at::Tensor& weight, std::string recipe, bool minimize_memory);

}  // namespace fp8::te
