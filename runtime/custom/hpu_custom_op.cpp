// SPDX-License-Identifier: Apache-2.0
// Both of the vendor's interfaces. Descriptors and kernels stay for the life of the process: references to them are
// handed out.
#include "fp8/runtime/custom/hpu_custom_op.h"

#include <c10/core/GradMode.h>

#include <map>
#include <mutex>

#include "fp8/runtime/custom/custom_call.h"
#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/custom/hpu_custom_op_pt2.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/leaf/leaf.h"

namespace fp8::runtime {
namespace {

struct VendorOps {
  std::mutex mutex;
  std::map<std::string, HostKernel> kernels;  // by guid
  std::map<std::string, habana::custom_op::HabanaCustomOpDescriptor> descriptors;
  std::map<std::string, habana::custom_op::UserCustomOpDescriptor> user_descriptors;
};

VendorOps& vendor_ops() {
  static VendorOps& all = *new VendorOps;
  return all;
}

template <class Map>
std::string nearest(const Map& names, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& key : names | std::views::keys) known.push_back(key);
  return known.empty() ? "none is registered" : "nearest: '" + io::closest(name, known) + "'";
}

template <class Map>
const auto& descriptor_of(const Map& descriptors, const std::string& op) {
  const std::lock_guard lock(vendor_ops().mutex);
  const auto found = descriptors.find(op);
  TORCH_CHECK(found != descriptors.end(), "[", op, "] found no descriptor of that name; ", nearest(descriptors, op));
  return found->second;
}

/// Both interfaces share the names.
template <class Map, class Descriptor>
void add_descriptor(Map& descriptors, const Descriptor& descriptor) {
  VendorOps& all = vendor_ops();
  const std::string& name = descriptor.getSchemaName();
  const std::lock_guard lock(all.mutex);
  const bool taken = all.descriptors.count(name) != 0 || all.user_descriptors.count(name) != 0;
  TORCH_CHECK(!taken, "[", name, "] found a descriptor of that name already, allowed: one");
  descriptors.emplace(name, descriptor);
}

/// One call of a descriptor.
std::vector<at::Tensor> execute_kernel(const std::string& op, const std::string& guid,
                                       const std::vector<c10::IValue>& inputs, const std::vector<ResultForm>& forms,
                                       const habana::custom_op::user_param_function& fill_params) {
  const HostKernel& kernel = KernelRegistry::find(guid, op);
  OperandDevices devices(op);
  std::vector<at::Tensor> operands;
  detail::each_tensor(inputs, [&](const at::Tensor& t) {
    devices.see(t);
    operands.push_back(t);
  });
  TORCH_CHECK(devices.device() >= 0, "[", op, "] found no operand on hpu");
  std::vector<c10::IValue> placed = inputs;
  if (devices.mixed()) {
    devices.settle(OperandDevices::Host::is_read);
    for (c10::IValue& value : placed)
      if (value.isTensor() && value.toTensor().is_cpu() && value.toTensor().dim() > 0)
        value = devices.moved(value.toTensor());
  }
  LeafScope leaf(op.c_str(), operands);
  const c10::NoGradGuard no_grad;
  std::size_t bytes = 0;
  std::shared_ptr<void> params;
  if (fill_params) detail::named_call(op, "params", [&] { params = fill_params(inputs, bytes); });
  std::vector<at::Tensor> results =
      detail::run_host_kernel(op, kernel, at::Device(at::kHPU, devices.device()), placed, forms, params.get(), bytes);
  leaf.gives(results);
  return results;
}

}  // namespace

void KernelRegistry::add(const std::string& guid, HostKernel kernel) {
  require_registered();
  TORCH_CHECK(kernel != nullptr, "[custom op] guid '", guid, "': found no kernel");
  VendorOps& all = vendor_ops();
  {
    const std::lock_guard lock(all.mutex);
    TORCH_CHECK(all.kernels.count(guid) == 0, "[custom op] guid '", guid, "': found a kernel already, allowed: one");
    all.kernels.emplace(guid, std::move(kernel));
  }
  keep_library(__builtin_return_address(0));
}

const HostKernel& KernelRegistry::find(const std::string& guid, const std::string& op) {
  VendorOps& all = vendor_ops();
  const std::lock_guard lock(all.mutex);
  const auto found = all.kernels.find(guid);
  TORCH_CHECK(found != all.kernels.end(), "[", op, "] guid '", guid, "': found no kernel of that name, add one with",
              " fp8::runtime::KernelRegistry::add(); ", nearest(all.kernels, guid));
  return found->second;
}

}  // namespace fp8::runtime

namespace habana::custom_op {

namespace runtime = fp8::runtime;

std::vector<at::Tensor> HabanaCustomOpDescriptor::execute(const std::vector<c10::IValue>& inputs) const {
  const std::string& op = node_.schema_name;
  TORCH_CHECK(inputs.size() == inputs_.size(), "[", op, "] execute: found ", inputs.size(), " inputs, described are ",
              inputs_.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    TORCH_CHECK(inputs_[i].type != input_type::TENSOR || inputs[i].isTensor() || inputs[i].isNone(), "[", op,
                "] execute: input ", i, ": found ", inputs[i].tagKind(), ", described is a tensor");
  std::vector<runtime::ResultForm> forms;
  for (const OutputDesc& output : outputs_) {
    runtime::ShapeFunction shape;
    if (output.compute_output_shape_func) {
      shape = [&](runtime::CustomArguments given) {
        return std::vector{runtime::ResultForm{output.compute_output_shape_func(given.vec()), output.dtype}};
      };
    }
    forms.push_back(runtime::detail::forms_of(op, shape, inputs, 1).front());
  }
  return runtime::execute_kernel(op, node_.tpc_guid, inputs, forms, node_.user_param_func);
}

const HabanaCustomOpDescriptor& HabanaCustomOpDescriptor::getCustomOpDescriptor(const std::string& op) {
  return runtime::descriptor_of(runtime::vendor_ops().descriptors, op);
}

void registerKernel(HabanaCustomOpDescriptor& descriptor) {
  runtime::add_descriptor(runtime::vendor_ops().descriptors, descriptor);
  runtime::keep_library(__builtin_return_address(0));
}

void registerUserCustomOp(const std::string& schema, const std::string& guid, OutputMetaFn output_meta_fn,
                          FillParamsFn fill_params_fn) {
  const UserCustomOpDescriptor descriptor(schema, guid, std::move(output_meta_fn), std::move(fill_params_fn));
  runtime::add_descriptor(runtime::vendor_ops().user_descriptors, descriptor);
  runtime::keep_library(__builtin_return_address(0));
}

std::vector<at::Tensor> UserCustomOpDescriptor::execute(const std::vector<c10::IValue>& inputs) const {
  runtime::ShapeFunction shape;
  PartialOutputMetaDataVector metas;
  if (output_meta_fn_) {
    runtime::detail::named_call(schema_, "output_meta_fn", [&] { metas = output_meta_fn_(inputs); });
    shape = [&](runtime::CustomArguments) {
      std::vector<runtime::ResultForm> forms;
      for (const auto& meta : metas) forms.push_back({meta.shape, meta.dtype});
      return forms;
    };
  }
  return runtime::execute_kernel(schema_, guid_, inputs,
                                 runtime::detail::forms_of(schema_, shape, inputs, metas.size()), fill_params_fn_);
}

const UserCustomOpDescriptor& UserCustomOpDescriptor::getUserCustomOpDescriptor(const std::string& op) {
  return runtime::descriptor_of(runtime::vendor_ops().user_descriptors, op);
}

}  // namespace habana::custom_op
