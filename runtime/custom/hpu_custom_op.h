// SPDX-License-Identifier: Apache-2.0
// The vendor's C++ interface for custom operators, in its own names: sources written for it compile, where the guid's
// kernel is given as one of the host (fp8/runtime/custom/host_call.h). New code is shorter with CustomOp.
//
//   REGISTER_CUSTOM_OP_ATTRIBUTES("custom_op::relu", "relu_fwd_f32", inputs, outputs, params);     once
//   auto op = HabanaCustomOpDescriptor::getCustomOpDescriptor("custom_op::relu");
//   return op.execute({self})[0];                                     in the kernel of TORCH_LIBRARY_IMPL(.., HPU)
#pragma once
#include <ATen/core/stack.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "fp8/runtime/custom/host_call.h"

namespace habana::custom_op {

/// The sizes of one result.
using compute_output_shape_function = std::function<std::vector<std::int64_t>(const at::Stack& inputs)>;
/// The kernel reads its result as HostCall::params(). Sets its size in bytes.
using user_param_function = std::function<std::shared_ptr<void>(const at::Stack& inputs, std::size_t& size)>;

enum class input_type : std::uint8_t { TENSOR, USER_PARAMS, SCALAR };

/// An input. `index` is accepted and not read: inputs are in the order of execute()'s.
struct InputDesc {
  input_type type;
  unsigned index;
};

/// A result.
struct OutputDesc {
  unsigned index;
  c10::ScalarType dtype = c10::ScalarType::Float;
  compute_output_shape_function compute_output_shape_func = nullptr;
};

struct NodeDesc {
  std::string tpc_guid;     ///< of fp8::runtime::KernelRegistry
  std::string schema_name;  ///< as in TORCH_LIBRARY
  user_param_function user_param_func = nullptr;
};

class HabanaCustomOpDescriptor {
 public:
  HabanaCustomOpDescriptor() = default;
  HabanaCustomOpDescriptor(NodeDesc node, const std::vector<InputDesc>& inputs, const std::vector<OutputDesc>& outputs)
      : node_(std::move(node)), inputs_(inputs), outputs_(outputs) {}

  /// Runs the guid's kernel on tensors of one hpu; new tensors, in the order of the OutputDesc's. Throws c10::Error
  /// naming the schema: inputs that are not as described, no shape function, no kernel of that guid.
  std::vector<at::Tensor> execute(const std::vector<c10::IValue>& inputs) const;

  /// Throws c10::Error where `op` (a schema_name) was not registered.
  static const HabanaCustomOpDescriptor& getCustomOpDescriptor(const std::string& op);

  const std::string& getSchemaName() const { return node_.schema_name; }
  const std::string& getGuid() const { return node_.tpc_guid; }
  unsigned getInputsSize() const { return static_cast<unsigned>(inputs_.size()); }
  unsigned getOutputsSize() const { return static_cast<unsigned>(outputs_.size()); }
  const std::vector<InputDesc>& getInputs() const { return inputs_; }
  const std::vector<OutputDesc>& getOutputs() const { return outputs_; }
  bool hasUserParamsFunc() const { return node_.user_param_func != nullptr; }
  const user_param_function& getUserParamsAllocFunc() const { return node_.user_param_func; }

 private:
  NodeDesc node_;
  std::vector<InputDesc> inputs_;
  std::vector<OutputDesc> outputs_;
};

/// Throws c10::Error where the schema name is taken. For the life of the process, as is the library that calls it.
void registerKernel(HabanaCustomOpDescriptor& descriptor);

}  // namespace habana::custom_op

#define REGISTER_CUSTOM_OP_ATTRIBUTES(schema, guid, input_descs, output_descs, param_func)             \
  do {                                                                                                 \
    ::habana::custom_op::HabanaCustomOpDescriptor fp8_descriptor(                                      \
        ::habana::custom_op::NodeDesc{(guid), (schema), (param_func)}, (input_descs), (output_descs)); \
    ::habana::custom_op::registerKernel(fp8_descriptor);                                               \
  } while (false)

/// In a user_param_function: declares `params`, a new structure, and says its size.
#ifndef HPU_PARAMS_STUB
#define HPU_PARAMS_STUB(structure) \
  size = sizeof(structure);        \
  auto params = std::make_shared<structure>()
#endif
