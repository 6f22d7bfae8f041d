// SPDX-License-Identifier: Apache-2.0
// Stacked experts [E, N, K] (E = 3, N = 4, K = 6): matmul, bmm, baddbmm, einsum and slices, watched and as codes.
#include <functional>

#include "support/hpu_test.h"

namespace fp8::test {
namespace {

using T = const at::Tensor&;

struct Form {
  const char* name;
  std::function<at::Tensor(T w)> run;
  int linears;  ///< calls that a handler of codes gets: one per expert, or one for all
};

at::Tensor stacked(at::IntArrayRef sizes) {
  torch::manual_seed(23);
  return at::randn(sizes, on_hpu());
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"bmm", [](T w) { return at::bmm(stacked({3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"bmm, weight left", [](T w) { return at::bmm(w, stacked({3, 6, 5})); }, 3},
      {"baddbmm", [](T w) { return at::baddbmm(stacked({3, 5, 4}), stacked({3, 5, 6}), w.transpose(1, 2), 0.5, 2); },
       3},
      {"matmul", [](T w) { return at::matmul(stacked({3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 4-D", [](T w) { return at::matmul(stacked({2, 3, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 4-D broadcast", [](T w) { return at::matmul(stacked({2, 1, 5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 2-D", [](T w) { return at::matmul(stacked({5, 6}), w.transpose(1, 2)); }, 3},
      {"matmul 1-D", [](T w) { return at::matmul(stacked({6}), w.transpose(1, 2)); }, 3},
      {"matmul, weight left", [](T w) { return at::matmul(w, stacked({6, 5})); }, 3},
      {"matmul, weight left, vector", [](T w) { return at::matmul(w, stacked({6})); }, 3},
      {"einsum tk,enk", [](T w) { return at::einsum("tk,enk->ten", {stacked({5, 6}), w}); }, 1},
      {"einsum betk,enk", [](T w) { return at::einsum("betk,enk->betn", {stacked({2, 3, 5, 6}), w}); }, 3},
      {"one expert", [](T w) { return at::linear(stacked({5, 6}), w[1]); }, 1},
      {"one expert, matmul", [](T w) { return at::matmul(stacked({2, 5, 6}), w[2].t()); }, 1},
      {"one expert, F::linear", [](T w) { return torch::nn::functional::linear(stacked({5, 6}), w[0], stacked({4})); },
       1},
      {"one expert, vector", [](T w) { return at::matmul(w[0], stacked({6})); }, 1},
      {"one expert, weight left", [](T w) { return at::matmul(w[1], stacked({5, 6}).t()); }, 1},
      {"unbind", [](T w) { return at::linear(stacked({5, 6}), w.unbind(0)[2]); }, 1},
      {"narrow of an expert", [](T w) { return at::linear(stacked({5, 6}), w[1].narrow(0, 1, 2)); }, 1},
      {"two experts", [](T w) { return at::bmm(stacked({2, 5, 6}), w.narrow(0, 1, 2).transpose(1, 2)); }, 2},
      {"a batch of one expert", [](T w) { return at::matmul(stacked({4, 5, 6}), w.narrow(0, 1, 1).transpose(1, 2)); },
       1},
      {"a batch of one expert, 2-D", [](T w) { return at::matmul(stacked({5, 6}), w.narrow(0, 2, 1).transpose(1, 2)); },
       1},
      {"a batch of one expert, 1-D", [](T w) { return at::matmul(stacked({6}), w.narrow(0, 2, 1).transpose(1, 2)); },
       1},
      {"all as one matrix", [](T w) { return at::linear(stacked({5, 6}), w.view({12, 6})); }, 1},
  };
  return all;
}

at::Tensor weight() {
  torch::manual_seed(6);
  return at::randn({3, 4, 6}, on_hpu());
}

void expect_watched_once(const Form& f) {
  const at::Tensor expected = f.run(weight()), w = weight();
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "experts", handler);
  EXPECT_TRUE(same_bits(f.run(w), expected)) << f.name;
  EXPECT_EQ(handler->calls.size(), 1u) << f.name;
}

TEST(StackedWatchers, SeeEachFormOnceAndChangeNoBit) {
  in_every_mode([] {
    for (const Form& f : forms()) expect_watched_once(f);
  });
}

TEST(StackedCodes, GiveTheProductOfTheDecodedWeight) {
  for (const Form& f : forms()) {
    at::Tensor w = weight();
    const auto handler = std::make_shared<CodesHandler>(0.02);
    const at::Tensor expected = f.run(hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02));
    convert_to_codes(w, "experts", handler, 0.02);
    const at::Tensor y = f.run(w);
    EXPECT_EQ(y.sizes(), expected.sizes()) << f.name;
    EXPECT_TRUE(at::allclose(y.cpu(), expected.cpu(), 1e-5, 1e-5)) << f.name;
    EXPECT_EQ(handler->linears, f.linears) << f.name;
  }
}

TEST(StackedCodes, ExpertsAreToldByTheirRows) {
  at::Tensor w = weight();
  const auto handler = std::make_shared<CodesHandler>(0.02);
  convert_to_codes(w, "experts", handler, 0.02);
  at::bmm(stacked({3, 5, 6}), w.transpose(1, 2));
  ASSERT_EQ(handler->views.size(), 3u);
  for (std::int64_t e = 0; e < 3; ++e) {
    EXPECT_EQ(handler->views[e].first_row, 4 * e);
    EXPECT_EQ(handler->views[e].rows, 4);
    EXPECT_EQ(handler->views[e].batch, 0);
    EXPECT_FALSE(handler->views[e].whole);
  }
}

TEST(StackedCodes, NotTransposedIsDequantized) {
  at::Tensor w = weight();
  const auto handler = std::make_shared<CodesHandler>(0.02);
  const at::Tensor decoded = hpu((w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02), x = stacked({3, 5, 4});
  convert_to_codes(w, "experts", handler, 0.02);
  EXPECT_TRUE(same_bits(at::bmm(x, w), at::bmm(x, decoded)));
  EXPECT_TRUE(
      same_bits(at::baddbmm(stacked({3, 5, 6}), x, w, 2, 0.5), at::baddbmm(stacked({3, 5, 6}), x, decoded, 2, 0.5)));
  EXPECT_EQ(handler->dequantized, 2);
  EXPECT_EQ(handler->linears, 0);
}

TEST(StackedCodes, ABatchThatFitsNoExpertsThrows) {
  at::Tensor w = weight();
  convert_to_codes(w, "experts", std::make_shared<CodesHandler>(0.02), 0.02);
  EXPECT_REFUSED(at::matmul(stacked({4, 5, 6}), w.transpose(1, 2)), "aten::matmul", "module 'experts'",
                 "batch of 1 or 3");
}

}  // namespace
}  // namespace fp8::test
