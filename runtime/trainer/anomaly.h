// SPDX-License-Identifier: Apache-2.0
// TrainerOptions::detect_anomaly: which operation of a step made the first NaN and the first infinity, forward and
// backward, on any device.
//
//   aten::log made the first infinite value (forward, behind 'hidden'); aten::sub made the first NaN (forward, ...)
//
// An operation makes a value that its operands do not have; one that gets it from outside of what can be seen (a batch)
// met it. Infinities that were asked for (a mask filled with one) do not count. It sees what goes through LibTorch's
// dispatcher, an operation and not what it consists of; codes in fp8 are not looked at, but what is decoded from them
// is. Not for users.
#pragma once
#include <memory>
#include <string>

namespace torch::nn {
class Module;
}

namespace fp8::trainer {

/// Watches the thread that made it while it lives. One at a time of each thread.
class AnomalyWatch {
 public:
  /// network: whose parameters say where an operation is.
  explicit AnomalyWatch(torch::nn::Module& network);
  ~AnomalyWatch();
  AnomalyWatch(const AnomalyWatch&) = delete;
  AnomalyWatch& operator=(const AnomalyWatch&) = delete;

  /// Forgets all records.
  void begin_step();
  /// Since then: what was made or met first, in order; "": everything was finite.
  std::string report() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace fp8::trainer
