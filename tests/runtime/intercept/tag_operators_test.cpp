// SPDX-License-Identifier: Apache-2.0
// The operators on the mark, called as Python calls them: what they read, what they put where, and what they refuse.
#include "fp8/runtime/intercept/tag_operators.h"

#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

at::Tensor codes_like(const at::Tensor& values, double scale_inv) {
  return (values / scale_inv).to(at::kFloat8_e4m3fn);
}

/// A weight of codes with one scale, and its values as PyTorch decodes them.
struct Codes {
  at::Tensor values = at::randn({6, 8}), w = at::randn({6, 8}).to(kHpu), decoded;
  std::shared_ptr<CodesHandler> handler = std::make_shared<CodesHandler>(0.01);
  Codes() {
    decoded = codes_like(w.cpu(), 0.01).to(at::kFloat) * 0.01;
    convert_to_codes(w, "fc", handler, 0.01);
  }
};

TEST(TagOf, SaysWhoseItIsAndWhatItHolds) {
  EXPECT_EQ(call_fp8("tag_of", {at::ones({2})}).toStringRef(), "null");
  EXPECT_EQ(call_fp8("tag_of", {at::ones({2, 2}, on_hpu())}).toStringRef(), "null");
  const at::Tensor w = at::ones({3, 4}, on_hpu(at::kBFloat16));
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(w, "a", handler);
  runtime::tag_weight(w, "b", handler);
  const io::Json expected = {{"modules", {"a", "b"}}, {"dtype", "BFloat16"},  {"sizes", {3, 4}},
                             {"handler", "watched"},  {"holds_codes", false}, {"whole", true}};
  EXPECT_EQ(json_of(call_fp8("tag_of", {w})), expected);
  EXPECT_EQ(json_of(call_fp8("tag_of", {w.t()}))["whole"], true);
  EXPECT_EQ(json_of(call_fp8("tag_of", {w.narrow(0, 1, 1)}))["whole"], false);
  const Codes c;
  EXPECT_EQ(json_of(call_fp8("tag_of", {c.w}))["dtype"], "Float8_e4m3fn");
  EXPECT_EQ(json_of(call_fp8("tag_of", {c.w}))["holds_codes"], true);
}

TEST(Dequantize, GivesTheValuesOfTheWeightAndOfItsViews) {
  const Codes c;
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {c.w}).toTensor(), c.decoded));
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {c.w.narrow(0, 2, 3)}).toTensor(), c.decoded.narrow(0, 2, 3)));
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {c.w.t()}).toTensor(), c.decoded.t()));
  EXPECT_REFUSED(call_fp8("dequantize", {at::ones({2, 2})}), "fp8::dequantize", "weight", "untagged", "Float", "cpu");
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {c.w.as_strided({2, 2}, {3, 1})}).toTensor(),
                        c.decoded.as_strided({2, 2}, {3, 1})));  // one scale
}

TEST(Dequantize, OfAWatchedWeightIsACopy) {
  at::Tensor w = at::randn({3, 4}, on_hpu()).requires_grad_(true);
  runtime::tag_weight(w, "a", std::make_shared<RecordingHandler>());
  const at::Tensor values = call_fp8("dequantize", {w}).toTensor();
  EXPECT_TRUE(same_bits(values, w));
  EXPECT_NE(values.const_data_ptr(), w.const_data_ptr());
  EXPECT_FALSE(values.requires_grad());
}

TEST(Retag, PutsTheMarkOnTheSameBytesElsewhere) {
  const Codes c;
  const at::Tensor bytes = c.w.view(at::kByte).cpu();  // as they come out of a file
  const at::Tensor to = bytes.view(at::kFloat8_e4m3fn).to(kHpu), x = at::randn({2, 8}, on_hpu());
  EXPECT_EQ(call_fp8("tag_of", {to}).toStringRef(), "null");
  EXPECT_TRUE(call_fp8("retag", {c.w, to}).isNone());
  EXPECT_EQ(call_fp8("tag_of", {to}).toStringRef(), call_fp8("tag_of", {c.w}).toStringRef());
  EXPECT_TRUE(same_bits(at::linear(x, to), at::linear(x, c.w)));
  EXPECT_EQ(c.handler->linears, 2);
}

TEST(Retag, RefusesWhatCantBeTheSameWeight) {
  const Codes c;
  const auto to = [&](const at::Tensor& t) { call_fp8("retag", {c.w, t}); };
  EXPECT_REFUSED(to(c.w.cpu()), "fp8::retag", "to", "[6, 8]", "Float8_e4m3fn", "cpu");
  EXPECT_REFUSED(to(at::ones({6, 8}, on_hpu())), "fp8::retag", "to", "dtype Float ");
  EXPECT_REFUSED(to(c.w.view(at::kByte).cpu().view({8, 6}).view(at::kFloat8_e4m3fn).to(kHpu)), "fp8::retag", "to",
                 "sizes [8, 6]");
  EXPECT_REFUSED(call_fp8("retag", {at::ones({6, 8}, on_hpu()), c.w}), "fp8::retag", "source", "untagged");
  EXPECT_REFUSED(call_fp8("retag", {c.w.narrow(0, 0, 2), c.w}), "fp8::retag", "source", "view");
}

TEST(Untag, TakesOffWhatNoCodesDependOn) {
  const at::Tensor w = at::ones({3, 4}, on_hpu());
  call_fp8("untag", {w});
  runtime::tag_weight(w, "a", std::make_shared<RecordingHandler>());
  call_fp8("untag", {w});
  EXPECT_EQ(runtime::find_tag(w), nullptr);
  const Codes c;
  EXPECT_REFUSED(call_fp8("untag", {c.w}), "fp8::untag", "'fc'", "Float8_e4m3fn", "fp8::dequantize");
  EXPECT_NE(runtime::find_tag(c.w), nullptr);
}

TEST(TorchScript, CallsThemInOrder) {
  torch::jit::CompilationUnit unit;
  auto& f = compile(unit, R"(
def f(w : Tensor):
    before = fp8.tag_of(w)
    fp8.untag(w)
    after = fp8.tag_of(w)
    return [before, after]
)");
  for (int run = 0; run < 3; ++run) {
    const at::Tensor w = at::ones({3, 4}, on_hpu());
    runtime::tag_weight(w, "a", std::make_shared<RecordingHandler>());
    const c10::IValue seen = f({w});
    EXPECT_EQ(json_of(seen.toListRef()[0])["modules"], io::Json({"a"}));
    EXPECT_EQ(seen.toListRef()[1].toStringRef(), "null");
  }
}

TEST(Arguments, AreCheckedByTheSchema) {
  EXPECT_REFUSED(call_fp8("tag_of", {std::string("w")}), "fp8::tag_of", "weight", "Tensor");
  EXPECT_REFUSED(call_fp8("retag", {at::ones({2, 2}, on_hpu())}), "fp8::retag", "to");
}

}  // namespace
}  // namespace fp8::test
