// SPDX-License-Identifier: Apache-2.0
// The zero-copy fallback's contract: which tensor comes back, what written arguments look like afterwards, what is
// refused; FallbackPlan beside what schemas say.
#include "fp8/runtime/dispatch/fallback.h"

#include <torch/library.h>

#include "support/golden.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

at::Tensor numbers(at::IntArrayRef sizes) { return at::arange(c10::multiply_integers(sizes), on_hpu()).view(sizes); }

TEST(FallbackResult, InPlaceReturnsTheSameTensor) {
  at::Tensor a = numbers({4});
  EXPECT_EQ(a.mul_(2).unsafeGetTensorImpl(), a.unsafeGetTensorImpl());
  EXPECT_TRUE(same_bits(a, at::tensor({0., 2., 4., 6.}, at::kFloat)));
}

TEST(FallbackResult, OutReturnsTheGivenTensor) {
  at::Tensor a = numbers({4}), out = at::empty({4}, on_hpu());
  const void* memory = out.const_data_ptr();
  EXPECT_EQ(at::add_out(out, a, a).unsafeGetTensorImpl(), out.unsafeGetTensorImpl());
  EXPECT_EQ(out.const_data_ptr(), memory);
  EXPECT_TRUE(same_bits(out, at::tensor({0., 2., 4., 6.}, at::kFloat)));
}

TEST(FallbackResult, OutOfAWrongSizeGrowsOnHpu) {
  const at::Tensor a = numbers({3, 4});
  at::Tensor out = at::empty({2}, on_hpu());
  const at::Tensor alias_of_out = out.view({1, 2});
  out.fill_(5);
  at::mul_out(out, a, a);
  EXPECT_EQ(out.device(), kHpu);
  EXPECT_TRUE(same_bits(out, a.cpu() * a.cpu()));
  EXPECT_GE(out.storage().nbytes(), 48u);
  EXPECT_EQ(runtime::block_of(out)->bytes, out.storage().nbytes());
  EXPECT_EQ(alias_of_out.const_data_ptr(),
            out.const_data_ptr());  // a view made before sees the new memory, as on the CPU
  EXPECT_TRUE(same_bits(out + 1, a.cpu() * a.cpu() + 1));
}

TEST(FallbackResult, OutOfZeroSizeGrows) {
  const at::Tensor a = numbers({3, 4});
  at::Tensor out = at::empty({0}, on_hpu());
  at::exp_out(out, a);
  EXPECT_TRUE(same_bits(out, a.cpu().exp()));
  EXPECT_NE(runtime::block_of(out), nullptr);
}

TEST(FallbackResult, OutMayBeSmaller) {
  at::Tensor out = at::empty({100}, on_hpu());
  at::abs_out(out, numbers({2, 3}));
  EXPECT_TRUE(same_bits(out, at::arange(6, at::kFloat).view({2, 3})));
}

TEST(FallbackResult, OutOnAViewKeepsItsStrides) {
  at::Tensor base = at::zeros({4, 4}, on_hpu());
  at::Tensor column = base.select(1, 2);
  at::add_out(column, numbers({4}), 1);
  EXPECT_TRUE(same_bits(base.sum(0), at::tensor({0., 0., 10., 0.}, at::kFloat)));
}

TEST(FallbackResult, SeveralResultsArriveOnHpu) {
  const auto [values, indices] = at::sort(at::tensor({3., 1., 2.}, on_hpu()));
  EXPECT_EQ(values.device(), kHpu);
  EXPECT_EQ(indices.device(), kHpu);
  EXPECT_TRUE(same_bits(indices, at::tensor({1, 2, 0}, at::kLong)));
}

TEST(FallbackResult, ListsGoInAndOut) {
  std::vector<at::Tensor> a = {numbers({3}), numbers({2, 2})};
  const auto sums = at::_foreach_add(a, 1.0);
  EXPECT_TRUE(same_bits(sums[1], at::tensor({1., 2., 3., 4.}, at::kFloat).view({2, 2})));
  at::_foreach_mul_(a, 3.0);
  EXPECT_TRUE(same_bits(a[0], at::tensor({0., 3., 6.}, at::kFloat)));
  at::_foreach_add_(a, sums, 2.0);
  EXPECT_TRUE(same_bits(a[0], at::tensor({2., 7., 12.}, at::kFloat)));
  EXPECT_EQ(at::_foreach_norm(sums)[0].device(), kHpu);
  EXPECT_EQ(a[0].device(), kHpu);
}

TEST(FallbackResult, TheCallersListIsNotEdited) {
  const std::vector<at::Tensor> a = {numbers({3}), numbers({3})};
  const auto* before = a[0].unsafeGetTensorImpl();
  EXPECT_TRUE(same_bits(at::cat(a), at::tensor({0., 1., 2., 0., 1., 2.}, at::kFloat)));
  EXPECT_EQ(a[0].unsafeGetTensorImpl(), before);
  EXPECT_EQ(a[0].device(), kHpu);
}

TEST(FallbackWrites, InPlaceOnViewsReachesTheBase) {
  at::Tensor base = at::zeros({3, 3}, on_hpu());
  base.t()[0].add_(1);
  base.diagonal().mul_(5);
  base.narrow(1, 1, 2).sub_(2);
  at::Tensor cpu = at::zeros({3, 3});
  cpu.t()[0].add_(1);
  cpu.diagonal().mul_(5);
  cpu.narrow(1, 1, 2).sub_(2);
  EXPECT_TRUE(same_bits(base, cpu));
}

TEST(FallbackWrites, GeometryChangingInPlaceOps) {
  at::Tensor a = numbers({2, 3});
  a.t_();
  EXPECT_EQ(a.sizes(), at::IntArrayRef({3, 2}));
  a.unsqueeze_(0);
  EXPECT_EQ(a.sizes(), at::IntArrayRef({1, 3, 2}));
  a.squeeze_();
  EXPECT_TRUE(same_bits(a, at::arange(6, at::kFloat).view({2, 3}).t()));
}

TEST(FallbackWrites, VersionCountersRiseOnceAndAreShared) {
  at::Tensor a = numbers({4});
  const at::Tensor view = a.view({2, 2}), detached = a.detach();
  const auto before = a._version();
  a.add_(1);
  EXPECT_EQ(a._version(), before + 1);
  EXPECT_EQ(view._version(), before + 1);
  EXPECT_EQ(detached._version(), before + 1);
  a.copy_(at::zeros({4}));
  EXPECT_EQ(a._version(), before + 2);
}

TEST(FallbackWrites, ASavedTensorThatChangedIsNoticed) {
  at::Tensor a = numbers({4}).requires_grad_(true);
  at::Tensor b = a * 2;
  const at::Tensor c = (b * b).sum();
  b.add_(1);
  EXPECT_REFUSED(c.backward(), "modified by an inplace operation");
}

TEST(Inference, TensorsStayInferenceTensors) {
  at::Tensor a;
  {
    const c10::InferenceMode inference;
    a = numbers({2, 3});
    EXPECT_TRUE(a.is_inference());
    EXPECT_TRUE((a + 1).is_inference());
    EXPECT_TRUE(a.t().is_inference());
    EXPECT_TRUE(at::softmax(a, -1).is_inference());
    EXPECT_TRUE(same_bits(at::matmul(a, a.t()), at::tensor({5., 14., 14., 50.}, at::kFloat).view({2, 2})));
    a.add_(1);
  }
  EXPECT_TRUE(same_bits(a * 2, (at::arange(6, at::kFloat).view({2, 3}) + 1) * 2));
  EXPECT_REFUSED(a.add_(1), "Inplace update to inference tensor outside InferenceMode");
  const at::Tensor normal = numbers({2, 3});
  EXPECT_FALSE((normal + 1).is_inference());
}

TEST(StrictDevices, ACpuTensorBesideAnHpuTensorIsRefused) {
  const at::Tensor a = numbers({3}), cpu = at::ones({3});
  for (const auto& text :
       {error_of([&] { at::add(a, cpu); }), error_of([&] { at::add(cpu, a); }), error_of([&] { at::cat({a, cpu}); }),
        error_of([&] { at::mm(a.view({3, 1}), cpu.view({1, 3})); }), error_of([&] { at::where(a > 1, a, cpu); })})
    EXPECT_THAT(
        text,
        HasSubstr("Expected all tensors to be on the same device, but found at least two devices, hpu:0 and cpu!"));
  EXPECT_REFUSED(at::add(a, cpu), "aten::add", "hpu:0 and cpu!");
  at::Tensor out = at::empty({3});
  EXPECT_REFUSED(at::add_out(out, a, a), "hpu:0 and cpu!");
}

TEST(StrictDevices, CpuScalarsAreWelcome) {
  const at::Tensor a = numbers({3}), two = at::scalar_tensor(2.0, at::kFloat);
  EXPECT_TRUE(same_bits(a * two, at::tensor({0., 2., 4.}, at::kFloat)));
  EXPECT_EQ((two * a).device(), kHpu);
  EXPECT_TRUE(same_bits(at::where(a > 1, a, two), at::tensor({2., 2., 2.}, at::kFloat)));
  EXPECT_EQ((a + 1).scalar_type(), at::kFloat);
  EXPECT_EQ((a.to(at::kBFloat16) * at::scalar_tensor(2.5, at::kDouble)).scalar_type(), at::kBFloat16);
}

TEST(StrictDevices, CpuIndicesAreWelcome) {
  at::Tensor a = numbers({4, 2});
  const at::Tensor rows = at::tensor({3, 0}, at::kLong);
  EXPECT_TRUE(same_bits(a.index({rows}), at::tensor({6., 7., 0., 1.}, at::kFloat).view({2, 2})));
  EXPECT_TRUE(same_bits(a.index({at::tensor({0, 0, 1, 0}, at::kInt).to(at::kBool)}),
                        at::tensor({4., 5.}, at::kFloat).view({1, 2})));
  a.index_put_({rows}, at::zeros({2, 2}, on_hpu()));
  EXPECT_TRUE(same_bits(a.sum(1), at::tensor({0., 5., 9., 0.}, at::kFloat)));
}

TEST(Exceptions, OfCpuKernelsPassThrough) {
  const at::Tensor a = numbers({2, 3});
  EXPECT_REFUSED(at::mm(a, a), "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)");
  EXPECT_THROW(a.index({at::tensor({7}, at::kLong)}), c10::IndexError);
  EXPECT_REFUSED(at::add(a.to(at::kFloat8_e4m3fn), a), "Promotion for Float8 Types is not supported");
  EXPECT_EQ(a.sum().item<float>(), 15.0f);
}

TEST(Exceptions, SparseIsRefusedByName) {
  const at::Tensor indices = at::tensor({0, 1}, at::kLong).view({1, 2});
  EXPECT_NE(error_of([&] { hpu(at::sparse_coo_tensor(indices, at::ones({2}), {3})) + 1; }), "");
}

TEST(Print, ShowsTheValuesAndTheDevice) {
  std::ostringstream text;
  text << numbers({2});
  EXPECT_THAT(text.str(), AllOf(HasSubstr(" 0\n 1\n"), HasSubstr("HPUFloatType{2}")));
}

// ---- operators of other libraries, that know the CPU alone

at::Tensor& kept() {
  static at::Tensor tensor;
  return tensor;
}
at::Tensor table(const at::Tensor&) {
  static const at::Tensor values = at::arange(4, at::kFloat);
  return values;
}
at::Tensor first_row(const at::Tensor& x) { return x.select(0, 0); }

at::Tensor call_foreign(const char* name, const at::Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.empty() ? at::Tensor() : stack[0].toTensor();
}

TEST(ForeignOperators, MayKeepAnArgument) {
  at::Tensor x = hpu(at::full({1024, 64}, 3.0f));
  call_foreign("fallback_test::keep", x.slice(0, 1));
  x = at::Tensor();
  const at::Tensor others = at::zeros({1024, 64}, on_hpu()), more = at::zeros({1024, 64}, on_hpu());
  EXPECT_TRUE(same_bits(kept(), at::full({1023, 64}, 3.0f)));
  kept() = at::Tensor();
}

TEST(ForeignOperators, MayGiveWhatTheyKeepAndViewsOfArguments) {
  const at::Tensor x = numbers({3, 4});
  for (int call = 0; call < 2; ++call) {
    at::Tensor t = call_foreign("fallback_test::table", x);
    EXPECT_EQ(t.device(), kHpu);
    EXPECT_TRUE(same_bits(t, at::arange(4, at::kFloat)));
    t.zero_();  // it is the caller's
  }
  EXPECT_TRUE(table(x).is_cpu());
  at::Tensor row = call_foreign("fallback_test::first_row", x.slice(0, 1));
  EXPECT_TRUE(row.is_hpu());
  row.fill_(7);
  EXPECT_EQ(x[1][2].item<float>(), 7.0f);
}

TEST(ForeignOperators, CollectivesAreRefusedByName) {
  at::Tensor x = numbers({4});
  EXPECT_REFUSED(call_foreign("fallback_test::all_reduce_", x), "[fallback_test::all_reduce_] is a collective",
                 "torch.distributed", ".cpu()");
  at::Tensor host = x.cpu();
  call_foreign("fallback_test::all_reduce_", host);
  EXPECT_EQ(host[1].item<float>(), 2.0f);
}

using runtime::FallbackPlan;

FallbackPlan plan_of(const char* name, const char* overload = "") {
  return FallbackPlan(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).schema());
}

/// "0w 1h 2": written, on the host.
std::string operands_of(const FallbackPlan& plan) {
  std::string text;
  for (const auto& operand : plan.operands)
    text += (text.empty() ? "" : " ") + std::to_string(operand.index) + (operand.written ? "w" : "") +
            (operand.on_host ? "h" : "");
  return text;
}

TEST(FallbackPlan, TensorsListsPlacesAndWhatIsWritten) {
  const auto operands = [](const std::string& name) {
    const auto dot = std::min(name.find('.'), name.size());
    return operands_of(plan_of(name.substr(0, dot).c_str(), name.substr(std::min(dot + 1, name.size())).c_str()));
  };
  EXPECT_GOLDEN(operands(text));
}

TEST(FallbackPlan, CountsNumbersAndResultsOnTheHost) {
  const FallbackPlan fill = plan_of("aten::masked_fill_", "Scalar");
  EXPECT_EQ(fill.arguments, 3);
  EXPECT_EQ(fill.results, 1);
  EXPECT_EQ(fill.number, 2);
  EXPECT_EQ(fill.host_result, FallbackPlan::kNone);
  EXPECT_EQ(plan_of("aten::full_like").number, 1);
  const FallbackPlan packed = plan_of("aten::_pack_padded_sequence");
  EXPECT_EQ(packed.results, 2);
  EXPECT_EQ(packed.host_result, 1);
  EXPECT_EQ(plan_of("aten::add", "Tensor").number, FallbackPlan::kNone);
}

/// Operands by a schema's text: "Tensor(a!)[] self", "Device? device" are operands, "int[]? dim" is not.
bool names_an_operand(const c10::Argument& argument) {
  const std::string type = argument.type()->str();
  return type.find("Tensor") != std::string::npos || type.find("Device") != std::string::npos ||
         type.find("Generator") != std::string::npos;
}

TEST(FallbackPlan, MissesNoTensorOfAnyOperator) {
  int operators = 0;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !name.name.starts_with("aten::")) continue;
    const auto& arguments = op->schema().arguments();
    const FallbackPlan plan(op->schema());
    std::set<std::size_t> visited, written;
    for (const auto& operand : plan.operands) {
      visited.insert(operand.index);
      if (operand.written) written.insert(operand.index);
    }
    ASSERT_EQ(plan.arguments, arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      EXPECT_TRUE(visited.contains(i) || !names_an_operand(arguments[i])) << op->schema() << " argument " << i;
      const bool is_written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      EXPECT_EQ(written.contains(i), is_written) << op->schema() << " argument " << i;
    }
    ++operators;
  }
  EXPECT_GT(operators, 2000);
}

}  // namespace
}  // namespace fp8::test

TORCH_LIBRARY(fallback_test, m) {
  m.def("keep(Tensor x) -> ()");
  m.def("table(Tensor x) -> Tensor");
  m.def("first_row(Tensor(a) x) -> Tensor(a)");
  m.def("all_reduce_(Tensor(a!) x) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(fallback_test, CPU, m) {
  m.impl("keep", [](const at::Tensor& x) { fp8::test::kept() = x; });
  m.impl("table", &fp8::test::table);
  m.impl("first_row", &fp8::test::first_row);
  m.impl("all_reduce_", [](at::Tensor& x) -> at::Tensor& { return x.mul_(2); });
}
