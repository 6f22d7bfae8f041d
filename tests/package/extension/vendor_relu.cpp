// SPDX-License-Identifier: Apache-2.0
// Written against the vendor's headers and names; the kernel of the guid is one of the host.
#include <torch/library.h>

#include <algorithm>

#include "hpu_custom_op_pt2.h"

static habana::PartialOutputMetaDataVector output_meta(const at::Stack& inputs) {
  const at::Tensor self = inputs[0].toTensor();
  return {{self.scalar_type(), self.sizes().vec()}};
}

static at::Tensor relu(const at::Tensor& self) {
  static const bool registered = [] {
    habana::custom_op::registerUserCustomOp("vendor_op::relu", "relu_fwd_f32", output_meta, nullptr);
    fp8::runtime::KernelRegistry::add("relu_fwd_f32", [](const fp8::runtime::HostCall& call) {
      for (std::int64_t i = 0; i < call.tensor(0).numel(); ++i)
        call.out<float>(0)[i] = std::max(call.in<float>(0)[i], 0.0f);
    });
    return true;
  }();
  TORCH_CHECK(registered);
  return habana::custom_op::UserCustomOpDescriptor::getUserCustomOpDescriptor("vendor_op::relu").execute({self})[0];
}

TORCH_LIBRARY(vendor_op, m) { m.def("relu(Tensor self) -> Tensor"); }
TORCH_LIBRARY_IMPL(vendor_op, HPU, m) { m.impl("relu", relu); }
