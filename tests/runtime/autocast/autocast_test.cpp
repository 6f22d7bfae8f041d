// SPDX-License-Identifier: Apache-2.0
// Regions: what is on, in which dtype, how they nest and end, and that upstream's own calls mean the same.
#include "fp8/runtime/autocast/autocast.h"

#include <ATen/autocast_mode.h>

#include "fp8/runtime/autocast/lists.h"
#include "support/hpu_test.h"
#include "support/scoped_variable.h"
#include "support/temp_dir.h"
#include "support/typed_models.h"

namespace fp8::test {
namespace {

namespace autocast = runtime::autocast;
using autocast::AutocastGuard;
using runtime::autocast::AutocastLists;
using runtime::autocast::parse_op_names;
using Forward = std::function<at::Tensor()>;

at::ScalarType dtype_of_mm() {
  const at::Tensor a = at::ones({2, 2}, on_hpu());
  return at::mm(a, a).scalar_type();
}

TEST(Region, OffUnlessAskedFor) {
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::region_dtype(), std::nullopt);
  EXPECT_EQ(dtype_of_mm(), at::kFloat);
}

TEST(Region, Bfloat16UnlessSaidOtherwise) {
  const AutocastGuard region;
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  EXPECT_EQ(autocast::region_dtype(), at::kBFloat16);
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

/// Each pair of outer and inner regions; after the inner one the outer counts again, after that none.
TEST(Region, NestingMatrix) {
  struct State {
    at::ScalarType dtype;
    bool enabled;
    at::ScalarType product() const { return enabled ? dtype : at::kFloat; }
  };
  const std::vector<State> states = {
      {at::kBFloat16, true}, {at::kHalf, true}, {at::kBFloat16, false}, {at::kHalf, false}};
  for (const State& outer : states) {
    for (const State& inner : states) {
      const AutocastGuard first(outer.dtype, outer.enabled);
      EXPECT_EQ(dtype_of_mm(), outer.product());
      {
        const AutocastGuard second(inner.dtype, inner.enabled);
        EXPECT_EQ(dtype_of_mm(), inner.product());
        EXPECT_EQ(autocast::region_dtype().has_value(), inner.enabled);
      }
      EXPECT_EQ(dtype_of_mm(), outer.product());
    }
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
  }
}

TEST(Region, EndsWithAnException) {
  const auto thrower = [] {
    const AutocastGuard region(at::kHalf);
    throw std::runtime_error("inside");
  };
  EXPECT_EQ(error_of(thrower), "inside");
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  const AutocastGuard outer;
  EXPECT_REFUSED(at::mm(at::ones({2, 3}, on_hpu()), at::ones({2, 3}, on_hpu())), "mat1 and mat2 shapes");
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

TEST(Region, OtherDtypesAreRefusedAndChangeNothing) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kInt}) {
    EXPECT_REFUSED(AutocastGuard region(dtype), "autocast on hpu", "allowed: BFloat16, Half");
    EXPECT_REFUSED(autocast::set_autocast_hpu_dtype(dtype), "allowed: BFloat16, Half");
    EXPECT_EQ(error_of([&] { AutocastGuard hole(dtype, false); }), "");
  }
  EXPECT_EQ(autocast::autocast_hpu_dtype(), at::kBFloat16);
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
}

TEST(Region, UpstreamsCallsAndOursAreOneState) {
  at::autocast::set_autocast_enabled(at::kHPU, true);
  at::autocast::set_autocast_dtype(at::kHPU, at::kHalf);
  EXPECT_TRUE(autocast::is_autocast_hpu_enabled());
  EXPECT_EQ(autocast::region_dtype(), at::kHalf);
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
  {
    const AutocastGuard region;
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kHPU), at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kHPU, false);
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
  at::autocast::set_autocast_enabled(at::kHPU, false);
  autocast::set_autocast_hpu_dtype(at::kBFloat16);
  EXPECT_EQ(dtype_of_mm(), at::kFloat);
}

TEST(Region, DecoratedFunctions) {
  auto product =
      autocast::autocast_fn([](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); }, at::kHalf);
  const at::Tensor a = at::ones({2, 2}, on_hpu());
  EXPECT_EQ(product(a, a).scalar_type(), at::kHalf);
  EXPECT_EQ(product(a, a).scalar_type(), at::kHalf);
  EXPECT_FALSE(autocast::is_autocast_hpu_enabled());
  const AutocastGuard region;
  auto exact = autocast::autocast_fn([&](const at::Tensor& x) { return at::mm(x, x); }, at::kBFloat16, false);
  EXPECT_EQ(exact(a).scalar_type(), at::kFloat);
}

TEST(Region, IsOfItsThread) {
  const AutocastGuard region;
  at::ScalarType other = at::kDouble, half = at::kDouble;
  std::thread([&] {
    other = dtype_of_mm();
    const AutocastGuard inside(at::kHalf);
    half = dtype_of_mm();
  }).join();
  EXPECT_EQ(other, at::kFloat);
  EXPECT_EQ(half, at::kHalf);
  EXPECT_EQ(dtype_of_mm(), at::kBFloat16);
}

TEST(InsideOp, TurnsCastsOffAndKeepsTheRegionReadable) {
  EXPECT_EQ(autocast::region_dtype(), std::nullopt);
  const AutocastGuard region(at::kHalf);
  {
    const autocast::InsideOp inside;
    EXPECT_EQ(dtype_of_mm(), at::kFloat);
    EXPECT_EQ(autocast::region_dtype(), at::kHalf);
    within(AutocastGuard(at::kBFloat16, false), [&] { EXPECT_EQ(autocast::region_dtype(), std::nullopt); });
    EXPECT_EQ(autocast::region_dtype(), at::kHalf);
    const autocast::OutsideOp outside(inside.was_enabled());
    EXPECT_EQ(dtype_of_mm(), at::kHalf);
  }
  EXPECT_EQ(dtype_of_mm(), at::kHalf);
}

// Files of op names: what is passed over, what replaces what, and what a bad file does.

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(OpNames, OnePerLineWhateverStandsAround) {
  EXPECT_THAT(parse_op_names("mm\nadd"), ElementsAre("mm", "add"));
  EXPECT_THAT(parse_op_names("\xEF\xBB\xBFmm\r\n\r\n  add \t\r\n# a comment\n\tconv2d # the stem\n\n"),
              ElementsAre("mm", "add", "conv2d"));
  EXPECT_THAT(parse_op_names("mm\nmm\nadd\nmm"), ElementsAre("mm", "add"));
  EXPECT_THAT(parse_op_names(""), ElementsAre());
  EXPECT_THAT(parse_op_names("\n#\n \r\n"), ElementsAre());
}

/// The vendor's tables, in its documents' order.
constexpr const char* kVendorsLower =
    "addmm addbmm batch_norm baddbmm bmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d dot "
    "dropout "
    "feature_dropout group_norm instance_norm layer_norm leaky_relu linear matmul mean mm mul mv softmax log_softmax "
    "scaled_dot_product_attention";
constexpr const char* kVendorsFp32 =
    "acos addcdiv asin atan2 bilinear binary_cross_entropy binary_cross_entropy_with_logits cdist cosh "
    "cosine_embedding_loss "
    "cosine_similarity cross_entropy_loss dist div divide embedding embedding_bag erfinv exp expm1 "
    "hinge_embedding_loss "
    "huber_loss kl_div l1_loss log log10 log1p log2 logsumexp margin_ranking_loss mse_loss multi_margin_loss "
    "multilabel_margin_loss nll_loss pdist poisson_nll_loss pow reciprocal renorm rsqrt sinh smooth_l1_loss "
    "soft_margin_loss "
    "softplus tan topk triplet_margin_loss truediv true_divide";
constexpr const char* kVendorsPromote = "add addcmul addcdiv cat div exp mul pow sub iadd truediv stack";

using Lists = InFolder;

TEST_F(Lists, DefaultsAreTheVendors) {
  const auto words = [](const char* text) {
    std::istringstream in(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
  };
  ASSERT_EQ(words(kVendorsLower).size(), 27u);
  ASSERT_EQ(words(kVendorsFp32).size(), 49u);
  const auto lists = AutocastLists::defaults();
  EXPECT_THAT(lists.lower, ::testing::UnorderedElementsAreArray(words(kVendorsLower)));
  EXPECT_THAT(lists.fp32, ::testing::UnorderedElementsAreArray(words(kVendorsFp32)));
  EXPECT_THAT(lists.promote, ::testing::UnorderedElementsAreArray(words(kVendorsPromote)));
}

TEST_F(Lists, AFileReplacesItsListOnly) {
  write(folder / "lower", "add\nmm\n");
  std::vector<std::string> warnings;
  const auto lists = AutocastLists::load((folder / "lower").string(), "", warnings);
  EXPECT_THAT(warnings, ElementsAre());
  EXPECT_THAT(lists.lower, ElementsAre("add", "mm"));
  EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32);
  EXPECT_EQ(lists.promote, AutocastLists::defaults().promote);
  EXPECT_EQ(lists.lower_from, (folder / "lower").string());
  EXPECT_EQ(lists.fp32_from, "default");
}

TEST_F(Lists, AnEmptyFileIsAnEmptyList) {
  write(folder / "fp32", "# none\n");
  std::vector<std::string> warnings;
  EXPECT_THAT(AutocastLists::load("", (folder / "fp32").string(), warnings).fp32, ElementsAre());
  EXPECT_THAT(warnings, ElementsAre());
}

TEST_F(Lists, WhatCannotBeReadIsOneWarningAndTheDefaults) {
  write(folder / "long", std::string((1 << 20) + 1, 'a'));
  for (const std::string& file :
       std::vector<std::string>{(folder / "none").string(), folder.path().string(), (folder / "long").string()}) {
    std::vector<std::string> warnings;
    const auto lists = AutocastLists::load(file, file, warnings);
    EXPECT_EQ(lists.lower, AutocastLists::defaults().lower);
    EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32);
    EXPECT_EQ(lists.lower_from, "default");
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_THAT(warnings[0], AllOf(HasSubstr(file), HasSubstr("default list")));
    EXPECT_EQ(warnings[0].find('\n'), std::string::npos);
  }
}

TEST_F(Lists, TheLongVariablesWinOverTheShortOnes) {
  write(folder / "short", "mm\n");
  write(folder / "long", "bmm\n");
  std::vector<std::string> warnings;
  EXPECT_EQ(AutocastLists::from_environment(warnings).lower, AutocastLists::defaults().lower);
  const ScopedVariable lower("LOWER_LIST", (folder / "short").string()), fp32("FP32_LIST", (folder / "short").string());
  {
    const auto lists = AutocastLists::from_environment(warnings);
    EXPECT_THAT(lists.lower, ElementsAre("mm"));
    EXPECT_THAT(lists.fp32, ElementsAre("mm"));
    EXPECT_EQ(lists.lower_from, "LOWER_LIST (" + (folder / "short").string() + ")");
  }
  const ScopedVariable long_lower("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", (folder / "long").string());
  const ScopedVariable long_fp32("PT_HPU_AUTOCAST_FP32_OPS_LIST", (folder / "none").string());
  const auto lists = AutocastLists::from_environment(warnings);
  EXPECT_THAT(lists.lower, ElementsAre("bmm"));
  EXPECT_EQ(lists.fp32, AutocastLists::defaults().fp32)
      << "an unreadable file does not hand over to the other variable";
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("PT_HPU_AUTOCAST_FP32_OPS_LIST: ")));
  const ScopedVariable empty("PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST", "");
  EXPECT_THAT(AutocastLists::from_environment(warnings).lower, ElementsAre("mm"));
}

TEST_F(Lists, PrintableNames) {
  EXPECT_EQ(runtime::autocast::printable("add\x1b[31m\xff"), "add?[31m?");
  EXPECT_EQ(runtime::autocast::printable(std::string(1000, 'a')).size(), 64u);
}

// Training in a region: f32 parameters and gradients, products in bf16, losses near those of f32. Models as users write
// them.

/// Losses of three AdamW steps; forward and loss in a region or not, backward outside of it.
std::vector<double> losses_of(torch::nn::Module& model, const Forward& loss_of, bool cast) {
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = within(AutocastGuard(at::kBFloat16, cast), [&] { return loss_of(); });
    loss.backward();
    for (const auto& p : model.named_parameters()) {
      EXPECT_EQ(p.value().scalar_type(), at::kFloat) << p.key();
      EXPECT_TRUE(!p.value().grad().defined() || p.value().grad().scalar_type() == at::kFloat) << p.key();
    }
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// bf16 keeps 8 bits: the losses are near f32's and not equal to them; they fall.
void expect_near(const std::vector<double>& cast, const std::vector<double>& exact) {
  ASSERT_EQ(cast.size(), exact.size());
  for (std::size_t i = 0; i < cast.size(); ++i) {
    EXPECT_NEAR(cast[i], exact[i], 0.02 * std::abs(exact[i])) << "step " << i;
    EXPECT_NE(cast[i], exact[i]) << "step " << i;
  }
  EXPECT_LT(cast.back(), cast.front());
}

TEST(Training, TwoLayerNet) {
  const auto run = [](bool cast) {
    torch::manual_seed(1);
    torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
    net->to(kHpu);
    const at::Tensor x = at::randn({32, 8}, on_hpu()), y = at::randn({32, 4}, on_hpu());
    return losses_of(
        *net,
        [&] {
          const at::Tensor out = net->forward(x);
          EXPECT_EQ(out.scalar_type(), cast ? at::kBFloat16 : at::kFloat);
          const at::Tensor loss = at::mse_loss(out, y);
          EXPECT_EQ(loss.scalar_type(), at::kFloat);
          return loss;
        },
        cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, GradientsAreThoseOfTheCastProducts) {
  const at::Tensor x = at::randn({3, 4}, on_hpu()), w = at::randn({5, 4}, on_hpu());
  at::Tensor leaf = w.clone().requires_grad_(true), by_hand = w.clone().requires_grad_(true);
  at::Tensor y = within(AutocastGuard(), [&] { return at::linear(x, leaf); });
  y.sum().backward();
  at::linear(x.to(at::kBFloat16), by_hand.to(at::kBFloat16)).sum().backward();
  EXPECT_TRUE(same_bits(leaf.grad(), by_hand.grad()));
}

TEST(Training, BertEncoder) {
  for (const bool fused : {true, false}) {
    const auto run = [&](bool cast) {
      torch::manual_seed(2);
      Bert model(fused);
      model->to(kHpu);
      const at::Tensor ids = hpu(at::randint(97, {4, 16}, at::kLong));
      const at::Tensor target = at::randn({4, 16, 48}, on_hpu());
      return losses_of(*model, [&] { return at::mse_loss(model(ids), target); }, cast);
    };
    expect_near(run(true), run(false));
  }
}

TEST(Training, ResidualNetwork) {
  const auto run = [](bool cast) {
    torch::manual_seed(3);
    ResNet model;
    model->to(kHpu);
    const at::Tensor x = at::randn({8, 3, 12, 12}, on_hpu());
    const at::Tensor classes = hpu(at::randint(10, {8}, at::kLong));
    return losses_of(*model, [&] { return at::cross_entropy_loss(model(x), classes); }, cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, RecurrentNetwork) {
  const auto run = [](bool cast) {
    torch::manual_seed(4);
    torch::nn::LSTM lstm = hpu(torch::nn::LSTM(torch::nn::LSTMOptions(8, 16).num_layers(2).batch_first(true)));
    const at::Tensor x = at::randn({4, 6, 8}, on_hpu()), y = at::randn({4, 6, 16}, on_hpu());
    return losses_of(*lstm, [&] { return at::mse_loss(std::get<0>(lstm(x)), y); }, cast);
  };
  expect_near(run(true), run(false));
}

TEST(Training, AttentionRunsInTheRegionsType) {
  at::Tensor q = at::randn({1, 2, 4, 8}, on_hpu()).requires_grad_(true);
  const AutocastGuard region;
  const at::Tensor y = at::scaled_dot_product_attention(q, q, q, {}, 0.0, true);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(q.grad().scalar_type(), at::kFloat);
}

TEST(Training, TwoThreadsWithRegionsOfTheirOwn) {
  const auto run = [](at::ScalarType dtype, bool cast, at::ScalarType expected) {
    const at::Tensor x = at::randn({8, 8}, on_hpu());
    int wrong = 0;
    for (int i = 0; i < 200; ++i) {
      at::Tensor w = x.clone().requires_grad_(true), y;
      within(AutocastGuard(dtype, cast), [&] { y = at::softmax(at::linear(x, w), -1); });
      y.sum().backward();
      wrong += y.scalar_type() != expected || w.grad().scalar_type() != at::kFloat;
    }
    return wrong;
  };
  int other = -1;
  std::thread thread([&] { other = run(at::kHalf, true, at::kHalf); });
  EXPECT_EQ(run(at::kBFloat16, true, at::kBFloat16), 0);
  EXPECT_EQ(run(at::kBFloat16, false, at::kFloat), 0);
  thread.join();
  EXPECT_EQ(other, 0);
}

}  // namespace
}  // namespace fp8::test
