// SPDX-License-Identifier: Apache-2.0
// Events that listeners get: outermost leaves with their operands, module, phase and flops; on every thread, however
// they end.
#include "fp8/runtime/leaf/leaf.h"

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/optim/optimizers.h"
#include "runtime/leaf/heard.h"
#include "runtime/ops/op_call.h"

namespace fp8::runtime {
namespace {

using test::call;
using test::heard_of;
using test::HeardLeaves;
using test::kNone;

TEST(Leaf, OutermostOnly) {
  const auto x = torch::ones({2, 3}, on_hpu());
  const auto& found = heard_of([&] {
    LeafScope outer("my::outer", x);
    (void)x.add(1);
    const LeafScope inner("my::inner", x);
    outer.gives(x, x);
  });
  ASSERT_THAT(found.ops(), ElementsAre("my::outer"));
  EXPECT_EQ(found.heard[0].inputs, 1U);
  EXPECT_EQ(found.heard[0].outputs, 2U);
  EXPECT_EQ(found.heard[0].bytes, 3 * 24);
  EXPECT_GE(found.heard[0].end_ns, found.heard[0].begin_ns);
}

TEST(Leaf, NothingIsHeardOfWhatThrew) {
  const auto x = torch::ones({2, 3}, on_hpu()), y = torch::ones({4, 5}, on_hpu());
  const auto& found = heard_of([&] {
    EXPECT_ANY_THROW((void)at::mm(x, y));
    try {
      const LeafScope leaf("my::op", x);
      throw std::runtime_error("no");
    } catch (const std::runtime_error&) {
    }
    (void)x.neg();
  });
  EXPECT_THAT(found.ops(), ElementsAre("aten::neg"));
  EXPECT_GE(found.begun.size(), 2U);
}

TEST(Leaf, ListsAndOptionalsOfTensors) {
  const auto x = torch::ones(2, on_hpu());
  const auto& found = heard_of([&] {
    (void)at::cat({x, x, x});
    const LeafScope leaf("my::op", std::optional<at::Tensor>(), std::vector<at::Tensor>{x, x}, at::Tensor(), 3);
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].inputs, 3U);
  EXPECT_EQ(found.heard[1].inputs, 2U);
}

TEST(Leaf, FlopsOfProducts) {
  const auto a = torch::ones({3, 4, 5}, on_hpu()), b = torch::ones({3, 5, 6}, on_hpu());
  const auto x = torch::ones({2, 3, 8, 8}, on_hpu()), w = torch::ones({5, 3, 3, 3}, on_hpu());
  const auto q = torch::ones({1, 2, 4, 8}, on_hpu()), k = torch::ones({1, 2, 6, 8}, on_hpu());
  const auto& found = heard_of([&] {
    (void)at::bmm(a, b);
    (void)at::mm(a[0], b[0]);
    (void)at::addmm(torch::ones(6, on_hpu()), a[0], b[0]);
    (void)at::conv2d(x, w);
    (void)at::scaled_dot_product_attention(q, k, k);
  });
  std::map<std::string, std::int64_t> flops;
  for (const auto& leaf : found.heard) flops[leaf.op.substr(0, leaf.op.find('.'))] += leaf.flops;
  EXPECT_EQ(flops["aten::bmm"], 2 * 3 * 4 * 5 * 6);
  EXPECT_EQ(flops["aten::mm"], 2 * 4 * 5 * 6);
  EXPECT_EQ(flops["aten::addmm"], 2 * 4 * 5 * 6);
  std::int64_t convolution = 0, attention = 0;
  for (const auto& [op, count] : flops) {
    if (op.find("convolution") != std::string::npos) convolution += count;
    if (op.find("scaled_dot_product") != std::string::npos) attention += count;
  }
  EXPECT_EQ(convolution, std::int64_t{2} * (2 * 5 * 6 * 6) * (3 * 3 * 3));
  EXPECT_EQ(attention, 2 * (2 * 4) * 6 * (8 + 8));
}

TEST(Leaf, SameBitsWhileHeard) {
  torch::manual_seed(3);
  const auto x = torch::randn({5, 16}, on_hpu()), w = torch::randn({16, 8}, on_hpu()), v = torch::randn(16, on_hpu());
  const auto compute = [&] {
    return std::vector<at::Tensor>{at::mm(x, w),
                                   x.add(v),
                                   x.mul(2),
                                   at::gelu(x),
                                   at::silu(x),
                                   at::softmax(x, -1),
                                   x.sum(),
                                   x.zero_(),
                                   x.fill_(0.5),
                                   x.to(torch::kBFloat16),
                                   x.transpose(0, 1).contiguous()};
  };
  const auto start = x.clone();
  const auto quiet = compute();
  auto copies = collected(quiet, [](const auto& t) { return t.clone(); });
  x.copy_(start);
  std::vector<at::Tensor> loud;
  const auto& found = heard_of([&] {
    for (const auto& t : compute()) loud.push_back(t.clone());
  });
  for (std::size_t i = 0; i < copies.size(); ++i) EXPECT_TRUE(test::same_bits(copies[i], loud[i])) << i;
  EXPECT_GE(found.heard.size(), copies.size());
}

TEST(Leaf, PhasesAndModulesNest) {
  const auto x = torch::ones(2, on_hpu());
  const std::string outer = "model", inner = "model.mlp";
  const auto& found = heard_of([&] {
    const PhaseScope forward("forward");
    const ModuleScope a(outer, "Model");
    {
      const ModuleScope b(inner);
      (void)x.neg();
      EXPECT_EQ(ModuleScope::current(), "model.mlp");
    }
    const PhaseScope loss("loss");
    (void)x.neg();
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].module, "model.mlp");
  EXPECT_EQ(found.heard[0].phase, "forward");
  EXPECT_EQ(found.heard[0].line, "aten::neg [2] Float | model.mlp");
  EXPECT_EQ(found.heard[1].module, "model");
  EXPECT_EQ(found.heard[1].phase, "loss");
  EXPECT_EQ(ModuleScope::current(), "");
  EXPECT_EQ(PhaseScope::current(), "");
}

TEST(Leaf, BackwardBelongsToTheModuleThatMadeTheNode) {
  const std::string first = "a", second = "b";
  for (const bool own_thread : {true, false}) {
    const auto x = torch::ones({2, 2}, on_hpu()).requires_grad_();
    const auto& found = heard_of([&] {
      at::Tensor y = test::within(ModuleScope(first), [&] { return at::mm(x, x); });
      test::within(ModuleScope(second), [&] { y = y.exp(); });
      const auto loss = y.sum();
      if (own_thread) return loss.backward();
      std::thread([&] { loss.backward(); }).join();
    });
    std::map<std::string, int> products, multiplied;
    for (const auto& leaf : found.heard) {
      if (!leaf.backward) continue;
      if (leaf.op == "aten::mm") ++products[leaf.module];
      if (leaf.op == "aten::mul.Tensor") ++multiplied[leaf.module];
    }
    EXPECT_EQ(products["a"], 2) << own_thread;
    EXPECT_EQ(products.size(), 1U);
    EXPECT_EQ(multiplied["b"], 1) << own_thread;
  }
}

TEST(Leaf, HostNodesKeepTheirPlace) {
  const auto x = torch::ones(2, on_hpu());
  int runs = 0;
  const auto& found = heard_of([&] {
    (void)x.neg();
    host_node("my::counter", [&] { ++runs; });
    (void)x.exp();
  });
  host_node("my::counter", [&] { ++runs; });
  EXPECT_EQ(runs, 2);
  ASSERT_THAT(found.ops(), ElementsAre("aten::neg", "my::counter", "aten::exp"));
  EXPECT_TRUE(found.heard[1].host);
  EXPECT_FALSE(found.heard[0].host);
}

struct Numbers : LeafListener {
  void leaf_ends(const LeafRecord& leaf) override {
    for (const auto& [name, value] : leaf.notes) notes[name] = value;
  }
  bool wants_numbers() const override { return true; }
  std::map<std::string, double> notes;
};

TEST(Leaf, NotesReachWhoAsks) {
  Numbers numbers;
  {
    const Listening listening(numbers);
    LeafScope leaf("my::cast");
    EXPECT_TRUE(leaf.wants_numbers());
    leaf.note("amax", 3.5);
  }
  EXPECT_EQ(numbers.notes["amax"], 3.5);
  LeafScope unheard("my::cast");
  EXPECT_FALSE(unheard.wants_numbers());
}

TEST(Leaf, ListenersComeAndGoWhileThreadsRun) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      const auto x = torch::ones(8, on_hpu());
      while (!stop) (void)x.neg();
    });
  for (int i = 0; i < 200; ++i) {
    HeardLeaves a, b;
    const Listening one(a);
    const Listening two(b);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(leaves_heard());
}

TEST(Leaf, EightListenAtMost) {
  std::vector<std::unique_ptr<HeardLeaves>> listeners;
  std::vector<std::unique_ptr<Listening>> listening;
  for (int i = 0; i < 8; ++i) {
    listeners.push_back(std::make_unique<HeardLeaves>());
    listening.push_back(std::make_unique<Listening>(*listeners.back()));
  }
  HeardLeaves ninth;
  EXPECT_REFUSED(const Listening refused(ninth), "eight listen already");
}

// Leaves of what no fallback runs: casts and their numbers, products of few rows, steps of optimizers. Bytes and flops
// are counted by hand.

// E4M3 ends at 448 (OCP) and 240 (Gaudi2), E5M2 at 57344: the first value beyond is cut to the largest code.
TEST(KernelLeaf, CastsTellTheirNumbers) {
  const auto x = torch::tensor({1.0F, -500.0F, 300.0F, 1e6F}).to(test::kHpu);
  const auto share = [&](kernels::Format format, kernels::Dialect dialect) {
    Numbers casts;
    {
      const Listening listening(casts);
      CastSpec spec;
      spec.format = format, spec.max = kernels::fp8_max(format, dialect);
      (void)quantize(x, spec);
    }
    EXPECT_EQ(casts.notes.at("amax"), 1e6);
    return casts.notes.at("saturated");
  };
  EXPECT_EQ(share(kernels::Format::E4M3, kernels::Dialect::ocp), 0.5);
  EXPECT_EQ(share(kernels::Format::E4M3, kernels::Dialect::gaudi2), 0.75);
  EXPECT_EQ(share(kernels::Format::E5M2, kernels::Dialect::ocp), 0.25);
}

// Of a cast to two formats each: of 1, -500, 300 and 1e6 two are beyond 448 and one beyond 57344.
TEST(KernelLeaf, CastsToTwoFormatsTellTheNumbersOfBoth) {
  const auto x = torch::tensor({1.0F, -500.0F, 300.0F, 1e6F}).to(test::kHpu);
  CastSpec wide, narrow;
  wide.format = kernels::Format::E5M2, narrow.format = kernels::Format::E4M3;
  const auto numbers = [](auto&& cast) {
    Numbers casts;
    test::within(Listening(casts), [&] { cast(); });
    EXPECT_EQ(casts.notes.at("amax"), 1e6);
    return std::vector{casts.notes.at("saturated"), casts.notes.at("saturated_2")};
  };
  EXPECT_THAT(numbers([&] { (void)quantize_both(x, wide, narrow); }), ElementsAre(0.25, 0.5));
  EXPECT_THAT(numbers([&] { (void)quantize_both(x, narrow, wide); }), ElementsAre(0.5, 0.25));
  EXPECT_THAT(numbers([&] { call("cast_to_fp8_hybrid", "", {x, test::kNone, test::kNone, false, false}); }),
              ElementsAre(0.25, 0.5));
}

// Codes are a byte, values four.
TEST(KernelLeaf, CastsAndProductsCountTheirOperands) {
  const auto a = torch::randn({6, 10}, on_hpu()), b = torch::randn({4, 10}, on_hpu());
  const auto& found = heard_of([&] {
    const Fp8Tensor x = quantize(a, {}), w = quantize(b, {});
    const at::Tensor y = matmul(x, false, w, true, at::kFloat);
    (void)dequantize(x, at::kFloat);
    (void)quantize_both(a, {}, {});
  });
  EXPECT_THAT(found.ops(), ElementsAre("fp8::quantize", "fp8::quantize", "hpu::fp8_gemm_v2", "fp8::dequantize",
                                       "fp8::quantize_both"));
  EXPECT_EQ(found.heard[0].bytes, 60 * (4 + 1));
  EXPECT_EQ(found.heard[1].bytes, 40 * (4 + 1));
  EXPECT_EQ(found.heard[2].bytes, 60 + 40 + 4 * 24);
  EXPECT_EQ(found.heard[2].flops, 2 * 6 * 10 * 4);
  EXPECT_EQ(found.heard[3].bytes, 60 * (1 + 4));
  EXPECT_EQ(found.heard[4].bytes, 60 * (4 + 1 + 1));
  found.expect_none_within_another();
}

// A token's product: its own kernel, one leaf, with the name of the product that it stands for.
TEST(KernelLeaf, ProductOfFewRows) {
  const auto bf16 = on_hpu().dtype(at::kBFloat16);
  const auto x = torch::ones({1, 1024}, bf16), w = torch::ones({1024, 1024}, bf16), bias = torch::ones({1024}, bf16);
  const auto& found = heard_of([&] {
    const c10::InferenceMode inference;
    (void)at::mm(x, w.t());
    (void)at::addmm(bias, x, w.t());
  });
  ASSERT_EQ(found.heard.size(), 2U);
  EXPECT_EQ(found.heard[0].op, "aten::mm");
  EXPECT_EQ(found.heard[0].bytes, 2 * (1024 + 1024 * 1024 + 1024));
  EXPECT_EQ(found.heard[1].op, "aten::mm") << "with its bias";
  EXPECT_EQ(found.heard[1].bytes, 2 * (1024 + 1024 * 1024 + 1024 + 1024));
  for (const auto& leaf : found.heard) EXPECT_EQ(leaf.flops, 2 * 1024 * 1024);
}

/// The leaves of one step over parameters of 12 and 5 elements, the buffers of which were made before.
template <class Optimizer, class Options>
test::HeardLeaves& step_of(Options options) {
  std::vector<at::Tensor> parameters = {torch::ones({3, 4}, on_hpu()), torch::ones(5, on_hpu())};
  for (auto& p : parameters) p.mutable_grad() = torch::ones_like(p);
  Optimizer optimizer(parameters, options);
  optimizer.step();
  return heard_of([&] {
    const PhaseScope phase("optimizer");
    optimizer.step();
  });
}

// One leaf for all parameters: weight, gradient and buffers read, all but the gradient written, f32.
TEST(KernelLeaf, StepsOfOptimizers) {
  const auto& adam = step_of<optim::FusedAdamW>(optim::FusedAdamWOptions());
  ASSERT_EQ(adam.heard.size(), 1U);
  EXPECT_EQ(adam.heard[0].bytes, 4 * 17 * (4 + 3));
  EXPECT_EQ(adam.heard[0].inputs, 2 * 4U);
  EXPECT_EQ(adam.heard[0].outputs, 2 * 3U);
  EXPECT_EQ(adam.heard[0].phase, "optimizer");
  const auto& momentum = step_of<optim::FusedSGD>(optim::FusedSGDOptions(0.1).momentum(0.9));
  ASSERT_EQ(momentum.heard.size(), 1U);
  EXPECT_EQ(momentum.heard[0].bytes, 4 * 17 * (3 + 2));
  const auto& plain = step_of<optim::FusedSGD>(optim::FusedSGDOptions(0.1));
  ASSERT_EQ(plain.heard.size(), 1U);
  EXPECT_EQ(plain.heard[0].bytes, 4 * 17 * (2 + 1));
  const auto& lamb = step_of<optim::FusedLamb>(optim::FusedLambOptions());
  for (const auto& leaf : lamb.heard) EXPECT_EQ(leaf.phase, "optimizer") << leaf.line;
  lamb.expect_none_within_another();
  std::int64_t most = 0;
  for (const auto& leaf : lamb.heard) most = std::max(most, leaf.bytes);
  EXPECT_EQ(most, 4 * 17 * (4 + 3)) << "the direction: weight, gradient and moments; moments and step";
}

// Additions and multiplications against the loops that the formulas stand for, and the bytes of what ops give.

/// The one leaf of f().
template <class F>
test::Heard leaf_of(F&& f) {
  const auto& found = heard_of(f);
  EXPECT_EQ(found.heard.size(), 1U);
  return found.heard.empty() ? test::Heard{} : found.heard.front();
}

// Batch 2, 3 heads, 4 queries, 6 keys, depth 8 of q and k, 10 of v.
constexpr std::int64_t kScores = 2 * 3 * 4 * 6, kD = 8, kE = 10;

struct Heads {
  at::Tensor q = torch::randn({2, 3, 4, kD}, on_hpu()), k = torch::randn({2, 3, 6, kD}, on_hpu()),
             v = torch::randn({2, 3, 6, kE}, on_hpu()), grad = torch::randn({2, 3, 4, kE}, on_hpu());
};

TEST(LeafFlops, AttentionOfTheDevice) {
  const Heads h;
  std::vector<at::Tensor> kept;
  const auto forward =
      leaf_of([&] { kept = call("sdpa_fwd", "", {h.q, h.k, h.v, kNone, 0.0, 0.5, false, "none", kNone, "left"}); });
  EXPECT_EQ(forward.op, "hpu::sdpa_fwd");
  EXPECT_EQ(forward.flops, 2 * kScores * (kD + kE));  // q k^T, P v
  const auto elements = h.q.numel() + h.k.numel() + h.v.numel();
  EXPECT_GE(forward.bytes, 4 * (elements + h.grad.numel() + kScores));  // and what stands for the absent
  const auto backward =
      leaf_of([&] { call("sdpa_bwd", "", {h.grad, h.q, h.k, h.v, kept[1], kNone, false, 0.0, 0.5, kept[0]}); });
  EXPECT_EQ(backward.flops, 2 * kScores * (kE + kE + kD + kD));  // dP, dv, dq, dk
  EXPECT_GE(backward.bytes, 4 * (2 * elements + h.grad.numel() + kScores));
}

TEST(LeafFlops, AttentionThatMakesItsScoresAgain) {
  const Heads h;
  std::vector<at::Tensor> kept;
  const auto forward = leaf_of([&] {
    kept = call("sdpa_recomp_fwd", "", {h.q, h.k, h.v, kNone, 0.0, 0.5, false, true, "none", kNone, "left"});
  });
  EXPECT_EQ(forward.flops, 2 * kScores * (kD + kE));
  const auto backward = leaf_of([&] {
    call("sdpa_recomp_bwd", "",
         {h.grad, h.q, h.k, h.v, kNone, kept[1], kept[2], kNone, false, 0.0, 0.5, "none", kept[0]});
  });
  EXPECT_EQ(backward.flops, 2 * kScores * (kD + kE + kE + kD + kD));  // q k^T once more
}

TEST(LeafFlops, AttentionOfATen) {
  const auto q = torch::randn({2, 3, 4, kD}, on_hpu()).requires_grad_(),
             k = torch::randn({2, 3, 6, kD}, on_hpu()).requires_grad_(),
             v = torch::randn({2, 3, 6, kD}, on_hpu()).requires_grad_();
  const auto& found = heard_of([&] { at::scaled_dot_product_attention(q, k, v).sum().backward(); });
  const auto backward = found.of("aten::_scaled_dot_product_flash_attention_for_cpu_backward");
  ASSERT_EQ(backward.size(), 1U);
  EXPECT_EQ(backward[0].flops, 2 * kScores * 5 * kD);
}

TEST(LeafFlops, ConvolutionsBackward) {
  const auto x = torch::randn({2, 3, 8, 8}, on_hpu()), w = torch::randn({5, 3, 3, 3}, on_hpu());
  constexpr std::int64_t kForward = std::int64_t{2} * (2 * 5 * 6 * 6) * (3 * 3 * 3);
  for (const bool both : {true, false}) {
    const auto weight = w.clone().requires_grad_(), input = x.clone().requires_grad_(both);
    const auto& found = heard_of([&] { at::conv2d(input, weight).sum().backward(); });
    const auto backward = found.of("aten::convolution_backward");
    ASSERT_EQ(backward.size(), 1U);
    EXPECT_EQ(backward[0].flops, (both ? 2 : 1) * kForward);
  }
}

// Each element of y = x r w: x^2 and its sum, x r, .. w. Backward: n = x r; dy w; its product with n and the sum; dy n
// and the sum; n times the mean, the difference, times r.
TEST(LeafFlops, RmsNorm) {
  const auto x = torch::randn({3, 7, 16}, on_hpu()), w = torch::randn(16, on_hpu()), dy = torch::randn_like(x);
  constexpr std::int64_t kElements = 3 * 7 * 16;
  std::vector<at::Tensor> kept;
  const auto forward = leaf_of([&] { kept = call("rms_norm", "", {x, w, 1e-6}); });
  EXPECT_EQ(forward.flops, 4 * kElements);
  EXPECT_EQ(forward.bytes, 4 * (2 * kElements + 16 + 21));
  const auto backward = leaf_of([&] { call("rms_norm_backward", "", {dy, x, w, kept[1], false, 0}); });
  EXPECT_EQ(backward.flops, 9 * kElements);
  EXPECT_EQ(backward.bytes, 4 * (3 * kElements + 16 + 16 + 21));
}

TEST(LeafFlops, Rotation) {
  const auto x = torch::randn({2, 3, 4, 8}, on_hpu()), table = torch::randn({4, 8}, on_hpu());
  const auto forward = leaf_of([&] { call("rotary_pos_embedding", "", {x, table, table, kNone, 0, 0}); });
  EXPECT_EQ(forward.flops, 3 * x.numel());  // x cos, turned(x) sin, their sum
  EXPECT_EQ(forward.bytes, 4 * (2 * x.numel() + 2 * table.numel()));
  const auto backward = leaf_of([&] { call("rotary_pos_embedding_backward", "", {x, table, table, kNone, 0, 0}); });
  EXPECT_EQ(backward.flops, forward.flops);
}

// Three tokens of H = 4 to two experts each, of F = 6; one expert is another rank's: five rows.
TEST(LeafFlops, ExpertsCountTheRowsThatTheyGet) {
  const auto x = torch::randn({3, 4}, on_hpu());
  const auto table = torch::tensor({0, 1, 1, 0, 1, 2}).reshape({3, 2}).to(test::kHpu);
  const auto router = torch::ones({3, 2}, on_hpu());
  const std::vector<at::Tensor> in(2, torch::randn({4, 6}, on_hpu())), out(2, torch::randn({6, 4}, on_hpu()));
  const auto leaf =
      leaf_of([&] { call("mixture_of_experts", "", {x, table, router, in, in, out, false, "silu", 0, 1}); });
  EXPECT_EQ(leaf.op, "hpu::mixture_of_experts");
  EXPECT_EQ(leaf.flops, 5 * 3 * (2 * 4 * 6));  // gate, up and down of each row
  EXPECT_EQ(leaf.bytes, 4 * (2 * 12 + 6 + 6 * 24) + 8 * 6);
}

}  // namespace
}  // namespace fp8::runtime
