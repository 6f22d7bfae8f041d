// SPDX-License-Identifier: Apache-2.0
// mixture_of_experts in high precision: all four forms against the formula in f64, amax, expert ranges, gradients, the
// handlers of tagged weights, refusals.
#include "fp8/runtime/ops/moe/moe_ops.h"
#include "runtime/ops/moe/moe_problem.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using at::Tensor;

/// The result over list positions first..first + n - 1 standing for the ids from p.min on.
Tensor exact_result(const MoeProblem& p) {
  Tensor y = at::zeros({p.tokens, p.hidden}, at::kDouble);
  for (std::int64_t id = p.min; id <= p.max; ++id) {
    const auto e =
        static_cast<std::size_t>(static_cast<std::int64_t>(p.w1.size()) == p.max - p.min + 1 ? id - p.min : id);
    const Tensor h = p.intermediate(e, p.f64(p.x), p.f64(p.w1[e]), p.f64(p.w2[e]));
    y = y + p.weight_of(id).unsqueeze(1) * at::matmul(h, p.f64(p.w3[e]));
  }
  return y;
}

double exact_amax(const MoeProblem& p, std::int64_t id) {
  const auto e = static_cast<std::size_t>(id);
  const Tensor h = p.intermediate(e, p.f64(p.x), p.f64(p.w1[e]), p.f64(p.w2[e]));
  return (h.abs() * (p.table == id).any(1).to(at::kDouble).unsqueeze(1)).max().item<double>();
}

double tolerance(at::ScalarType type) { return type == at::kFloat ? 2e-6 : type == at::kHalf ? 2e-3 : 1.5e-2; }

std::vector<Tensor> run(const MoeProblem& p, const char* overload, bool permuted, bool fused) {
  torch::jit::Stack stack = p.inputs(permuted, fused);
  p.add_tail(stack, permuted);
  if (std::string(overload).find("measurement") != std::string::npos) stack.emplace_back(true);
  return call("mixture_of_experts", overload, stack);
}

TEST(MixtureOfExperts, EqualsTheFormulaInAllForms) {
  for (const char* activation : {"gelu", "relu", "silu"})
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const MoeProblem p = random_moe(type, activation);
      const Tensor exact = exact_result(p);
      for (const bool permuted : {false, true})
        for (const bool fused : {false, true}) {
          const Tensor y = run(p, fused ? "fused_weights" : "", permuted, fused)[0];
          EXPECT_EQ(y.scalar_type(), type);
          EXPECT_TRUE(y.device().is_hpu());
          EXPECT_LT(relative_error(y, exact), tolerance(type)) << activation << permuted << fused << type;
        }
    }
}

TEST(MixtureOfExperts, MeasuresEachExpertsLargestMagnitude) {
  MoeProblem p = random_moe(at::kFloat, "silu");
  p.table.masked_fill_(p.table == 2, 1);  // no token goes to expert 2
  for (const bool fused : {false, true}) {
    const auto results = run(p, fused ? "fp8_measurement_fused_weights" : "fp8_measurement", true, fused);
    EXPECT_LT(relative_error(results[0], exact_result(p)), 2e-6);
    ASSERT_EQ(results[1].sizes(), at::IntArrayRef({p.experts}));
    ASSERT_EQ(results[1].scalar_type(), at::kFloat);
    const Tensor amax = results[1].cpu();
    for (const std::int64_t id : {0, 1, 3}) {
      const double expected = exact_amax(p, id);
      EXPECT_NEAR(amax[id].item<double>(), expected, 1e-5 * expected) << id;
    }
    EXPECT_EQ(amax[2].item<double>(), 0);
  }
}

TEST(MixtureOfExperts, AmaxIsOfMagnitudes) {
  MoeProblem p = exact_moe(at::kFloat);
  for (auto& w : p.w2) w = -w.abs() - 1;
  p.x = p.x.abs() + 1;
  for (auto& w : p.w1) w = w.abs();
  const Tensor amax = run(p, "fp8_measurement", false, false)[1].cpu();
  for (std::int64_t id = 0; id < p.experts; ++id) {
    EXPECT_GT(exact_amax(p, id), 0);
    EXPECT_EQ(amax[id].item<double>(), exact_amax(p, id)) << "every product is negative";
  }
}

TEST(MixtureOfExperts, AnExpertRangeWithLocalOrAllWeights) {
  MoeProblem p = random_moe(at::kFloat, "silu");
  p.min = 1;
  p.max = 2;
  const Tensor exact = exact_result(p);
  EXPECT_LT(relative_error(run(p, "", true, false)[0], exact), 2e-6);
  const Tensor amax = run(p, "fp8_measurement", true, false)[1].cpu();
  EXPECT_EQ(amax[0].item<double>(), 0);
  EXPECT_EQ(amax[3].item<double>(), 0);
  EXPECT_GT(amax[1].item<double>(), 0);
  for (auto* list : {&p.w1, &p.w2, &p.w3}) *list = {(*list)[1], (*list)[2]};
  EXPECT_LT(relative_error(run(p, "", true, false)[0], exact), 2e-6);
}

TEST(MixtureOfExperts, ExpertsNamedTwiceCountTwiceAndForeignIdsNot) {
  MoeProblem p = random_moe(at::kFloat, "relu");
  p.table = at::tensor({0, 0, 3, 3, 1, 7, -1, 2, 9, 9, 0, 1, 2, 3, 1, 1, 2, 2}, at::kInt).view({9, 2});
  EXPECT_LT(relative_error(run(p, "", false, false)[0], exact_result(p)), 2e-6);
  EXPECT_EQ(run(p, "", false, false)[0].cpu()[4].abs().max().item<double>(), 0) << "both of its experts are elsewhere";
}

TEST(MixtureOfExperts, NoTokens) {
  MoeProblem p = random_moe(at::kBFloat16, "silu");
  p.x = p.x.slice(0, 0, 0);
  p.table = p.table.slice(0, 0, 0);
  p.router = p.router.slice(0, 0, 0);
  const auto results = run(p, "fp8_measurement", true, false);
  EXPECT_EQ(results[0].sizes(), at::IntArrayRef({0, 16}));
  EXPECT_EQ(results[1].cpu().sum().item<double>(), 0);
}

TEST(MixtureOfExperts, GradientsEqualThoseOfTheFormula) {
  const MoeProblem p = random_moe(at::kDouble, "silu");
  const auto leaf = [](const Tensor& t) { return t.detach().clone().set_requires_grad(true); };
  MoeProblem exact = p, ours = p;
  std::vector<Tensor> expected, got;
  for (auto member : {&MoeProblem::w1, &MoeProblem::w2, &MoeProblem::w3})
    for (std::size_t e = 0; e < p.w1.size(); ++e) {
      expected.push_back((exact.*member)[e] = leaf((p.*member)[e]));
      got.push_back((ours.*member)[e] = leaf(hpu((p.*member)[e].to(at::kFloat))));
    }
  exact.x = leaf(p.x);
  exact.router = leaf(p.router);
  ours.x = leaf(hpu(p.x.to(at::kFloat)));
  ours.router = leaf(hpu(p.router.to(at::kFloat)));
  exact_result(exact).square().sum().backward();
  const runtime::ops::MoeRoute route{ours.x, hpu(p.table), ours.router, false, "silu", 0, 3};
  runtime::ops::call_mixture_of_experts(route, ours.w1, ours.w2, ours.w3).square().sum().backward();
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_LT(relative_error(got[i].grad(), expected[i].grad()), 1e-5) << i;
  EXPECT_LT(relative_error(ours.x.grad(), exact.x.grad()), 1e-5);
  EXPECT_LT(relative_error(ours.router.grad(), exact.router.grad()), 1e-5);
}

TEST(MixtureOfExperts, TaggedWeightsAreTheirHandlers) {
  const MoeProblem p = random_moe(at::kFloat, "silu");
  auto w12 = p.lists(true, true, 1), w3 = p.lists(true, true, 3);
  const auto watcher = std::make_shared<RecordingHandler>();
  for (std::size_t e = 0; e < w12.size(); ++e) {
    runtime::tag_weight(w12[e], "experts." + std::to_string(e) + ".w12", watcher);
    runtime::tag_weight(w3[e], "experts." + std::to_string(e) + ".w3", watcher);
  }
  const runtime::ops::MoeRoute route{hpu(p.x), hpu(p.table), hpu(p.router), true, "silu", 0, 3};
  const Tensor plain =
      runtime::ops::call_mixture_of_experts_fused(route, p.lists(true, true, 1), p.lists(true, true, 3));
  const Tensor watched = runtime::ops::call_mixture_of_experts_fused(route, w12, w3);
  EXPECT_TRUE(same_bits(watched, plain));
  ASSERT_EQ(watcher->calls.size(), 8u);
  EXPECT_EQ(watcher->calls[0].modules, "experts.0.w12");
  EXPECT_EQ(watcher->calls[1].modules, "experts.0.w3");

  const auto codes = std::make_shared<CodesHandler>(0.01);
  for (auto& w : w12) convert_to_codes(w, "w12", codes, 0.01);
  const Tensor y = runtime::ops::call_mixture_of_experts_fused(route, w12, w3);
  EXPECT_EQ(codes->linears, 4);
  EXPECT_LT(relative_error(y, exact_result(p)), 0.1) << "E4M3 weights";
}

TEST(MixtureOfExperts, RunsInInferenceMode) {
  const MoeProblem p = random_moe(at::kBFloat16, "silu");
  const Tensor expected = run(p, "", true, false)[0];
  const c10::InferenceMode inference;
  EXPECT_TRUE(same_bits(run(p, "", true, false)[0], expected));
}

TEST(MixtureOfExperts, MetaGivesSizesAndDtypes) {
  const MoeProblem p = random_moe(at::kBFloat16, "silu");
  torch::jit::Stack stack = p.inputs(true, false);
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = value.toTensor().to(at::kMeta);
    } else {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(t.to(at::kMeta));
      value = list;
    }
  }
  p.add_tail(stack, true);
  stack.emplace_back(true);
  const auto results = call("mixture_of_experts", "fp8_measurement", stack);
  EXPECT_TRUE(results[0].is_meta());
  EXPECT_EQ(results[0].sizes(), p.x.sizes());
  EXPECT_EQ(results[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(results[1].sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(results[1].scalar_type(), at::kFloat);
}

TEST(MixtureOfExperts, BadArgumentsAreNamed) {
  const auto with = [](const std::function<void(MoeProblem&)>& change) {
    MoeProblem p = random_moe(at::kFloat, "silu");
    change(p);
    run(p, "", false, false);
  };
  EXPECT_REFUSED(with([](auto& p) { p.activation = "tanh"; }),
                 "Activation \"tanh\" not found among MoeActivationMode_t enum values.");
  EXPECT_REFUSED(with([](auto& p) { p.x = p.x.unsqueeze(0); }), "hidden_states [tokens, hidden]");
  EXPECT_REFUSED(with([](auto& p) { p.table = p.table.to(at::kFloat); }), "Int or Long", "Float");
  EXPECT_REFUSED(with([](auto& p) { p.router = p.router.slice(1, 0, 1); }), "router_weights [9");
  EXPECT_REFUSED(with([](auto& p) { p.w1.pop_back(); }), "lists of one length");
  EXPECT_REFUSED(with([](auto& p) { p.w1 = p.w2 = p.w3 = {}; }), "at least one expert");
  EXPECT_REFUSED(with([](auto& p) { p.w2[1] = p.w2[1].slice(1, 0, 23); }), "w2[1] of sizes [16, 24]", "[16, 23]");
  EXPECT_REFUSED(with([](auto& p) { p.w3[0] = p.w3[0].unsqueeze(0); }), "w3[0] of 2 dimensions");
  EXPECT_REFUSED(with([](auto& p) { p.min = 3, p.max = 2; }), "experts_min <= experts_max");
  EXPECT_REFUSED(with([](auto& p) { p.max = 4; }), "a weight for each");
  EXPECT_REFUSED(with([](auto& p) { p.min = 3, p.max = 5; }), "3 weights for the experts [3, 5]");
  EXPECT_REFUSED(with([](auto& p) { p.x = p.x.to(at::kFloat8_e4m3fn); }), "hidden_states of dtype");
}

// The second page of schemas: those of bridge 1.19 argument by argument; of the later ones names and order; all have
// kernels for hpu and meta tensors.

TEST(SecondPage, EqualsTheVendors) { expect_schemas("experts, layout and low-bit formats", 20); }

TEST(SecondPage, LaterExpertsHaveTheOrderOfTheLaterBridge) {
  // The arguments between the weights and permuted_weights; the rest is common.
  const std::pair<const char*, std::vector<std::string>> kForms[] = {
      {"fp8",
       {"d_scale_hidden_states", "d_scale_intermediate_hidden_states", "d_scale_w1", "d_scale_w2", "d_scale_w3"}},
      {"fp8_fused_weights",
       {"d_scale_hidden_states", "d_scale_intermediate_hidden_states", "d_scale_w12", "d_scale_w3"}},
      {"fp8_dynamic", {"d_scale_hidden_states", "d_scale_w1", "d_scale_w2", "d_scale_w3"}},
      {"fp8_fused_weights_dynamic", {"d_scale_hidden_states", "d_scale_w12", "d_scale_w3"}},
      {"fp8_blockwise", {"d_scale_w1", "d_scale_w2", "d_scale_w3", "block_size"}},
      {"fp8_fused_weights_blockwise", {"d_scale_w12", "d_scale_w3", "block_size"}},
  };
  for (const auto& [form, scales] : kForms) {
    const std::string name = form;
    const std::size_t dynamic = name.find("_dynamic");
    const std::string scalars =
        dynamic == std::string::npos ? name + "_scalars" : name.substr(0, dynamic) + "_scalars_dynamic";
    std::vector<std::string> expected = {"hidden_states", "expert_routing_table", "router_weights"};
    const bool fused = name.find("fused") != std::string::npos;
    for (const char* w : fused ? std::vector<const char*>{"w12", "w3"} : std::vector<const char*>{"w1", "w2", "w3"})
      expected.emplace_back(w);
    expected.insert(expected.end(), scales.begin(), scales.end());
    for (const char* tail :
         {"permuted_weights", "activation", "experts_min", "experts_max", "chunk_size", "total_experts"})
      expected.emplace_back(tail);
    const bool blockwise = name.find("blockwise") != std::string::npos;
    for (const std::string& overload :
         blockwise ? std::vector<std::string>{name} : std::vector<std::string>{name, scalars}) {
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("hpu::mixture_of_experts", overload.c_str());
      auto names = collected(op.schema().arguments(), [](const auto& argument) { return argument.name(); });
      EXPECT_EQ(names, expected) << overload;
      EXPECT_EQ(op.schema().arguments().back().default_value()->toInt(), 0);
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::HPU)) << overload;
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) << overload;
    }
  }
}

}  // namespace
}  // namespace fp8::test
