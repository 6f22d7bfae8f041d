// SPDX-License-Identifier: Apache-2.0
// One call of a kernel on host pointers. Whatever device the call was made on, its tensors lie in the host's memory,
// element after element without gaps (strides are those of the sizes):
//
//   in<T>(i)      argument i of the schema, read only
//   out<T>(i)     result i, of the shape function's size and dtype, not initialised
//   argument(i)   numbers, strings, lists, what may be absent; tensors in it are the CPU's
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace fp8::runtime {

class HostCall {
 public:
  /// All must outlive it. params: `bytes` bytes that the vendor's user_param_func filled; nullptr where there are none.
  HostCall(const std::string& op, at::ArrayRef<c10::IValue> arguments, at::ArrayRef<at::Tensor> results,
           const void* params = nullptr, std::size_t bytes = 0)
      : op_(op), arguments_(arguments), results_(results), params_(params), bytes_(bytes) {}

  const std::string& op() const { return op_; }
  std::size_t arguments() const { return arguments_.size(); }
  std::size_t results() const { return results_.size(); }

  /// These throw c10::Error naming the op where there is no such argument or result, or of another kind or dtype.
  const c10::IValue& argument(std::size_t i) const;
  const at::Tensor& tensor(std::size_t i) const;  ///< argument i, where that is a tensor
  const at::Tensor& result(std::size_t i) const;
  template <class T>
  const T* in(std::size_t i) const {
    return of_type(tensor(i), c10::CppTypeToScalarType<T>::value, "argument", i).template const_data_ptr<T>();
  }
  template <class T>
  T* out(std::size_t i) const {
    return of_type(result(i), c10::CppTypeToScalarType<T>::value, "result", i).template mutable_data_ptr<T>();
  }
  template <class Params>
  const Params& params() const {
    return *static_cast<const Params*>(params_of(sizeof(Params)));
  }

 private:
  const at::Tensor& of_type(const at::Tensor& t, at::ScalarType wanted, const char* what, std::size_t i) const;
  const void* params_of(std::size_t bytes) const;

  const std::string& op_;
  at::ArrayRef<c10::IValue> arguments_;
  at::ArrayRef<at::Tensor> results_;
  const void* params_;
  std::size_t bytes_;
};

/// Fills the results. May throw; the message gets the op's name.
using HostKernel = std::function<void(const HostCall& call)>;

// The vendor's descriptors (hpu_custom_op.h) call a kernel by guid: there one of the accelerator, here one of the
// host.
//
//   KernelRegistry::add("relu_fwd_f32", [](const HostCall& call) { ... });

class KernelRegistry {
 public:
  /// For the life of the process; the library that calls it is not unloaded any more. Throws c10::Error where the guid
  /// has a kernel.
  static void add(const std::string& guid, HostKernel kernel);
  /// For the operator `op`: throws c10::Error naming both, and the nearest guid, where there is none.
  static const HostKernel& find(const std::string& guid, const std::string& op);
};

}  // namespace fp8::runtime
