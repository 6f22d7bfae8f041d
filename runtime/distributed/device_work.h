// SPDX-License-Identifier: Apache-2.0
// A collective that is under way on aliases of hpu tensors.
//
//   caller --Work--> DeviceWork --> Gloo's Work --> CPU aliases, which own no memory
//                        |              \-- its future, while it runs --> Operands
//                        \-- Operands: the hpu tensors of the aliases
//
// The memory lives until the messages are through, also when the caller drops Work and tensors at once: then Gloo's
// future is what holds it. What its results were made with are hpu tensors again in result() and in the future, where
// Reducer looks for them.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

namespace fp8::runtime::distributed {

/// The tensors of one call.
class Operands {
 public:
  /// t on hpu: a CPU tensor over its memory; fp8 as bytes. Others as they are. written: by the call, so its version is
  /// another from now on, and once more when the messages are through.
  at::Tensor alias(const at::Tensor& t, bool written);

  /// The hpu tensor whose alias this is; others as they are.
  at::Tensor original(const at::Tensor& alias) const;
  /// The same in a list and in a list of lists.
  c10::IValue original(const c10::IValue& value) const;

  bool any() const { return !aliases_.empty(); }
  void bump_versions() const;  ///< of the written ones

 private:
  struct Alias {
    at::Tensor cpu, hpu;
    bool written;
  };
  std::vector<Alias> aliases_;
};

/// `running` as the caller sees it.
c10::intrusive_ptr<c10d::Work> device_work(c10::intrusive_ptr<c10d::Work> running,
                                           std::shared_ptr<const Operands> operands);

}  // namespace fp8::runtime::distributed
