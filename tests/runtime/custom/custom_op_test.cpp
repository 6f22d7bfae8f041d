// SPDX-License-Identifier: Apache-2.0
// A user's operator in each part of the runtime; the numbers beside those of ATen's gelu and mul,
// gradients beside numeric differences.
#include "fp8/runtime/custom/custom_op.h"

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/library.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/custom/hpu_custom_op_pt2.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/leaf/leaf.h"
#include "runtime/custom/sample_ops.h"
#include "support/hpu_test.h"

namespace {

namespace vendor = habana::custom_op;
using namespace fp8::runtime;
using namespace fp8::test;

at::Tensor gelu_mul_by_aten(const at::Tensor& a, const at::Tensor& b) { return at::gelu(a) * b; }

TEST(CustomOp, ComputesOnEveryDeviceWhateverTheStrides) {
  const auto op = gelu_mul_op("my::gelu_mul").add();
  const at::Tensor a = at::randn({5, 7}), b = at::randn({7, 5}).t();
  const at::Tensor expected = gelu_mul_by_aten(a, b);
  const at::Tensor on_hpu = call_op("my::gelu_mul", {hpu(a), hpu(b)})[0], on_cpu = call_op("my::gelu_mul", {a, b})[0];
  EXPECT_TRUE(on_hpu.is_hpu() && on_cpu.is_cpu());
  EXPECT_TRUE(at::allclose(on_hpu.cpu(), expected, 1e-5, 1e-6));
  EXPECT_TRUE(same_bits(on_hpu, on_cpu));
  EXPECT_EQ(call_op("my::gelu_mul", {hpu(at::ones({0, 3})), hpu(at::ones({0, 3}))})[0].numel(), 0);
  const at::Tensor meta =
      call_op("my::gelu_mul", {a.to(at::kMeta).to(at::kBFloat16), b.to(at::kMeta).to(at::kBFloat16)})[0];
  EXPECT_TRUE(meta.is_meta() && meta.sizes() == a.sizes() && meta.scalar_type() == at::kBFloat16);
}

/// Central differences of sum(weights * op(a, b)) in f64, element by element.
at::Tensor numeric_gradient(const std::string& op, at::Tensor a, const at::Tensor& b, const at::Tensor& weights,
                            bool of_a) {
  constexpr double kStep = 1e-6;
  at::Tensor x = of_a ? a.clone() : b.clone(), gradient = at::zeros_like(x);
  const auto value = [&] {
    const at::Tensor y = call_op(op, {hpu(of_a ? x : a), hpu(of_a ? b : x)})[0];
    return (y.cpu() * weights).sum().item<double>();
  };
  double *p = x.mutable_data_ptr<double>(), *g = gradient.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double kept = p[i];
    p[i] = kept + kStep;
    const double above = value();
    p[i] = kept - kStep;
    g[i] = (above - value()) / (2 * kStep);
    p[i] = kept;
  }
  return gradient;
}

void expect_gradients(const std::string& op) {
  const at::Tensor a = at::randn({3, 4}, at::kDouble), b = at::randn({3, 4}, at::kDouble);
  const at::Tensor weights = at::randn({3, 4}, at::kDouble);
  const at::Tensor da = hpu(a).requires_grad_(), db = hpu(b).requires_grad_();
  (call_op(op, {da, db})[0] * hpu(weights)).sum().backward();
  EXPECT_TRUE(at::allclose(da.grad().cpu(), numeric_gradient(op, a, b, weights, true), 1e-6, 1e-8)) << op;
  EXPECT_TRUE(at::allclose(db.grad().cpu(), numeric_gradient(op, a, b, weights, false), 1e-6, 1e-8)) << op;
}

TEST(CustomOp, HasTheGradientsOfAFunctionAndOfAnOperator) {
  const auto by_function = gelu_mul_op("my::gelu_mul").add();
  expect_gradients("my::gelu_mul");
  const auto by_name = CustomOp("my::gelu_mul_named")
                           .schema("(Tensor a, Tensor b) -> Tensor")
                           .shape(same_as(0))
                           .kernel(gelu_mul)
                           .backward("my::gelu_mul_backward")
                           .add();
  const at::Tensor a = hpu(at::randn({2, 2})).requires_grad_();
  EXPECT_REFUSED(call_op("my::gelu_mul_named", {a, a})[0].sum().backward(), "[my::gelu_mul_named]",
                 "no operator 'my::gelu_mul_backward'");
  const auto backward = CustomOp("my::gelu_mul_backward")
                            .schema("(Tensor dy, Tensor a, Tensor b) -> (Tensor, Tensor)")
                            .shape(same_as({1, 2}))
                            .kernel([](CustomArguments in) {
                              const at::Tensor dy = in[0].toTensor();
                              return gelu_mul_gradients({dy, in.slice(1), {}});
                            })
                            .add();
  expect_gradients("my::gelu_mul_named");
}

TEST(CustomOp, SavesItsResultsOnRequest) {  // d exp(x) = exp(x)
  const auto op = CustomOp("my::exp")
                      .schema("(Tensor x, float scale=1.0) -> Tensor")
                      .kernel([](CustomArguments in) { return std::vector{in[0].toTensor().exp()}; })
                      .backward([](const BackwardCall& call) {
                        EXPECT_EQ(call.results.size(), 1U);
                        EXPECT_EQ(call.arguments[1].toDouble(), 2.0);
                        return std::vector{call.gradients[0] * call.results[0]};
                      })
                      .save_results()
                      .add();
  const at::Tensor x = hpu(at::randn({4})).requires_grad_();
  const at::Tensor y = call_op("my::exp", {x, 2.0})[0];
  y.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), y));
}

TEST(CustomOp, RefusesSecondDerivativesByName) {
  const auto op = gelu_mul_op("my::gelu_mul").add();
  const at::Tensor a = hpu(at::randn({3})).requires_grad_(), b = hpu(at::randn({3}));
  const at::Tensor y = call_op("my::gelu_mul", {a, b})[0];
  const auto first = torch::autograd::grad({y.sum()}, {a}, {}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_REFUSED(first[0].sum().backward(), "my::gelu_mul has no second derivative");
  const auto without =
      CustomOp("my::no_backward").schema("(Tensor a) -> Tensor").shape(same_as(0)).kernel([](CustomArguments in) {
        return std::vector{in[0].toTensor() + 1};
      });
  const auto handle = without.add();
  const at::Tensor z = call_op("my::no_backward", {a})[0];
  EXPECT_REFUSED(z.sum().backward(), "my::no_backward", "not implemented");
}

TEST(CustomOp, IsCastInARegionAsItsRuleSays) {
  const at::Tensor f32 = hpu(at::randn({4})), bf16 = f32.to(at::kBFloat16);
  const std::vector<std::pair<autocast::Rule, at::ScalarType>> rules = {{autocast::Rule::none, at::kBFloat16},
                                                                        {autocast::Rule::lower, at::kBFloat16},
                                                                        {autocast::Rule::fp32, at::kFloat},
                                                                        {autocast::Rule::promote, at::kFloat}};
  for (const auto& [rule, dtype] : rules) {
    std::vector<at::ScalarType> seen;
    const auto op = CustomOp("my::pair")
                        .schema("(Tensor a, Tensor b) -> Tensor")
                        .kernel([&](CustomArguments in) {
                          seen = {in[0].toTensor().scalar_type(), in[1].toTensor().scalar_type()};
                          return std::vector{in[0].toTensor().clone()};
                        })
                        .autocast(rule)
                        .add();
    call_op("my::pair", {bf16, f32});
    EXPECT_EQ(seen, (std::vector{at::kBFloat16, at::kFloat})) << "no region";
    const autocast::AutocastGuard region;
    EXPECT_EQ(call_op("my::pair", {bf16, f32})[0].scalar_type(), dtype);
    EXPECT_EQ(seen, (std::vector{dtype, rule != autocast::Rule::none ? dtype : at::kFloat}));
  }
}

TEST(CustomOp, TrainsInARegion) {
  const auto op = gelu_mul_op("my::gelu_mul").autocast(autocast::Rule::lower).add();
  const at::Tensor a = hpu(at::randn({8})).requires_grad_(), b = hpu(at::randn({8}));
  const at::Tensor ca = a.detach().cpu().requires_grad_();
  gelu_mul_by_aten(ca, b.cpu()).sum().backward();
  const autocast::AutocastGuard region;
  const at::Tensor y = call_op("my::gelu_mul", {a, b})[0];
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(a.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(a.grad().cpu(), ca.grad(), 0.05, 0.05));
}

struct Ops final : LeafListener {
  void leaf_ends(const LeafRecord& leaf) override {
    names.emplace_back(leaf.op);
    if (leaf.backward) backward.emplace_back(leaf.op);
    if (leaf.op == "my::gelu_mul") {
      operands = leaf.inputs.size() * 10 + leaf.outputs.size();
      module = leaf.module;
    }
  }
  std::vector<std::string> names, backward;
  std::size_t operands = 0;
  std::string module;
};

TEST(CustomOp, IsOneLeafWhateverItsKernelDoes) {
  const auto op = CustomOp("my::gelu_mul")
                      .schema("(Tensor a, Tensor b) -> Tensor")
                      .kernel([](CustomArguments in) {
                        const at::Tensor inner = hpu(in[0].toTensor()) + 1;  // a leaf of the device within
                        return std::vector{inner.cpu()};
                      })
                      .backward("my::plus_backward")
                      .add();
  const auto backward =
      CustomOp("my::plus_backward")
          .schema("(Tensor dy, Tensor a, Tensor b) -> (Tensor, Tensor)")
          .shape(same_as({0, 0}))
          .kernel([](CustomArguments in) { return std::vector{in[0].toTensor().clone(), in[0].toTensor().clone()}; })
          .add();
  const at::Tensor a = hpu(at::randn({2, 3})).requires_grad_();
  Ops seen;
  {
    const Listening listening(seen);
    const std::string path = "layer.0";
    const ModuleScope module(path);
    const at::Tensor y = call_op("my::gelu_mul", {a, a})[0];
    EXPECT_EQ(seen.names, std::vector<std::string>{"my::gelu_mul"});
    y.backward(at::ones_like(y));
  }
  EXPECT_EQ(seen.operands, 21U);
  EXPECT_EQ(seen.module, "layer.0");
  EXPECT_TRUE(std::count(seen.backward.begin(), seen.backward.end(), "my::plus_backward") == 1);
}

TEST(CustomOp, RunsInTorchScriptWithNumbersListsAndWhatIsAbsent) {
  const auto op =
      CustomOp("my::weighted")
          .schema("(Tensor[] xs, float[] weights, Tensor? bias=None, *, bool negate=False) -> (Tensor, Tensor)")
          .shape([](CustomArguments in) {
            const ResultForm form = like(in[0].toTensorVector()[0]);
            return std::vector{form, form};
          })
          .kernel([](const HostCall& call) {
            const auto xs = call.argument(0).toTensorVector();
            const auto weights = call.argument(1).toDoubleVector();
            const float sign = call.argument(3).toBool() ? -1 : 1;
            float *y = call.out<float>(0), *z = call.out<float>(1);
            for (std::int64_t i = 0; i < xs[0].numel(); ++i) {
              y[i] = call.argument(2).isNone() ? 0 : call.in<float>(2)[i];
              for (std::size_t k = 0; k < xs.size(); ++k)
                y[i] += sign * static_cast<float>(weights[k]) * xs[k].const_data_ptr<float>()[i];
              z[i] = -y[i];
            }
          })
          .add();
  const auto graph = std::make_shared<torch::jit::Graph>();
  torch::jit::parseIR(R"(
graph(%x : Tensor, %y : Tensor, %bias : Tensor):
  %xs : Tensor[] = prim::ListConstruct(%x, %y)
  %one : float = prim::Constant[value=1.]()
  %half : float = prim::Constant[value=0.5]()
  %weights : float[] = prim::ListConstruct(%one, %half)
  %none : NoneType = prim::Constant()
  %yes : bool = prim::Constant[value=1]()
  %no : bool = prim::Constant[value=0]()
  %p : Tensor, %q : Tensor = my::weighted(%xs, %weights, %none, %yes)
  %r : Tensor, %s : Tensor = my::weighted(%xs, %weights, %bias, %no)
  %both : (Tensor, Tensor) = prim::TupleConstruct(%p, %s)
  return (%both))",
                      graph.get());
  const at::Tensor x = at::randn({3, 2}), y = at::randn({2, 3}).t(), bias = at::randn({3, 2});
  torch::jit::Stack stack = {hpu(x), hpu(y), hpu(bias)};
  torch::jit::GraphFunction("f", graph, nullptr).run(stack);
  const auto result = stack[0].toTuple()->elements().vec();
  EXPECT_TRUE(at::allclose(result[0].toTensor().cpu(), -(x + 0.5 * y)));
  EXPECT_TRUE(at::allclose(result[1].toTensor().cpu(), -(x + 0.5 * y + bias)));
}

TEST(CustomOp, ResultsAreNewTensorsThoughTheKernelReturnsOthers) {
  const at::Tensor constant = at::full({2}, 7.0F);
  const auto op = CustomOp("my::lazy")
                      .schema("(Tensor x) -> (Tensor, Tensor)")
                      .kernel([&](CustomArguments in) { return std::vector{in[0].toTensor(), constant}; })
                      .add();
  const at::Tensor x = hpu(at::ones({2}));
  const auto results = call_op("my::lazy", {x});
  results[0].add_(1);
  results[1].add_(1);
  EXPECT_TRUE(results[0].is_hpu() && results[1].is_hpu() && constant.is_cpu());
  EXPECT_EQ(x.sum().item<float>(), 2);
  EXPECT_EQ(constant[0].item<float>(), 7);
}

// The vendor's descriptors with a kernel of the host: its documents' example of a relu, and what is refused.

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
