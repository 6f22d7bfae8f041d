// SPDX-License-Identifier: Apache-2.0
// The edge of the operators: a converted weight is refused by name in every argument of every operator that would take
// its codes for values, and operands lie on one device (scales may be read on the host).
#include "fp8/runtime/ops/common/edge.h"

#include "fp8/runtime/ops/common/file_dtype.h"
#include "runtime/ops/op_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;
using runtime::ops::broadcast_of;
using runtime::ops::Scale;
using runtime::ops::scale_of;

Tensor converted() {
  Tensor w = at::ones({4, 4}, on_hpu());
  convert_to_codes(w, "fc1", std::make_shared<CodesHandler>(0.5), 0.5);
  return w;
}

TEST(Edge, AConvertedWeightIsRefusedByName) {
  const Tensor w = converted(), x = random_codes({4, 4}, kE4M3, 1);
  const auto refused = [](const char* op, const char* overload, const torch::jit::Stack& args) {
    EXPECT_REFUSED(call(op, overload, args), std::string("hpu::") + op, "module 'fc1'", "Float8_e4m3fn") << op;
  };
  refused("cast_from_fp8", "", {w, kNone, code(at::kFloat)});
  refused("cast_from_fp8", "scalar", {w, 1.0, code(at::kFloat)});
  refused("cast_to_fp8_v2", "", {w, kNone, false, false, code(kE4M3)});
  refused("sum_fp8", "", {w});
  refused("fp8_gemm_v2", "", {x, false, w, true, kNone, code(at::kFloat)});
  refused("fp8_gemm_v2", "scalar", {w, false, x, true, kNone, code(at::kFloat), 1.0, 1.0});
  refused("fp8_gemm_v2", "", {x, false, w.t(), false, kNone, code(at::kFloat)});
  refused("fp8_gemm_v2", "", {x, false, w.narrow(0, 1, 2), true, kNone, code(at::kFloat)});
  refused("conv2d_fp8", "", {x.view({1, 4, 2, 2}), w.view({4, 4, 1, 1})});
  refused("softmax_fp8", "Scalar_scales", {w, -1, 1.0, 1.0});
  refused("fp8_index_copy_", "", {x.clone(), 0, at::tensor({0}, on_hpu(at::kLong)), w.narrow(0, 0, 1)});
  const c10::List<Tensor> list({w});
  const Tensor routes = at::zeros({4, 1}, on_hpu(at::kInt)), weights = at::ones({4, 1}, on_hpu());
  refused(
      "mixture_of_experts", "fp8_fused_weights_scalars_dynamic",
      {x, routes, weights, list, list, 1.0, c10::List<double>({1.0}), c10::List<double>({1.0}), true, "silu", 0, 0});
  EXPECT_TRUE(throws_with({"fp8::weight_only_linear", "module 'fc1'"}, [&] {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fp8::weight_only_linear", "");
    torch::jit::Stack args{at::ones({1, 4}, on_hpu()), w, at::ones({1}, on_hpu()), kNone};
    op.callBoxed(args);
  }));
}

/// Every hpu:: schema that names a tensor or a list of them in its first place is asked with a converted weight there.
TEST(Edge, NoOperatorTakesAConvertedWeightForValues) {
  const Tensor w = converted();
  const Tensor before = w.view(at::kByte).clone();
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("hpu::", 0) != 0) continue;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    torch::jit::Stack args;
    for (const auto& argument : op.schema().arguments()) {
      const std::string type = argument.type()->str();
      if (type == "Tensor")
        args.emplace_back(w);
      else if (type == "Tensor?")
        args.emplace_back();
      else if (type == "Tensor[]")
        args.emplace_back(c10::List<Tensor>({w}));
      else if (type == "int")
        args.emplace_back(argument.name().find("dtype") != std::string::npos ? code(at::kFloat) : std::int64_t{0});
      else if (type == "float")
        args.emplace_back(1.0);
      else if (type == "float[]")
        args.emplace_back(c10::List<double>({1.0}));
      else if (type == "int[]")
        args.emplace_back(c10::List<std::int64_t>({4, 4}));
      else if (type == "bool")
        args.emplace_back(false);
      else if (type == "str")
        args.emplace_back("none");
      else
        args.emplace_back();
    }
    const bool moves = name.name.find("hpu::fp8_copy_") == 0 || name.name == "hpu::fp8_reshape" ||
                       name.name == "hpu::fp8_transpose" || name.name == "hpu::fp8_permute";
    if (moves) continue;  // copies of a whole weight or of parts of it: runtime/intercept says what they carry
    const std::string text = error_of([&] { op.callBoxed(args); });
    const bool named = text.find("module 'fc1'") != std::string::npos;
    const bool shape =
        name.name.find("interleave") != std::string::npos || name.name.find("mixture_of_experts") != std::string::npos;
    EXPECT_TRUE(named || (shape && !text.empty())) << name.name << "." << name.overload_name << ": " << text;
  }
  EXPECT_TRUE(same_bits(w.view(at::kByte), before));
}

TEST(Edge, TheLibrarysOwnCallsThatHaveTheScaleGoThrough) {
  const Tensor w = converted(), x = random_codes({2, 4}, kE4M3, 1), one = at::ones({1}, on_hpu()),
               half = at::full({1}, 0.5, on_hpu());
  const auto product = [&] {
    return call("fp8_gemm_v2", "", {x, false, w, true, kNone, code(at::kFloat), one, half})[0];
  };
  Tensor y = within(runtime::ops::CodesWithScale(), [&] { return product(); });
  EXPECT_TRUE(same_bits(y, at::matmul(values_of(x), at::ones({4, 4}, at::kDouble)).to(at::kFloat)));
  EXPECT_TRUE(throws_with({"module 'fc1'"}, product)) << "and only for as long as the call lasts";
}

TEST(Edge, AnOperandOnTheHostIsRefusedAndAScaleThereIsRead) {
  const Tensor x = random_codes({2, 4}, kE4M3, 1), w = random_codes({3, 4}, kE4M3, 2), host = x.cpu();
  const auto gemm = [](const Tensor& a, const Tensor& b, const at::IValue& a_scale, const at::IValue& bias) {
    return call("fp8_gemm_v2", "", {a, false, b, true, kNone, code(at::kFloat), a_scale, kNone, bias})[0];
  };
  const auto refused = [&](const Tensor& a, const Tensor& b, const at::IValue& bias) {
    EXPECT_REFUSED(gemm(a, b, kNone, bias), "hpu::fp8_gemm_v2", "hpu:0 and cpu!", "FP8_HPU_MOVE_HOST_OPERANDS=1");
  };
  refused(host, w, kNone);
  refused(x, w.cpu(), kNone);
  refused(x, w, at::ones({3}));
  const Tensor plain = gemm(x, w, kNone, kNone);
  EXPECT_TRUE(same_bits(gemm(x, w, at::full({1}, 2.f), kNone), plain * 2));
  EXPECT_REFUSED(call("kv_reorder", "",
                      {hpu(at::zeros({1, 4, 3, 2})), at::zeros({1}, at::kInt), at::ones({1}, at::kInt),
                       at::zeros({1}, at::kByte)}),
                 "hpu:0 and cpu!");
  EXPECT_REFUSED(call("rms_norm", "", {at::ones({2, 4}, on_hpu()), at::ones({4}), 1e-6}), "hpu::rms_norm",
                 "hpu:0 and cpu!");
  EXPECT_TRUE(throws_with({"hpu::sdpa_fwd", "hpu:0 and cpu!"}, [&] {
    const Tensor q = at::ones({1, 2, 4}, on_hpu());
    call("sdpa_fwd", "", {q, q, q, at::ones({2, 2}, at::kBool), 0.0, 1.0, false, "none", kNone, "left"});
  }));
}

TEST(Edge, TheFlagMovesOperandsButNoneThatIsWritten) {
  const ScopedVariable flag("FP8_HPU_MOVE_HOST_OPERANDS", "1");
  const Tensor x = random_codes({2, 4}, kE4M3, 1), w = random_codes({3, 4}, kE4M3, 2), bias = at::randn({3});
  const torch::jit::Stack on_device{x, false, w, true, kNone, code(at::kFloat), kNone, kNone, hpu(bias)},
      mixed{x.cpu(), false, w, true, kNone, code(at::kFloat), kNone, kNone, bias};
  EXPECT_TRUE(same_bits(call("fp8_gemm_v2", "", mixed)[0], call("fp8_gemm_v2", "", on_device)[0]));
  EXPECT_EQ(call("fp8_gemm_v2", "", mixed)[0].device(), kHpu);
  const Tensor host_out = at::empty({2, 3});
  EXPECT_REFUSED(
      call("fp8_gemm", "", {x, false, w, true, host_out, code(at::kFloat), kNone, kNone, kNone, false, host_out}),
      "hpu::fp8_gemm", "written");
}

// Scales as arguments: shapes, broadcast patterns, rounding.

Scale scale(const std::vector<std::int64_t>& shape) { return scale_of(at::ones(shape), std::nullopt); }

TEST(Arguments, TypesOfTheKernels) {
  for (const auto& [type, name] : enum_names<kernels::FloatType>) {
    EXPECT_TRUE(runtime::ops::float_type_of(runtime::ops::dtype_of(type)) == type) << name;
    EXPECT_FALSE(is_fp8(runtime::ops::storage_of(runtime::ops::dtype_of(type)))) << name;
  }
  for (const auto& [format, name] : enum_names<kernels::Format>) {
    EXPECT_TRUE(runtime::ops::format_of(runtime::ops::dtype_of(format)) == format) << name;
    EXPECT_TRUE(is_fp8(runtime::ops::storage_of(runtime::ops::dtype_of(format)))) << name;
  }
  EXPECT_TRUE(runtime::ops::storage_of(at::kBFloat16) == kernels::Storage::BF16);
  EXPECT_TRUE(runtime::ops::storage_of(at::kFloat8_e5m2) == kernels::Storage::E5M2);
}

TEST(ScaleOf, TakesTensorsOfThreeTypesOnEitherDevice) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const at::Tensor& t : {at::full({2}, 0.5, type), at::full({2}, 0.5, on_hpu(type))}) {
      const Scale s = scale_of(t, std::nullopt);
      EXPECT_EQ(s.values, (std::vector<float>{0.5f, 0.5f}));
      EXPECT_EQ(s.shape, (std::vector<std::int64_t>{2}));
    }
  EXPECT_TRUE(scale_of(std::optional<at::Tensor>(), std::nullopt).none());
  EXPECT_TRUE(scale_of(2.0, std::nullopt).per_tensor());
  const at::Tensor every_other = at::arange(6, at::kFloat).slice(0, 0, 6, 2);
  EXPECT_EQ(scale_of(every_other, std::nullopt).values, (std::vector<float>{0, 2, 4}));
  EXPECT_REFUSED(scale_of(at::ones({1}, at::kLong), std::nullopt),
                 "expected a scale of dtype Float, BFloat16 or Half, got Long");
}

TEST(ScaleOf, ShapeMustHoldAsManyElements) {
  const std::vector<std::int64_t> six = {6};
  EXPECT_EQ(scale_of(at::ones({6}), std::vector<std::int64_t>{2, 3}).shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_REFUSED(scale_of(at::ones({3}), six),
                 "Number of scale elements (3) is not equal to number of scale_shape elements (6).");
  const std::vector<double> list = {1, 2};
  EXPECT_REFUSED(scale_of(list, six),
                 "Number of scale elements (2) is not equal to number of scale_shape elements (6).");
}

TEST(BroadcastOf, KnowsRowsAndColumns) {
  const auto strides = [](const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& sizes) -> std::vector<std::int64_t> {
    const auto b = broadcast_of(scale(shape), sizes);
    return b.has_value() ? std::vector<std::int64_t>{b->rows, b->cols} : std::vector<std::int64_t>{};
  };
  using V = std::vector<std::int64_t>;
  EXPECT_EQ(strides({}, {4, 6}), (V{0, 0}));
  EXPECT_EQ(strides({1}, {4, 6}), (V{0, 0}));
  EXPECT_EQ(strides({6}, {4, 6}), (V{0, 1}));
  EXPECT_EQ(strides({1, 6}, {4, 6}), (V{0, 1}));
  EXPECT_EQ(strides({4, 1}, {4, 6}), (V{1, 0}));
  EXPECT_EQ(strides({2, 4, 1}, {2, 4, 6}), (V{1, 0}));
  EXPECT_EQ(strides({1, 4, 1}, {2, 4, 6}), V{});  // a pattern of its own
  EXPECT_EQ(strides({4, 6}, {4, 6}), V{});
  EXPECT_EQ(strides({5}, {4, 6}), V{});
  EXPECT_EQ(strides({4}, {4, 6}), V{});
  EXPECT_EQ(strides({2, 1, 1}, {4, 6}), V{});
}

TEST(RoundTo, RoundsToTheTensorsType) {
  Scale s = scale_of(0.3, std::nullopt);
  runtime::ops::round_to(s, at::kFloat);
  EXPECT_EQ(s.values[0], 0.3f);
  runtime::ops::round_to(s, at::kBFloat16);
  EXPECT_EQ(s.values[0], 0.30078125f);  // 77 / 256
}

TEST(FileDType, ThereAndBackWithTheSameSize) {
  for (const auto& [own, stored] : runtime::ops::kFileDTypes) {
    EXPECT_TRUE(runtime::ops::file_dtype(own) == stored) << own;
    EXPECT_TRUE(runtime::ops::tensor_dtype(stored) == own) << own;
    EXPECT_EQ(c10::elementSize(own), static_cast<std::size_t>(io::size_of(stored))) << own;
  }
}

TEST(FileDType, IsEmptyWhereTheOtherHasNone) {
  EXPECT_FALSE(runtime::ops::file_dtype(at::kComplexDouble).has_value());
  EXPECT_FALSE(runtime::ops::file_dtype(at::kQInt8).has_value());
  EXPECT_FALSE(runtime::ops::tensor_dtype(io::DType::C64).has_value());
}

}  // namespace
}  // namespace fp8::test
