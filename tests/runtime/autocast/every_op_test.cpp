// SPDX-License-Identifier: Apache-2.0
// Every name of the default lower and float32 lists, called in a region with arguments of each castable dtype: value
// and gradients have the bits of the same call outside of one with its arguments cast by hand, and gradients the
// leaves' dtypes.

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/autocast/lists.h"
#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using runtime::autocast::AutocastGuard;
using runtime::autocast::AutocastLists;
using Tensors = std::vector<at::Tensor>;
using V = const Tensors&;
using Sizes = std::vector<std::vector<std::int64_t>>;
constexpr std::size_t kAll = 99;

struct Case {
  const char* name;  ///< the list's, then what is special
  Sizes sizes;
  std::function<at::Tensor(V)> op;
  std::size_t cast = kAll;  ///< so many arguments, from the front
  std::size_t leaves = kAll;
  std::string listed() const { return std::string(name).substr(0, std::string(name).find(' ')); }
};

const Sizes kOne = {{3, 4}}, kTwo = {{3, 4}, {3, 4}}, kThree = {{3, 4}, {3, 4}, {3, 4}};

at::Tensor classes() { return hpu(at::tensor({1, 0, 3}, at::kLong)); }

std::vector<Case> products() {
  return {
      {"mm", {{3, 4}, {4, 5}}, [](V a) { return at::mm(a[0], a[1]); }},
      {"addmm", {{5}, {3, 4}, {4, 5}}, [](V a) { return at::addmm(a[0], a[1], a[2]); }},
      {"addmm 2-D", {{3, 5}, {3, 4}, {4, 5}}, [](V a) { return at::addmm(a[0], a[1], a[2], 0.5, 2); }},
      {"matmul", {{2, 3, 4}, {4, 5}}, [](V a) { return at::matmul(a[0], a[1]); }},
      {"linear", {{2, 3, 4}, {5, 4}, {5}}, [](V a) { return at::linear(a[0], a[1], a[2]); }},
      {"bmm", {{2, 3, 4}, {2, 4, 5}}, [](V a) { return at::bmm(a[0], a[1]); }},
      {"baddbmm", {{2, 3, 5}, {2, 3, 4}, {2, 4, 5}}, [](V a) { return at::baddbmm(a[0], a[1], a[2]); }},
      {"addbmm", {{3, 5}, {2, 3, 4}, {2, 4, 5}}, [](V a) { return at::addbmm(a[0], a[1], a[2]); }},
      {"mv", {{3, 4}, {4}}, [](V a) { return at::mv(a[0], a[1]); }},
      {"dot", {{4}, {4}}, [](V a) { return at::dot(a[0], a[1]); }},
      {"conv1d", {{2, 3, 9}, {4, 3, 3}, {4}}, [](V a) { return at::conv1d(a[0], a[1], a[2]); }},
      {"conv2d", {{2, 3, 9, 8}, {4, 3, 3, 3}, {4}}, [](V a) { return at::conv2d(a[0], a[1], a[2]); }},
      {"conv2d without bias", {{2, 3, 9, 8}, {4, 3, 3, 3}}, [](V a) { return at::conv2d(a[0], a[1]); }},
      {"conv2d padded by word",
       {{2, 3, 9, 8}, {4, 3, 3, 3}},
       [](V a) { return at::conv2d(a[0], a[1], {}, 1, "same"); }},
      {"conv3d", {{1, 2, 4, 4, 4}, {3, 2, 2, 2, 2}, {3}}, [](V a) { return at::conv3d(a[0], a[1], a[2]); }},
      {"conv_transpose1d", {{2, 3, 9}, {3, 4, 3}, {4}}, [](V a) { return at::conv_transpose1d(a[0], a[1], a[2]); }},
      {"conv_transpose2d", {{2, 3, 5, 5}, {3, 4, 3, 3}}, [](V a) { return at::conv_transpose2d(a[0], a[1]); }},
      {"conv_transpose3d",
       {{1, 2, 4, 4, 4}, {2, 3, 2, 2, 2}, {3}},
       [](V a) { return at::conv_transpose3d(a[0], a[1], a[2]); }},
      {"scaled_dot_product_attention",
       {{1, 2, 4, 8}, {1, 2, 6, 8}, {1, 2, 6, 8}},
       [](V a) { return at::scaled_dot_product_attention(a[0], a[1], a[2]); }},
      {"scaled_dot_product_attention masked",
       {{1, 2, 4, 8}, {1, 2, 6, 8}, {1, 2, 6, 8}, {4, 6}},
       [](V a) { return at::scaled_dot_product_attention(a[0], a[1], a[2], a[3]); },
       kAll,
       3},
  };
}

std::vector<Case> other_lower_ops() {
  return {
      {"mul", kTwo, [](V a) { return at::mul(a[0], a[1]); }},
      {"mul by a number", kOne, [](V a) { return at::mul(a[0], 1.5); }},
      {"mean", kOne, [](V a) { return at::mean(a[0]); }},
      {"mean of a dimension", kOne, [](V a) { return at::mean(a[0], at::IntArrayRef{1}); }},
      {"softmax", kOne, [](V a) { return at::softmax(a[0], -1); }},
      {"log_softmax", kOne, [](V a) { return at::log_softmax(a[0], -1); }},
      {"leaky_relu", kOne, [](V a) { return at::leaky_relu(a[0]); }},
      {"dropout", kOne, [](V a) { return at::dropout(a[0], 0.5, true); }},
      {"feature_dropout", {{3, 4, 5}}, [](V a) { return at::feature_dropout(a[0], 0.5, true); }},
      {"layer_norm", {{4, 6, 5}, {5}, {5}}, [](V a) { return at::layer_norm(a[0], {5}, a[1], a[2]); }, 1},
      {"group_norm", {{4, 6, 5}, {6}, {6}}, [](V a) { return at::group_norm(a[0], 2, a[1], a[2]); }, 1},
      {"instance_norm",
       {{4, 6, 5}, {6}, {6}},
       [](V a) { return at::instance_norm(a[0], a[1], a[2], {}, {}, true, 0.1, 1e-5, false); },
       1},
      {"batch_norm",
       {{4, 6, 5}, {6}, {6}},
       [](V a) { return at::batch_norm(a[0], a[1], a[2], {}, {}, true, 0.1, 1e-5, false); },
       1},
      {"batch_norm evaluated",
       {{4, 6, 5}, {6}, {6}, {6}, {6}},
       [](V a) { return at::batch_norm(a[0], a[1], a[2], a[3], a[4], false, 0.1, 1e-5, false); },
       1,
       3},
  };
}

std::vector<Case> float32_losses() {
  const auto sign = [] { return hpu(at::tensor({1, -1, 1}, at::kLong)); };
  return {
      {"binary_cross_entropy", kTwo, [](V a) { return at::binary_cross_entropy(a[0], a[1]); }, kAll, 1},
      {"binary_cross_entropy_with_logits", kTwo, [](V a) { return at::binary_cross_entropy_with_logits(a[0], a[1]); }},
      {"cosine_embedding_loss", kTwo, [sign](V a) { return at::cosine_embedding_loss(a[0], a[1], sign()); }},
      {"cosine_similarity", kTwo, [](V a) { return at::cosine_similarity(a[0], a[1]); }},
      {"cross_entropy_loss", kOne, [](V a) { return at::cross_entropy_loss(a[0], classes()); }},
      {"hinge_embedding_loss", kOne,
       [](V a) { return at::hinge_embedding_loss(a[0], hpu(at::tensor({1, -1, 1, 1}, at::kLong))); }},
      {"huber_loss", kTwo, [](V a) { return at::huber_loss(a[0], a[1]); }},
      {"kl_div", kTwo, [](V a) { return at::kl_div(a[0], a[1]); }},
      {"l1_loss", kTwo, [](V a) { return at::l1_loss(a[0], a[1]); }},
      {"margin_ranking_loss", {{3}, {3}}, [sign](V a) { return at::margin_ranking_loss(a[0], a[1], sign()); }},
      {"mse_loss", kTwo, [](V a) { return at::mse_loss(a[0], a[1]); }},
      {"multi_margin_loss", kOne, [](V a) { return at::multi_margin_loss(a[0], classes()); }},
      {"multilabel_margin_loss",
       {{4}},
       [](V a) { return at::multilabel_margin_loss(a[0], hpu(at::tensor({1, 0, -1, 0}, at::kLong))); }},
      {"nll_loss", kOne, [](V a) { return at::nll_loss(a[0], classes()); }},
      {"poisson_nll_loss", kTwo,
       [](V a) { return at::poisson_nll_loss(a[0], a[1], true, false, 1e-8, at::Reduction::Mean); }},
      {"smooth_l1_loss", kTwo, [](V a) { return at::smooth_l1_loss(a[0], a[1]); }},
      {"soft_margin_loss", kTwo, [](V a) { return at::soft_margin_loss(a[0], a[1]); }, kAll, 1},
      {"triplet_margin_loss", kThree, [](V a) { return at::triplet_margin_loss(a[0], a[1], a[2]); }},
  };
}

std::vector<Case> float32_functions() {
  return {
      {"acos", kOne, [](V a) { return at::acos(a[0]); }},
      {"addcdiv", kThree, [](V a) { return at::addcdiv(a[0], a[1], a[2]); }},
      {"asin", kOne, [](V a) { return at::asin(a[0]); }},
      {"atan2", kTwo, [](V a) { return at::atan2(a[0], a[1]); }},
      {"bilinear", {{3, 4}, {3, 5}, {6, 4, 5}, {6}}, [](V a) { return at::bilinear(a[0], a[1], a[2], a[3]); }},
      {"cdist", {{3, 4}, {5, 4}}, [](V a) { return at::cdist(a[0], a[1]); }},
      {"cosh", kOne, [](V a) { return at::cosh(a[0]); }},
      {"dist", kTwo, [](V a) { return at::dist(a[0], a[1]); }},
      {"div", kTwo, [](V a) { return at::div(a[0], a[1]); }},
      {"div by a number", kOne, [](V a) { return at::div(a[0], 3.0); }},
      {"div rounded", kTwo, [](V a) { return at::div(a[0], a[1], "floor"); }},
      {"divide", kTwo, [](V a) { return at::divide(a[0], a[1]); }},
      {"embedding", {{7, 4}}, [](V a) { return at::embedding(a[0], classes()); }},
      {"embedding_bag",
       {{7, 4}},
       [](V a) { return std::get<0>(at::embedding_bag(a[0], classes(), hpu(at::tensor({0, 2}, at::kLong)))); }},
      {"erfinv", kOne, [](V a) { return at::erfinv(a[0]); }},
      {"exp", kOne, [](V a) { return at::exp(a[0]); }},
      {"expm1", kOne, [](V a) { return at::expm1(a[0]); }},
      {"log", kOne, [](V a) { return at::log(a[0]); }},
      {"log10", kOne, [](V a) { return at::log10(a[0]); }},
      {"log1p", kOne, [](V a) { return at::log1p(a[0]); }},
      {"log2", kOne, [](V a) { return at::log2(a[0]); }},
      {"logsumexp", kOne, [](V a) { return at::logsumexp(a[0], {1}); }},
      {"pdist", kOne, [](V a) { return at::pdist(a[0]); }},
      {"pow", kOne, [](V a) { return at::pow(a[0], 3); }},
      {"pow of tensors", kTwo, [](V a) { return at::pow(a[0], a[1]); }},
      {"pow of a number", kOne, [](V a) { return at::pow(1.5, a[0]); }},
      {"reciprocal", kOne, [](V a) { return at::reciprocal(a[0]); }},
      {"renorm", kOne, [](V a) { return at::renorm(a[0], 2, 0, 0.5); }},
      {"rsqrt", kOne, [](V a) { return at::rsqrt(a[0]); }},
      {"sinh", kOne, [](V a) { return at::sinh(a[0]); }},
      {"softplus", kOne, [](V a) { return at::softplus(a[0]); }},
      {"tan", kOne, [](V a) { return at::tan(a[0]); }},
      {"topk", kOne, [](V a) { return std::get<0>(at::topk(a[0], 2)); }},
      {"true_divide", kTwo, [](V a) { return at::true_divide(a[0], a[1]); }},
      {"truediv", kTwo, [](V a) { return a[0] / a[1]; }},  // Python's operator; here it is div
  };
}

std::vector<Case> joined(std::vector<Case> a, const std::vector<Case>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Leaves: between 0.05 and 0.95 where the functions want that, normal otherwise.
Tensors arguments_of(const Case& c, at::ScalarType dtype, bool unit) {
  torch::manual_seed(3);
  Tensors result;
  for (const auto& sizes : c.sizes) {
    const bool positive = unit || result.size() == 4;  // a running variance
    const at::Tensor t = positive ? at::rand(sizes) * 0.9 + 0.05 : at::randn(sizes);
    result.push_back(t.to(dtype).to(kHpu));
    result.back().requires_grad_(result.size() <= c.leaves);
  }
  return result;
}

/// `rest`: what the arguments behind the cast ones are by hand.
void expect_cast(const Case& c, at::ScalarType region, at::ScalarType dtype, at::ScalarType to, at::ScalarType rest,
                 bool unit) {
  const std::string what = std::string(c.name) + " of " + toString(dtype) + " in " + toString(region);
  const Tensors in = arguments_of(c, dtype, unit), by_hand = arguments_of(c, dtype, unit);
  Tensors cast;
  for (std::size_t i = 0; i < by_hand.size(); ++i) cast.push_back(by_hand[i].to(i < c.cast ? to : rest));
  torch::manual_seed(9);  // dropout's
  const at::Tensor expected = c.op(cast);
  torch::manual_seed(9);
  at::Tensor y = within(AutocastGuard(region), [&] { return c.op(in); });
  EXPECT_EQ(y.scalar_type(), to) << what;
  EXPECT_TRUE(same_bits(y, expected)) << what;
  {
    const c10::InferenceMode inference;
    const AutocastGuard guard(region);
    torch::manual_seed(9);
    EXPECT_TRUE(same_bits(c.op(in), expected)) << what << ", inference";
  }
  y.to(at::kFloat).pow(2).sum().backward();
  expected.to(at::kFloat).pow(2).sum().backward();
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(in[i].grad().defined(), by_hand[i].grad().defined()) << what;
    if (!in[i].grad().defined()) continue;
    EXPECT_EQ(in[i].grad().scalar_type(), dtype) << what;
    EXPECT_TRUE(same_bits(in[i].grad(), by_hand[i].grad())) << what << ", gradient " << i;
  }
}

void expect_covers(const std::vector<Case>& cases, const std::vector<std::string>& names) {
  std::set<std::string> covered;
  for (const Case& c : cases) covered.insert(c.listed());
  EXPECT_EQ(covered, std::set<std::string>(names.begin(), names.end()));
}

TEST(EveryLowerOp, HasArgumentsOfTheRegionsTypeAndLeavesTheirGradients) {
  const auto cases = joined(products(), other_lower_ops());
  expect_covers(cases, AutocastLists::defaults().lower);
  for (const auto region : {at::kBFloat16, at::kHalf})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      // Beside a first argument in one 16-bit dtype, the others in the other one become float32.
      const at::ScalarType rest = dtype == region ? dtype : at::kFloat;
      for (const Case& c : cases) expect_cast(c, region, dtype, region, rest, false);
    }
}

TEST(EveryFloat32Op, HasFloat32ArgumentsAndLeavesTheirGradients) {
  const auto cases = joined(float32_losses(), float32_functions());
  expect_covers(cases, AutocastLists::defaults().fp32);
  for (const auto region : {at::kBFloat16, at::kHalf})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (const Case& c : cases) expect_cast(c, region, dtype, at::kFloat, at::kFloat, true);
}

TEST(Normalizations, KeepTheRunningStatisticsTheyUpdate) {
  const at::Tensor x = hpu(at::randn({4, 6, 5})), w = hpu(at::ones({6})).to(at::kHalf);
  at::Tensor mean = at::zeros({6}, on_hpu()), variance = at::ones({6}, on_hpu());
  const AutocastGuard region;
  EXPECT_EQ(at::batch_norm(x, w, w, mean, variance, true, 0.5, 1e-5, false).scalar_type(), at::kBFloat16);
  const at::Tensor expected = x.cpu().to(at::kBFloat16).to(at::kDouble).mean(at::IntArrayRef{0, 2}) * 0.5;
  EXPECT_TRUE(at::allclose(mean.cpu().to(at::kDouble), expected, 1e-4, 1e-5));
}

/// In-place and out= forms, and what is no float16, bfloat16 or float32, of ops of both lists: as without a region.
TEST(EveryForm, ThatWritesIsLeftAlone) {
  const at::Tensor a = hpu(at::rand({3, 3}) + 0.5), b = hpu(at::rand({3, 3}) + 0.5);
  at::Tensor out;
  using F = std::function<at::Tensor()>;
  const std::vector<std::pair<const char*, F>> forms = {
      {"mul_", [&] { return a.clone().mul_(b); }},
      {"div_", [&] { return a.clone().div_(b); }},
      {"pow_", [&] { return a.clone().pow_(2); }},
      {"exp_", [&] { return a.clone().exp_(); }},
      {"addmm_", [&] { return a.clone().addmm_(a, b); }},
      {"baddbmm_", [&] { return a.clone().unsqueeze(0).baddbmm_(a.unsqueeze(0), b.unsqueeze(0)); }},
      {"leaky_relu_", [&] { return at::leaky_relu_(out = a.clone()); }},
      {"addcmul_", [&] { return a.clone().addcmul_(a, b); }},
      {"add_", [&] { return a.clone().add_(b.to(at::kBFloat16)); }},
      {"mm_out", [&] { return at::mm_out(out = at::empty({3, 3}, on_hpu()), a, b); }},
      {"matmul_out", [&] { return at::matmul_out(out = at::empty({3, 3}, on_hpu()), a, b); }},
      {"mean_out", [&] { return at::mean_out(out = at::empty({3}, on_hpu()), a, at::IntArrayRef{1}); }},
      {"exp_out", [&] { return at::exp_out(out = at::empty({3, 3}, on_hpu()), a); }},
      {"cat_out", [&] { return at::cat_out(out = at::empty({6, 3}, on_hpu()), {a, b}); }},
      {"f64 mm", [&] { return at::mm(a.to(at::kDouble), b.to(at::kDouble)); }},
      {"f64 div", [&] { return at::div(a.to(at::kDouble), b.to(at::kDouble)); }},
      {"f64 layer_norm", [&] { return at::layer_norm(a.to(at::kDouble), {3}); }},
      {"int mul", [&] { return at::mul(a.to(at::kInt), b.to(at::kInt)); }},
      {"bool sum", [&] { return at::cat({a > 1, b > 1}); }},
  };
  for (const auto& [name, form] : forms) {
    const at::Tensor expected = form();
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const AutocastGuard region(dtype);
      EXPECT_TRUE(same_bits(form(), expected)) << name;
    }
  }
}

}  // namespace
}  // namespace fp8::test
