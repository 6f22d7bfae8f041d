// SPDX-License-Identifier: Apache-2.0
// TrainerOptions::deterministic. Not for users.
#pragma once
#include <ATen/Context.h>

#include <optional>

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {

/// LibTorch's switch as `mode` has it while this lives; none: as it is.
class DeterministicScope {
 public:
  explicit DeterministicScope(std::optional<Deterministic> mode) : changed_(mode.has_value()) {
    if (changed_) set(*mode != Deterministic::no, *mode == Deterministic::warn);
  }
  ~DeterministicScope() {
    if (changed_) set(before_, before_warns_);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  static void set(bool on, bool warns) { at::globalContext().setDeterministicAlgorithms(on, warns); }

  bool changed_;
  bool before_ = at::globalContext().deterministicAlgorithms();
  bool before_warns_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

}  // namespace fp8::trainer
