// SPDX-License-Identifier: Apache-2.0
// The vendor's descriptors with a kernel of the host: its documents' example of a relu, and what is refused.
#include <torch/library.h>

#include "fp8/runtime/custom/hpu_custom_op_pt2.h"
#include "fp8/runtime/leaf/leaf.h"
#include "runtime/custom/sample_ops.h"
#include "support/hpu_test.h"

namespace {

using namespace fp8::runtime;
using namespace fp8::test;
namespace vendor = habana::custom_op;

struct ReluParams {
  float threshold;
};

vendor::OutputDesc as_first(c10::ScalarType dtype = c10::ScalarType::Float) {
  return {0, dtype, [](const at::Stack& inputs) { return inputs[0].toTensor().sizes().vec(); }};
}

bool register_relu() {
  const std::vector<vendor::InputDesc> inputs_desc = {{vendor::input_type::TENSOR, 0},
                                                      {vendor::input_type::USER_PARAMS, 1}};
  const std::vector<vendor::OutputDesc> outputs_desc = {as_first()};
  const auto user_params = [](const at::Stack& inputs, std::size_t& size) {
    HPU_PARAMS_STUB(ReluParams);
    params->threshold = static_cast<float>(inputs[1].toDouble());
    return params;
  };
  REGISTER_CUSTOM_OP_ATTRIBUTES("custom_op::relu", "relu_fwd_f32", inputs_desc, outputs_desc, user_params);
  KernelRegistry::add("relu_fwd_f32", [](const HostCall& call) {
    const float* x = call.in<float>(0);
    float* y = call.out<float>(0);
    for (std::int64_t i = 0; i < call.tensor(0).numel(); ++i)
      y[i] = std::max(x[i], call.params<ReluParams>().threshold);
  });
  return true;
}

at::Tensor relu(const at::Tensor& x, double threshold) {
  static const bool registered = register_relu();
  EXPECT_TRUE(registered);
  const auto op = vendor::HabanaCustomOpDescriptor::getCustomOpDescriptor("custom_op::relu");
  return op.execute({x, threshold})[0];
}

TORCH_LIBRARY(custom_op, m) { m.def("relu(Tensor self, float threshold) -> Tensor"); }
TORCH_LIBRARY_IMPL(custom_op, HPU, m) { m.impl("relu", relu); }

TEST(VendorCustomOp, RunsTheKernelOfItsGuid) {
  const at::Tensor x = at::randn({4, 3}).t();
  const at::Tensor y = call_op("custom_op::relu", {hpu(x), 0.25})[0];
  EXPECT_TRUE(same_bits(y, x.clamp_min(0.25)));
  const auto& op = vendor::HabanaCustomOpDescriptor::getCustomOpDescriptor("custom_op::relu");
  EXPECT_EQ(op.getGuid(), "relu_fwd_f32");
  EXPECT_EQ(op.getInputsSize(), 2U);
  EXPECT_TRUE(op.hasUserParamsFunc());
}

TEST(VendorCustomOp, TheNewerInterfaceHasSeveralResults) {
  vendor::registerUserCustomOp(
      "custom_op::minmax", "minmax_f32",
      [](const at::Stack& inputs) {
        const auto rows = inputs[0].toTensor().size(0);
        return habana::PartialOutputMetaDataVector{{at::kFloat, {rows}}, {at::kLong, {rows}}};
      },
      nullptr);
  KernelRegistry::add("minmax_f32", [](const HostCall& call) {
    const std::int64_t cols = call.tensor(0).size(1);
    for (std::int64_t r = 0; r < call.tensor(0).size(0); ++r) {
      const float* row = call.in<float>(0) + r * cols;
      const float* largest = std::max_element(row, row + cols);
      call.out<float>(0)[r] = *largest;
      call.out<std::int64_t>(1)[r] = largest - row;
    }
  });
  const at::Tensor x = at::randn({5, 9});
  const auto results = vendor::UserCustomOpDescriptor::getUserCustomOpDescriptor("custom_op::minmax").execute({hpu(x)});
  const auto [values, indices] = x.max(1);
  EXPECT_TRUE(same_bits(results[0], values));
  EXPECT_TRUE(same_bits(results[1], indices));
}

TEST(VendorCustomOp, RefusesByName) {
  const at::Tensor x = hpu(at::ones({2}));
  relu(x, 0);
  EXPECT_REFUSED(register_relu(), "[custom_op::relu] found a descriptor of that name already");
  EXPECT_REFUSED(KernelRegistry::add("relu_fwd_f32", [](const HostCall&) {}),
                 "guid 'relu_fwd_f32': found a kernel already");
  EXPECT_REFUSED(vendor::HabanaCustomOpDescriptor::getCustomOpDescriptor("custom_op::rely"),
                 "[custom_op::rely] found no descriptor", "nearest: 'custom_op::relu'");
  const auto& op = vendor::HabanaCustomOpDescriptor::getCustomOpDescriptor("custom_op::relu");
  EXPECT_REFUSED(op.execute({x}), "[custom_op::relu] execute: found 1 inputs, described are 2");
  EXPECT_REFUSED(op.execute({1.0, 1.0}), "[custom_op::relu] execute: input 0: found Double");
  EXPECT_REFUSED(op.execute({x.cpu(), 1.0}), "[custom_op::relu] found no operand on hpu");
  const std::vector<vendor::InputDesc> one = {{vendor::input_type::TENSOR, 0}};
  const vendor::HabanaCustomOpDescriptor unknown({"relu_fwd_f16", "custom_op::a"}, one, {as_first()});
  EXPECT_REFUSED(unknown.execute({x}), "[custom_op::a] guid 'relu_fwd_f16'", "nearest: 'relu_fwd_f32'");
  const vendor::HabanaCustomOpDescriptor formless({"relu_fwd_f32", "custom_op::b"}, one, {{0}});
  EXPECT_REFUSED(formless.execute({x}), "[custom_op::b] has no shape function");
  const vendor::HabanaCustomOpDescriptor no_params({"relu_fwd_f32", "custom_op::c"}, one, {as_first()});
  EXPECT_REFUSED(no_params.execute({x}), "[custom_op::c] params: found 0 bytes, the kernel takes 4");
  const vendor::HabanaCustomOpDescriptor wrong({"relu_fwd_f32", "custom_op::d"}, one, {as_first(at::kDouble)});
  EXPECT_REFUSED(wrong.execute({x}), "[custom_op::d] result 0: found Double, the kernel takes Float");
}

}  // namespace
