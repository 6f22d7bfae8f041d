// SPDX-License-Identifier: Apache-2.0
// The common parts of this folder's optimizers. They are torch::optim::Optimizers, so schedulers, zero_grad and
// closures work, and each step is one call of a kernel for all parameters of all groups.
//
//   step(): closure -> parameters that have a gradient -> update() -> parameters held in fp8 take their new values back
//
// Parameters are f32, bf16 or f16 on cpu or hpu, or held in fp8 (runtime/intercept/weight_tag.h; gradients in
// f32, bf16 or f16). Those without gradient are passed over and keep their state; sparse gradients are an error. NaN
// and infinity go where the formulas take them.
#pragma once
#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <tuple>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime {
class QuantizedParameter;
}

namespace fp8::runtime::optim {

/// Options of one group, with names under which they are saved.
class FusedOptions : public torch::optim::OptimizerOptions {
 public:
  /// Throws c10::Error naming optimizer, option and allowed range.
  virtual void check(const char* optimizer) const = 0;
  /// Name and value of each option.
  virtual std::vector<std::pair<std::string, c10::IValue>> values() const = 0;
  /// Sets the option of that name; false if there is none. Throws for a value of another type or unknown word.
  virtual bool set(const std::string& name, const c10::IValue& value) = 0;

  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// Options that the archive lacks stay as they are. Throws where one is on that is not known here (amsgrad).
  void serialize(torch::serialize::InputArchive& archive) override;
};

/// How options become values of an archive and back; enumerations do it by their names.
inline c10::IValue to_value(double x) { return x; }
inline c10::IValue to_value(bool x) { return x; }
inline c10::IValue to_value(std::int64_t x) { return x; }
inline c10::IValue to_value(const std::tuple<double, double>& x) { return x; }
inline void from_value(const c10::IValue& value, double& x) { x = value.toDouble(); }
inline void from_value(const c10::IValue& value, bool& x) { x = value.toBool(); }
inline void from_value(const c10::IValue& value, std::int64_t& x) { x = value.toInt(); }
inline void from_value(const c10::IValue& value, std::tuple<double, double>& x) {
  x = value.to<std::tuple<double, double>>();
}

template <NamedEnum E>
c10::IValue to_value(E x) {
  return name_of(x);
}

/// Throws "Muon: ratio is "x", allowed are original and match_rms_adamw".
template <NamedEnum E>
E enum_of(const char* optimizer, const std::string& option, const c10::IValue& value) {
  const std::string& word = value.toStringRef();
  const auto found = parse_enum<E>(word);
  TORCH_CHECK(found, optimizer, ": ", option, " is \"", word, "\", allowed are ",
              io::joined(enum_names<E> | std::views::transform(&EnumName<E>::name), " and "));
  return *found;
}

/// An option's name and the option itself.
template <class T>
std::pair<const char*, T&> named(const char* name, T& option) {
  return {name, option};
}

/// Derived has lr() and `static auto options(auto& o)`, which returns a tuple of all its options, each named().
template <class Derived>
class FusedOptionsOf : public FusedOptions {
 public:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
  double get_lr() const override { return static_cast<const Derived&>(*this).lr(); }
  void set_lr(double lr) override { static_cast<Derived&>(*this).lr(lr); }
  std::vector<std::pair<std::string, c10::IValue>> values() const override {
    std::vector<std::pair<std::string, c10::IValue>> result;
    const auto add = [&](const auto&... option) { (result.emplace_back(option.first, to_value(option.second)), ...); };
    std::apply(add, Derived::options(static_cast<const Derived&>(*this)));
    return result;
  }
  bool set(const std::string& name, const c10::IValue& value) override {
    bool found = false;
    const auto set_named = [&](const auto& option) {
      if (name != option.first) return;
      if constexpr (NamedEnum<std::remove_cvref_t<decltype(option.second)>>)
        option.second = enum_of<std::remove_cvref_t<decltype(option.second)>>(Derived::kOptimizer, name, value);
      else
        from_value(value, option.second);
      found = true;
    };
    std::apply([&](const auto&... option) { (set_named(option), ...); },
               Derived::options(static_cast<Derived&>(*this)));
    return found;
  }
};

/// Throws unless ok: "<optimizer>: <option> is <value>, allowed is <range>".
void check_option(bool ok, const char* optimizer, const char* option, double value, const char* range);
/// The checks that several optimizers have. eps may be 0, as upstream: an element that never had a gradient is then 0 /
/// 0.
void check_lr(const char* optimizer, double lr);
void check_weight_decay(const char* optimizer, double weight_decay);
void check_betas(const char* optimizer, const std::tuple<double, double>& betas);
void check_eps(const char* optimizer, double eps);

/// The state of one parameter: steps taken, and tensors by name (sizes of the parameter, or one
/// element).
struct FusedState : public torch::optim::OptimizerCloneableParamState<FusedState> {
  std::int64_t step = 0;
  std::map<std::string, at::Tensor> tensors;

  void serialize(torch::serialize::OutputArchive& archive) const override;
  void serialize(torch::serialize::InputArchive& archive) override;
};

/// A parameter that takes part in a step.
struct Participant {
  at::Tensor weight;  ///< the values to update in place: the parameter itself, or the f32 values of one held in fp8
  at::Tensor grad;
  FusedState* state = nullptr;
  const FusedOptions* options = nullptr;
  std::uint64_t number = 0;  ///< place among all parameters of the optimizer
};

/// One step of all participants; weights, gradients and options are checked, gradients are enabled nowhere, states
/// exist.
using Update = void (*)(const char* optimizer, const std::vector<Participant>& participants);

class FusedOptimizer : public torch::optim::Optimizer {
 public:
  FusedOptimizer& operator=(FusedOptimizer&&) = delete;  // graphs know it by its address
  ~FusedOptimizer() override;

  /// Returns the closure's loss, or an undefined tensor.
  at::Tensor step(LossClosure closure = nullptr) final;

  /// A group's options are complete: they are taken as they are, nothing is inherited from the defaults (copy those and
  /// change what differs). Groups without options get the defaults. Throws for options of another optimizer, out of
  /// range, and for a parameter that is there already or is no leaf.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Upstream's archive layout: FusedAdamW reads archives of torch::optim::Adam and AdamW (they look the same, and
  /// weight_decay is AdamW's from then on), FusedSGD those of SGD. AdamW and SGD read theirs too
  /// (torch::load(optimizer, file, device): states are saved from the CPU), but for moments in fp8 and
  /// bias_correction(false), which AdamW has no words for. Keys are the parameters' places, so that equal states give
  /// equal bytes. load() keeps the optimizer as it was when it throws.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// The state of all parameters as CPU tensors, for checkpoints without pickle: "<group>.<index>.step" (int64, one
  /// element) and "<group>.<index>.<name>". load_tensors takes the same; parameters of which it says nothing start
  /// anew. Throws for keys that no parameter has and for tensors of other sizes (names ending in _scale have one
  /// element).
  std::map<std::string, at::Tensor> tensors() const;
  void load_tensors(const std::map<std::string, at::Tensor>& tensors);

 protected:
  FusedOptimizer(const char* name, Update update, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 std::unique_ptr<FusedOptions> defaults);

  const char* name() const { return name_; }
  /// Throws if a group of these options may not be part of this optimizer, or `parameter` not of that group.
  virtual void check_group(const FusedOptions& options, const std::vector<at::Tensor>& parameters) const = 0;

 private:
  /// The parameters that have a gradient, [i] of group [g].
  struct Chosen {
    std::size_t group, index;
    std::uint64_t number;
  };
  /// A step that has been checked. update: takes no part of the optimizer but the states.
  struct Step {
    const char* name;
    Update update;
    std::vector<Participant> participants;
    std::vector<std::pair<std::size_t, QuantizedParameter*>> held;  ///< participants whose weights are codes
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options = {};  ///< those of the call, in lazy mode
    void run();
  };
  /// Of those, with these gradients, and with the rates of this moment.
  Step prepare(const std::vector<Chosen>& chosen, at::TensorList grads);
  /// Its weights, gradients and rates are those of the call.
  void step_later(const std::vector<Chosen>& chosen, at::TensorList grads);
  void assign_state(std::unique_ptr<FusedState> state, const at::Tensor& parameter, const std::string& key,
                    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>& into) const;

  const char* name_;
  Update update_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< for graphs, which may outlive it
};

/// An optimizer whose groups all have `Options`, which names it (kOptimizer) and has its step, a static update(name,
/// participants).
template <class Options>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  explicit FusedOptimizerOf(std::vector<at::Tensor> parameters, Options defaults = {})
      : FusedOptimizerOf({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
  explicit FusedOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults = {})
      : FusedOptimizer(Options::kOptimizer, &Options::update, groups, std::make_unique<Options>(std::move(defaults))) {
    for (const auto& group : groups) add_param_group(group);
  }

 protected:
  void check_group(const FusedOptions& options, const std::vector<at::Tensor>&) const override {
    TORCH_CHECK(dynamic_cast<const Options*>(&options) != nullptr, name(),
                ": the options of a group are another optimizer's, allowed are ", name(), "Options");
  }
};

}  // namespace fp8::runtime::optim
