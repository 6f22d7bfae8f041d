// SPDX-License-Identifier: Apache-2.0
// The edge of the operators: a converted weight is refused by name in every argument of every operator that would take
// its codes for values, and operands lie on one device (scales may be read on the host).
#include "fp8/runtime/ops/common/edge.h"

#include "runtime/ops/op_call.h"
#include "support/scoped_variable.h"

namespace fp8::test {
namespace {

using at::Tensor;

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
  Tensor y;
  {
    const runtime::ops::CodesWithScale given;
    y = product();
  }
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

}  // namespace
}  // namespace fp8::test
