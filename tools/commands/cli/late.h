// SPDX-License-Identifier: Apache-2.0
// Functions that need LibTorch. They live in libfp8_program.so, those of training in libfp8_train_program.so, which the
// first call of one loads, so that commands that need none start in milliseconds, and run on machines without LibTorch.
// No torch here.
//
//   budget.h            extern Late<BudgetResult(...)> meet_budget;
//   budget.cpp          decltype(meet_budget) meet_budget;              empty; called by quantize.cpp
//   budget_search.cpp   const Provided g_budget(meet_budget, search);   filled while libfp8_program.so is loaded
//
// So is a command that computes: evaluate_options.{h,cpp} declare its options, check them and call evaluate_model,
// which evaluate.cpp provides.
#pragma once
#include <functional>
#include <utility>

namespace fp8::commands {

/// Loads libfp8_program.so, and before it the LibTorch that FP8_LIBTORCH names. Throws io::Error saying what is
/// missing; in the static program (late_static.cpp) UsageError.
void load_program();

/// load_program(), and then libfp8_train_program.so. Throws io::Error with the command that builds it where it is
/// missing.
void load_training();

/// Throws io::Error: the library that was loaded is another version's.
[[noreturn]] void fail_not_provided();

template <class>
class Late;

template <class R, class... A>
class Late<R(A...)> {
 public:
  /// load: load_training for what the training wing provides.
  explicit Late(void (*load)() = load_program) : load_(load) {}
  /// Throws io::Error where LibTorch can't be loaded, and what the function throws.
  R operator()(A... arguments) const {
    if (!function_) load_();
    if (!function_) fail_not_provided();
    return function_(std::forward<A>(arguments)...);
  }
  void provide(std::function<R(A...)> function) { function_ = std::move(function); }

 private:
  void (*load_)();
  std::function<R(A...)> function_;
};

}  // namespace fp8::commands
