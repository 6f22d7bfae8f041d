// SPDX-License-Identifier: Apache-2.0
// The mark on a weight: where it survives, where it is lost, and which part of the weight a view is.
#include "fp8/runtime/intercept/weight_tag.h"

#include "fp8/runtime/intercept/tag_operators.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"

namespace fp8::test {
namespace {

using runtime::find_tag;
using runtime::tag_weight;
using runtime::view_of;

torch::nn::Linear tagged_layer(const std::shared_ptr<runtime::OpHandler>& handler, const std::string& name = "layer") {
  torch::nn::Linear layer = hpu(torch::nn::Linear(6, 4));
  tag_weight(layer->weight, name, handler);
  return layer;
}

struct WeightTag : ::testing::Test {
  const std::shared_ptr<RecordingHandler> handler = std::make_shared<RecordingHandler>();
};

TEST_F(WeightTag, RefusesWhatItCanNotTag) {
  EXPECT_REFUSED(tag_weight(at::ones({2, 2}), "up_proj", handler), "[tag_weight] up_proj", "hpu memory", "cpu");
  EXPECT_REFUSED(tag_weight(at::ones({2, 3}, on_hpu()).t(), "up_proj", handler), "[tag_weight] up_proj", "contiguous");
  float blob[4] = {};
  EXPECT_REFUSED(tag_weight(torch::from_blob(blob, {2, 2}, on_hpu()), "up_proj", handler), "hpu memory");
}

TEST_F(WeightTag, SurvivesViewsDetachAndInferenceMode) {
  auto layer = tagged_layer(handler);
  const at::Tensor w = layer->weight;
  const auto* tag = find_tag(w);
  ASSERT_NE(tag, nullptr);
  EXPECT_EQ(tag->module_names(), "layer");
  for (const at::Tensor& t :
       {w.t(), w.detach(), w.view({24}), w.narrow(0, 1, 2), w[0], w.alias(), w.variable_data(), w.tensor_data()})
    EXPECT_EQ(find_tag(t), tag);
  const c10::InferenceMode inference;
  EXPECT_EQ(find_tag(w.t()), tag);
  EXPECT_EQ(find_tag(w.detach().t()), tag);
}

TEST_F(WeightTag, SurvivesOptimizerStepsAndLoading) {
  auto layer = tagged_layer(handler);
  torch::optim::AdamW optimizer(layer->parameters(), torch::optim::AdamWOptions(0.1));
  layer(at::ones({2, 6}, on_hpu())).sum().backward();
  optimizer.step();
  ASSERT_NE(find_tag(layer->weight), nullptr);
  torch::nn::Linear other(6, 4);
  std::stringstream stream;
  torch::save(other, stream);
  torch::load(layer, stream, kHpu);
  EXPECT_NE(find_tag(layer->weight.t()), nullptr);  // on the new memory at once: a forward looks at w.t() only
  EXPECT_NE(find_tag(layer->weight), nullptr);
  EXPECT_TRUE(same_bits(layer->weight, other->weight));
  layer->to(kHpu);
  EXPECT_NE(find_tag(layer->weight), nullptr);
}

TEST_F(WeightTag, IsLostByToAndPutBackByTaggingAgain) {
  auto layer = tagged_layer(handler);
  layer->to(at::kBFloat16);
  EXPECT_EQ(find_tag(layer->weight), nullptr);
  tag_weight(layer->weight, "layer", handler);
  layer(at::ones({2, 6}, on_hpu(at::kBFloat16)));
  EXPECT_EQ(handler->calls.size(), 1u);
}

TEST_F(WeightTag, ClonesAndCopiesOfWatchedWeightsAreOtherWeights) {
  auto layer = tagged_layer(std::make_shared<RecordingHandler>());
  EXPECT_EQ(find_tag(layer->weight.clone()), nullptr);
  EXPECT_EQ(find_tag(at::empty_like(layer->weight).copy_(layer->weight)), nullptr);
}

TEST_F(WeightTag, TiedWeightsShareOneTagWithBothNames) {
  auto layer = tagged_layer(handler, "embed");
  tag_weight(layer->weight, "head", handler);
  tag_weight(layer->weight, "head", handler);
  EXPECT_EQ(find_tag(layer->weight)->module_names(), "embed, head");
  const auto other = std::make_shared<RecordingHandler>();
  tag_weight(layer->weight, "head", other);
  EXPECT_EQ(find_tag(layer->weight)->module_names(), "head");
  EXPECT_EQ(find_tag(layer->weight)->handler, other);
}

TEST_F(WeightTag, SeveralWeightsInOneStorageHaveOneEach) {
  const at::Tensor flat = at::randn({4 * 6 * 3 + 4}, on_hpu());
  std::vector<at::Tensor> weights;
  std::vector<std::shared_ptr<RecordingHandler>> handlers;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(flat.narrow(0, 24 * i, 24).view({4, 6}));
    handlers.push_back(std::make_shared<RecordingHandler>());
    tag_weight(weights[i], "w" + std::to_string(i), handlers[i]);
  }
  const at::Tensor x = at::randn({2, 6}, on_hpu()), bias = flat.narrow(0, 72, 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(find_tag(weights[i].t())->module_names(), "w" + std::to_string(i));
    EXPECT_EQ(find_tag(flat.narrow(0, 24 * i + 6, 12).view({2, 6}))->module_names(), "w" + std::to_string(i));
    at::addmm(bias, x, weights[i].t());
    EXPECT_EQ(handlers[i]->calls.size(), 1u);
  }
  EXPECT_EQ(find_tag(bias), nullptr);
  EXPECT_EQ(find_tag(flat), nullptr);
  EXPECT_EQ(find_tag(flat.narrow(0, 12, 24).view({4, 6})), nullptr);  // half of one, half of the next
  runtime::untag_weight(weights[1]);
  EXPECT_EQ(find_tag(weights[1]), nullptr);
  EXPECT_EQ(find_tag(weights[0])->handler, handlers[0]);
  EXPECT_EQ(find_tag(weights[2])->handler, handlers[2]);
}

TEST_F(WeightTag, AWeightAndThePartThatIsAWeightOfItsOwn) {
  const at::Tensor fused = at::randn({12, 6}, on_hpu()), part = fused.narrow(0, 4, 4);
  tag_weight(fused, "qkv", std::make_shared<RecordingHandler>());
  tag_weight(part, "k", std::make_shared<RecordingHandler>());
  EXPECT_EQ(find_tag(fused)->module_names(), "qkv");
  EXPECT_EQ(find_tag(part)->module_names(), "k");
  EXPECT_EQ(find_tag(part.t())->module_names(), "k");
  EXPECT_EQ(find_tag(fused.narrow(0, 0, 4))->module_names(), "qkv");
}

TEST_F(WeightTag, CodesOfSeveralWeightsInOneStorageAreAllGuarded) {
  const at::Tensor flat = at::ones({60}, on_hpu()).to(at::kFloat8_e4m3fn);
  const at::Tensor a = flat.narrow(0, 0, 24).view({4, 6}), b = flat.narrow(0, 24, 24).view({4, 6});
  const auto one = std::make_shared<CodesHandler>(0.5), other = std::make_shared<CodesHandler>(4.0);
  tag_weight(a, "a", one);
  tag_weight(b, "b", other);
  const at::Tensor x = at::ones({1, 6}, on_hpu());
  EXPECT_EQ(at::linear(x, a)[0][0].item<float>(), 3.0f);
  EXPECT_EQ(at::linear(x, b)[0][0].item<float>(), 24.0f);
  EXPECT_REFUSED(flat.abs(), "abs", "module 'a'");
  EXPECT_REFUSED(flat.narrow(0, 30, 20).abs(), "abs", "module 'b'");
  EXPECT_REFUSED(flat.clone(), "copy");
  EXPECT_REFUSED(flat.to(at::kFloat), "copy");
  EXPECT_REFUSED(b.copy_(flat.narrow(0, 48, 6)), "copy", "module 'b'");
  const at::Tensor rest = flat.narrow(0, 48, 12);
  EXPECT_EQ(rest.to(at::kFloat).sum().item<float>(), 12.0f);  // it has no tag
}

TEST_F(WeightTag, UntaggedIsUnseen) {
  auto layer = tagged_layer(handler);
  runtime::untag_weight(layer->weight);
  EXPECT_EQ(find_tag(layer->weight), nullptr);
  layer(at::ones({2, 6}, on_hpu()));
  EXPECT_TRUE(handler->calls.empty());
}

TEST_F(WeightTag, LivesNoLongerThanTheWeight) {
  { auto layer = tagged_layer(handler); }
  EXPECT_EQ(handler.use_count(), 1);
}

/// The view as numbers: rows from, rows, cols from, cols, batch, transposed, whole.
std::vector<std::int64_t> numbers(const runtime::WeightTag& tag, const at::Tensor& t) {
  const auto v = view_of(tag, t);
  if (!v.has_value()) return {};
  return {v->first_row, v->rows, v->first_col, v->cols, v->batch, v->transposed, v->whole};
}
using Numbers = std::vector<std::int64_t>;

TEST(ViewOf, TwoDimensional) {
  const at::Tensor w = at::ones({8, 6}, on_hpu());
  tag_weight(w, "w", std::make_shared<RecordingHandler>());
  const auto& tag = *find_tag(w);
  EXPECT_EQ(numbers(tag, w), (Numbers{0, 8, 0, 6, 0, 0, 1}));
  EXPECT_EQ(numbers(tag, w.t()), (Numbers{0, 8, 0, 6, 0, 1, 1}));
  EXPECT_EQ(numbers(tag, w.narrow(0, 2, 3)), (Numbers{2, 3, 0, 6, 0, 0, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(0, 2, 3).t()), (Numbers{2, 3, 0, 6, 0, 1, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(0, 7, 1)), (Numbers{7, 1, 0, 6, 0, 0, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(0, 7, 1).t()), (Numbers{7, 1, 0, 6, 0, 1, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(1, 2, 4)), (Numbers{0, 8, 2, 4, 0, 0, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(1, 2, 1).t()), (Numbers{0, 8, 2, 1, 0, 1, 0}));
  EXPECT_EQ(numbers(tag, w.unsqueeze(0)), (Numbers{0, 8, 0, 6, 1, 0, 1}));
  EXPECT_EQ(numbers(tag, w.slice(0, 0, 8, 2)), Numbers{});  // every other row
  EXPECT_EQ(numbers(tag, w.view({16, 3})), Numbers{});
  EXPECT_EQ(numbers(tag, w.view(-1)), Numbers{});
  EXPECT_EQ(numbers(tag, w.expand({3, 8, 6})), Numbers{});
  EXPECT_EQ(numbers(tag, w.view(at::kInt)), Numbers{});  // another type's view of the bytes
}

TEST(ViewOf, SquareColumnAndRow) {
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{5, 5}, {7, 1}, {1, 7}}) {
    const at::Tensor w = at::ones(sizes, on_hpu());
    tag_weight(w, "w", std::make_shared<RecordingHandler>());
    EXPECT_EQ(numbers(*find_tag(w), w), (Numbers{0, sizes[0], 0, sizes[1], 0, 0, 1})) << sizes;
    EXPECT_EQ(numbers(*find_tag(w), w.t()), (Numbers{0, sizes[0], 0, sizes[1], 0, 1, 1})) << sizes;
  }
  const at::Tensor column = at::ones({7, 1}, on_hpu());
  tag_weight(column, "w", std::make_shared<RecordingHandler>());
  EXPECT_EQ(numbers(*find_tag(column), column.narrow(0, 2, 3)), (Numbers{2, 3, 0, 1, 0, 0, 0}));
  EXPECT_EQ(numbers(*find_tag(column), column.narrow(0, 2, 3).t()), (Numbers{2, 3, 0, 1, 0, 1, 0}));
}

TEST(ViewOf, StackedExperts) {
  const at::Tensor w = at::ones({4, 5, 6}, on_hpu());  // seen as [20, 6]
  tag_weight(w, "w", std::make_shared<RecordingHandler>());
  const auto& tag = *find_tag(w);
  EXPECT_EQ(numbers(tag, w), (Numbers{0, 20, 0, 6, 4, 0, 1}));
  EXPECT_EQ(numbers(tag, w.transpose(1, 2)), (Numbers{0, 20, 0, 6, 4, 1, 1}));
  EXPECT_EQ(numbers(tag, w[0]), (Numbers{0, 5, 0, 6, 0, 0, 0}));  // offset 0, and yet not the whole
  EXPECT_EQ(numbers(tag, w[3].t()), (Numbers{15, 5, 0, 6, 0, 1, 0}));
  EXPECT_EQ(numbers(tag, w[1].narrow(0, 2, 2)), (Numbers{7, 2, 0, 6, 0, 0, 0}));
  EXPECT_EQ(numbers(tag, w.narrow(0, 1, 2)), (Numbers{5, 10, 0, 6, 2, 0, 0}));
  EXPECT_EQ(numbers(tag, w.view({20, 6})), (Numbers{0, 20, 0, 6, 0, 0, 1}));
  EXPECT_EQ(numbers(tag, w.narrow(1, 0, 2)), Numbers{});  // some rows of each: no run of rows
  EXPECT_EQ(numbers(tag, w.transpose(0, 1)), Numbers{});
}

TEST(ViewOf, ConvolutionsAndVectors) {
  const at::Tensor w = at::ones({8, 3, 2, 2}, on_hpu()), v = at::ones({9}, on_hpu());
  for (const auto& t : {w, v}) tag_weight(t, "w", std::make_shared<RecordingHandler>());
  EXPECT_EQ(numbers(*find_tag(w), w), (Numbers{0, 8, 0, 12, 0, 0, 1}));
  EXPECT_EQ(numbers(*find_tag(w), w.view({8, 12})), (Numbers{0, 8, 0, 12, 0, 0, 1}));
  EXPECT_EQ(numbers(*find_tag(w), w.narrow(0, 0, 4)), Numbers{});
  EXPECT_EQ(numbers(*find_tag(v), v), (Numbers{0, 9, 0, 1, 0, 0, 1}));
  EXPECT_EQ(numbers(*find_tag(v), v.view({9, 1})), (Numbers{0, 9, 0, 1, 0, 0, 1}));
  EXPECT_EQ(numbers(*find_tag(v), v.view({3, 3})), Numbers{});
}

// The operators on the mark, called as Python calls them: what they read, what they put where, and what they refuse.

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
