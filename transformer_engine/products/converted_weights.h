// SPDX-License-Identifier: Apache-2.0
// The books of what was converted for training. Every outermost region that is enabled looks into them:
//
//   begins   a parameter that lost its handler (module->to(dtype), to(device), set_data by an engine) gets its own
//            again
//   ends     named in an error, as nothing else would tell: a module that ran no product because it holds another
//            tensor by now, one that an optimizer steps while none of its products trains in fp8, and one whose weight
//            the graph has all the same
//
// Internal to convert_training, fp8_autocast and the plugins.
#pragma once

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/intercept/intercept.h"
#include "fp8/runtime/lazy/lazy_call.h"
#include "fp8/transformer_engine/products/fp8_linear.h"

// The handler of a converted module's weight while it learns: inside an enabled fp8_autocast region its linear products
// run in fp8, elsewhere every op is the op itself. The parameter keeps its dtype, its values and its identity.
//
// A product is of the whole weight, as linear, addmm, matmul, mm, mv, bmm and einsum meet it: x . w^T. Others (rows of
// it, x . w) stay in high precision; a warning names the first one that a region meets.

namespace fp8::te {

class TrainingHandler final : public runtime::OpHandler {
 public:
  static constexpr std::string_view kKind = "fp8::te::TrainingHandler";
  std::string_view kind() const override { return kKind; }
  TrainingHandler(std::shared_ptr<Fp8State> state, Fp8LinearOptions options)
      : state_(std::move(state)), options_(options) {}

  const std::shared_ptr<Fp8State>& state() const { return state_; }

  at::Tensor linear(const runtime::LinearCall& call) override;
  /// The product of any weight [N, K] with this one's state: in fp8 inside of an enabled region, elsewhere original().
  at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     const std::function<at::Tensor()>& original);
  at::Tensor convolution(const runtime::ConvolutionCall& call) override { return call.original(); }
  /// Asked for by ops without a kernel, too.
  at::Tensor dequantize(const runtime::WeightTag& tag, const runtime::WeightView& view,
                        const at::Tensor& weight) override;
  bool owns_values() const override { return false; }
  bool own_backward() const override;
  bool may_wait() const override { return true; }
  void taken_off() override { retire(); }
  /// A copy of the weight (clone(), Python's deepcopy) runs in fp8 as the weight does, with scales that follow the
  /// weight's until it trains itself.
  std::shared_ptr<runtime::OpHandler> for_copy(const at::Tensor& copy) const override;
  std::string describe() const override;

  /// Amaxes are recorded while this module trains; of a tied weight's modules, any.
  void follow(const std::shared_ptr<const torch::nn::Module>& module);
  /// Whatever the modules say, and where none is known.
  void set_training(bool training);
  /// True unless it is set.
  bool is_training() const;
  /// The switch and the modules of a handler whose place this one takes.
  void succeed(const TrainingHandler& before);

  /// Taken off on purpose (restore, another conversion): no region puts it back.
  void retire() { retired_ = true; }
  bool retired() const { return retired_; }

  /// A State (convert_training.h) shares it for as long as its module lives.
  void add_module(int more) { states_ += more; }
  bool has_module() const { return states_ > 0; }
  /// That gives the weight of each product from now on, whichever tensor it is.
  void run_by_module() { by_module_ = true; }
  bool by_module() const { return by_module_; }

  /// How many products it has run in fp8 (or recorded for it) so far.
  std::int64_t products() const { return products_; }
  /// Those and all of its copies', and theirs.
  std::int64_t products_with_copies() const { return *with_copies_; }
  /// Those in the forward of an autograd::Function of the program's; calls outside of regions; copies made inside of
  /// them.
  std::int64_t in_functions() const { return in_functions_; }
  std::int64_t plain() const { return plain_; }
  std::int64_t copies() const { return copies_; }
  /// True if it has warned of a product that stays in high precision.
  bool told() const { return told_; }

 private:
  void tell(const runtime::WeightTag& tag, const std::string& what);

  std::shared_ptr<Fp8State> state_;
  Fp8LinearOptions options_;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<const torch::nn::Module>> modules_;
  std::optional<bool> training_;
  std::atomic<bool> retired_{false}, told_{false}, by_module_{false};
  std::atomic<int> states_{0};
  std::atomic<std::int64_t> products_{0}, in_functions_{0}, plain_{0};
  mutable std::atomic<std::int64_t> copies_{0};
  std::shared_ptr<std::atomic<std::int64_t>> with_copies_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

/// The handler on a parameter; null if it has none of these.
TrainingHandler* training_handler(const at::Tensor& parameter);

/// The class name of torch's attention; its packed projections.
inline constexpr char kTorchAttention[] = "MultiheadAttention", kPackedProjections[] = "in_proj_weight";

/// The weights that training may convert: measure::weight_modules(), and torch's attention, whose projections are no
/// modules.
std::vector<measure::WeightModule> trained_weights(const torch::nn::Module& model);

/// Notes the converted weights of a model, which replace what its modules had before. Nothing is kept alive; safe from
/// several threads.
void remember_converted(const torch::nn::Module& model);
/// As above, for weights whose modules are not known (from Python): a parameter that is gone counts as replaced. Where
/// all of a conversion are, they may as well be a model that was dropped: only if the region ran no product in fp8.
void remember_converted(const std::vector<measure::WeightModule>& weights);

/// For products of a handler that no weight has: a region that runs one is not without a product.
void note_own_product();

/// Gives every parameter on hpu that lost its handler its own again, state included. Some 10 ns a weight.
void put_back_converted();

/// At the end of an outermost region; an error's text, or none. It names the modules that ran no product since the last
/// call, while others of their model did (or none of any model), and whose weight is gone, or is another tensor on hpu
/// without a handler; those whose weight came into a graph in the region while none of their products ran in fp8 (moved
/// to the host or to f64, or another weight is computed from it); and those whose weight has changed twice in place (an
/// optimizer's step) while their products ran without gradients (in an autograd::Function of the program's, or with
/// scales that never moved) or with copies of it that were made in the region (casts). Weights whose modules are not
/// known, and that never ran one: a warning in the first region that runs no product at all, an error in the second
/// that does so with gradients on. trained: products of any kind ran a pass of training.
std::string check_converted(bool trained);

}  // namespace fp8::te
