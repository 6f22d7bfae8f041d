// SPDX-License-Identifier: Apache-2.0
// A collective that is under way on aliases of hpu tensors.
//
//   caller --Work--> DeviceWork --> Gloo's Work --> CPU aliases, which own no memory
//                        |              \-- its future, while it runs --> Operands
//                        \-- Operands: the memory of the hpu tensors
//
// The memory lives until the messages are through, also when the caller drops Work and tensors at once: then Gloo's
// future is what holds it. It holds the memory, not the caller's tensors: Gloo's thread must not be the one that drops
// the last of a tensor that Python knows, which at exit ends the process. result() and the future, where Reducer looks,
// have the caller's tensors again.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

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

  /// The hpu tensor whose alias this is, or another over its memory where the caller has dropped it; others as they
  /// are.
  at::Tensor original(const at::Tensor& alias) const;
  /// The same in a list and in a list of lists.
  c10::IValue original(c10::IValue value) const;

  void bump_versions() const;  ///< of the written ones

 private:
  struct Alias {
    at::Tensor cpu;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> callers;
    at::Tensor memory;  ///< of the same sizes, strides and version
    bool written;
  };
  std::vector<Alias> aliases_;
};

/// `running` as the caller sees it.
c10::intrusive_ptr<c10d::Work> device_work(c10::intrusive_ptr<c10d::Work> running,
                                           std::shared_ptr<const Operands> operands);

}  // namespace fp8::runtime::distributed
