// SPDX-License-Identifier: Apache-2.0
// Every kind of module with a weight: which tensors are measured, in which shape, and which never are.
#include <c10/core/InferenceMode.h>

#include "fp8/measure/calibration/session.h"
#include "fp8/runtime/device/allocator.h"
#include "measure/amax_by_aten.h"
#include "support/models_for_tests.h"

namespace fp8::measure {
namespace {

namespace F = torch::nn::functional;
using Values = std::vector<Amax>;

CalibrationOptions node_options(const std::string& observer = "maxabs", bool outputs = true) {
  CalibrationOptions options;
  options.select = [](const std::string&, const std::string&) { return true; };
  options.observer = observer;
  options.outputs = outputs;
  return options;
}

/// All of the model's measurements after f() ran; f must give the same bits with and without watchers.
template <class F>
MeasurementFile watched_nodes(const torch::nn::Module& model, const CalibrationOptions& options, F&& f) {
  const at::Tensor plain = f();
  const auto session = CalibrationSession::attach(model, options);
  EXPECT_TRUE(same_bits(f(), plain));
  auto file = session->result();
  finalize_calibration(model);
  return file;
}

template <class Conv>
void expect_convolution(Conv conv, const std::vector<std::int64_t>& sizes) {
  torch::manual_seed(1);
  conv->to(test::kHpu);
  for (const bool batched : {true, false}) {
    at::Tensor x = torch::randn(sizes);
    if (!batched) x = x[0];
    x = hpu(x);
    const std::int64_t channels = batched ? 1 : 0;
    const auto f = [&] { return conv(x); };
    const at::Tensor y = f();
    const auto one = watched_nodes(*conv, node_options(), f).modules.at(0);
    EXPECT_EQ(one.inputs, (Values{{largest(x)}}));
    EXPECT_EQ(one.outputs, (Values{{largest(y)}}));
    EXPECT_EQ(one.weight, Amax{largest(conv->weight)});
    const auto each = watched_nodes(*conv, node_options("maxabs_per_channel"), f).modules.at(0);
    EXPECT_EQ(each.inputs, (Values{along(x, channels)}));
    EXPECT_EQ(each.outputs, (Values{along(y, channels)}));
    EXPECT_EQ(each.weight, along(conv->weight, 0));
  }
}

TEST(WatchedNode, EveryClassIsWatchedAsItsKindSays) {
  for (const auto& type : configs::module_types()) {
    const auto& info = configs::info_of(type.kind);
    const auto tensors = [&](bool outputs, const char* list) {
      const WatchedNode node("m", std::string(type.name), info.weight ? 2 : 0, /*inputs=*/true, outputs);
      return static_cast<int>(node.snapshot()[list].size());
    };
    EXPECT_EQ(tensors(true, "inputs"), !info.lookup ? info.inputs : 0) << type.name;
    EXPECT_EQ(tensors(true, "outputs"), !info.lookup ? info.outputs : 0) << type.name;
    EXPECT_EQ(tensors(false, "outputs"), !info.lookup && info.outputs_always ? info.outputs : 0) << type.name;
  }
}

TEST(WatchedNode, ConvolutionsOfEveryRank) {
  expect_convolution(torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 6, 3).groups(2)), {2, 4, 9});
  expect_convolution(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).stride(2)), {2, 4, 9, 8});
  expect_convolution(torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 6, 2)), {2, 4, 5, 4, 3});
}

TEST(WatchedNode, LinearPerChannelIsPerFeature) {
  torch::nn::Linear m(5, 3);
  m->to(test::kHpu);
  const at::Tensor x = hpu(torch::randn({2, 4, 5}));
  const auto file = watched_nodes(*m, node_options("maxabs_per_channel"), [&] { return m(x); });
  EXPECT_EQ(file.modules.at(0).inputs, (Values{along(x, -1)}));
  EXPECT_EQ(file.modules.at(0).outputs, (Values{along(m(x), -1)}));
  EXPECT_EQ(file.modules.at(0).weight, along(m->weight, 0));
}

TEST(WatchedNode, EmbeddingsHaveTheirWeightAndNeverTheirIndices) {
  torch::nn::Embedding embedding(50, 4);
  torch::nn::EmbeddingBag bag(50, 4);
  embedding->to(test::kHpu), bag->to(test::kHpu);
  const at::Tensor ids = hpu(torch::tensor({{49, 1, 2}}));
  const auto file = watched_nodes(*embedding, node_options(), [&] { return embedding(ids); });
  ASSERT_EQ(file.modules.size(), 1u);
  EXPECT_TRUE(file.modules[0].inputs.empty());
  EXPECT_FALSE(file.modules[0].outputs.has_value());
  EXPECT_EQ(file.modules[0].weight, Amax{largest(embedding->weight)});
  const auto session = CalibrationSession::attach(*bag, node_options());
  EXPECT_EQ(session->result().modules.at(0).weight, Amax{largest(bag->weight)});
  session->finalize();
}

TEST(WatchedNode, AnEmbeddingTiedToALinearSeesNoneOfItsCalls) {
  torch::nn::Embedding embedding(8, 4);
  torch::nn::Linear head(torch::nn::LinearOptions(4, 8).bias(false));
  torch::nn::Sequential model;
  model->push_back("embed", embedding), model->push_back("head", head);
  model->to(test::kHpu);
  head->weight = embedding->weight;
  const at::Tensor x = hpu(torch::randn({2, 4}));
  const auto file = watched_nodes(*model, node_options(), [&] { return head(x); });
  EXPECT_TRUE(file.find("embed")->inputs.empty());
  EXPECT_EQ(file.find("head")->inputs, (Values{{largest(x)}}));
}

/// As vLLM's, in one process: what it gives to the all-reduce has no bias.
struct RowParallelLinearImpl : torch::nn::Module {
  at::Tensor weight, bias;
  bool fused;
  explicit RowParallelLinearImpl(bool fused) : torch::nn::Module("RowParallelLinear"), fused(fused) {
    weight = register_parameter("weight", torch::randn({3, 5}), false);
    bias = register_parameter("bias", torch::full({3}, 50.0f), false);
  }
  at::Tensor forward(const at::Tensor& x, bool report) {
    if (fused) return F::linear(x, weight, bias);
    const at::Tensor y = F::linear(x, weight), reduced = y * 2;  // as if another process had the same
    if (report) observe_reduced(weight, reduced);
    return reduced + bias;
  }
};
TORCH_MODULE(RowParallelLinear);

TEST(WatchedNode, RowParallelLinearHasTwoOutputsAlways) {
  const at::Tensor x = hpu(torch::randn({4, 5}));
  for (const bool fused : {true, false})
    for (const bool report : {true, false}) {
      RowParallelLinear m(fused);
      m->to(test::kHpu);
      m->weight = m->named_parameters()["weight"], m->bias = m->named_parameters()["bias"];
      const auto file = watched_nodes(*m, node_options("maxabs", /*outputs=*/false), [&] { return m(x, report); });
      const float local = largest(F::linear(x.cpu(), m->weight.cpu()));
      const auto& outputs = *file.modules.at(0).outputs;
      ASSERT_EQ(outputs.size(), 2u);
      EXPECT_NEAR(outputs[0].at(0), local, 1e-5 * local);
      EXPECT_NEAR(outputs[1].at(0), !fused && report ? 2 * local : local, 1e-5 * local);
    }
  observe_reduced(x, x);  // nobody watches: nothing happens
}

/// A mixture's weights in one parameter [E, N, K].
struct StackedImpl : torch::nn::Module {
  at::Tensor weight;
  StackedImpl() : torch::nn::Module("MoeMatmul") {
    weight = register_parameter("weight", torch::randn({3, 4, 5}), false);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::bmm(x, weight.transpose(1, 2)); }
};
TORCH_MODULE(Stacked);

TEST(WatchedNode, StackedWeightsAreMeasuredPerExpert) {
  Stacked m;
  m->to(test::kHpu);
  m->weight = m->named_parameters()["weight"];
  const at::Tensor x = hpu(torch::randn({3, 2, 5}));
  const auto file = watched_nodes(*m, node_options(), [&] { return m(x); });
  EXPECT_EQ(file.modules.at(0).inputs, (Values{{largest(x)}}));
  EXPECT_EQ(file.modules.at(0).outputs, (Values{{largest(m(x))}}));
  EXPECT_EQ(file.modules.at(0).weight, along(m->weight, 0));
}

TEST(WatchedNode, RecurrentWeightsAreMeasuredEachByItself) {
  torch::manual_seed(7);
  torch::nn::LSTMCell cell(4, 3);
  cell->to(test::kHpu);
  const at::Tensor x = hpu(torch::randn({2, 4})), h = hpu(torch::randn({2, 3})), c = hpu(torch::randn({2, 3}));
  const auto file = watched_nodes(*cell, node_options(), [&] { return std::get<0>(cell(x, std::make_tuple(h, c))); });
  const auto parameters = cell->named_parameters();
  for (const auto& [name, input] : {std::pair{"weight_ih", x}, {"weight_hh", h}}) {
    const auto* node = file.find(name);
    ASSERT_NE(node, nullptr) << name;
    EXPECT_EQ(node->inputs, (Values{{largest(input)}})) << name;
    EXPECT_EQ(node->weight, Amax{largest(parameters[name])}) << name;
  }
}

TEST(WatchedNode, ShapesAreMeasuredInModeShape) {
  torch::nn::Linear m(5, 3);
  m->to(test::kHpu);
  const at::Tensor x =
      hpu(torch::full({2, 4, 5}, std::numeric_limits<float>::quiet_NaN()));  // values are not looked at
  const auto session = CalibrationSession::attach(*m, node_options("shape"));
  m(x);
  EXPECT_TRUE(session->non_finite().empty());
  const auto file = session->result();
  EXPECT_EQ(file.mode, MeasurementMode::shape);
  EXPECT_EQ(file.modules.at(0).inputs, (Values{{2, 4, 5}}));
  EXPECT_EQ(file.modules.at(0).outputs, (Values{{2, 4, 3}}));
  EXPECT_EQ(file.modules.at(0).weight, (Amax{3, 5}));
  session->finalize();
}

TEST(WatchedNode, EveryObserverWatchesAWholeModel) {
  auto model = test::tiny_lm();
  const at::Tensor ids = test::token_ids();
  const auto plain = watched_nodes(*model, node_options(), [&] { return model(ids); });
  for (const std::string observer : {"histogram", "percentile", "mse", "kl", "maxabs_per_channel"}) {
    const auto file = watched_nodes(*model, node_options(observer), [&] { return model(ids); });
    ASSERT_EQ(file.modules.size(), plain.modules.size());
    for (std::size_t i = 0; i < file.modules.size(); ++i) {
      const auto& m = file.modules[i];
      if (m.inputs.empty()) continue;
      const float amax = plain.modules[i].inputs[0][0],
                  found = *std::max_element(m.inputs[0].begin(), m.inputs[0].end());
      EXPECT_LE(found, amax) << observer << m.module;
      EXPECT_GT(found, 0.0f) << observer << m.module;
      EXPECT_TRUE(found == amax || (observer != "histogram" && observer != "maxabs_per_channel"))
          << observer << m.module;
    }
  }
}

// A tensor is looked at once as long as nobody writes to it, and never kept alive.

/// Writes without anybody's knowing: a second look would show it.
void write_behind(const at::Tensor& t, float value) { runtime::cpu_alias(t).mutable_data_ptr<float>()[0] = value; }

TEST(TensorMemory, LooksOnceAtEachOfAFewTensors) {
  TensorMemory memory;
  std::vector<at::Tensor> tensors;
  for (int i = 1; i <= 4; ++i) tensors.push_back(hpu(torch::full({3}, static_cast<float>(-i))));
  for (const auto& t : tensors) memory.find(t, true).memo = std::string("seen");
  for (int i = 0; i < 4; ++i) {
    write_behind(tensors[static_cast<std::size_t>(i)], 100.0f);
    const auto& entry = memory.find(tensors[static_cast<std::size_t>(i)], true);
    EXPECT_EQ(entry.amax, static_cast<float>(i + 1));
    EXPECT_TRUE(entry.memo.has_value());
  }
  memory.find(hpu(torch::ones({1})), true);  // the fifth takes the first one's place
  EXPECT_EQ(memory.find(tensors[0], true).amax, 100.0f);
  memory.clear();
  EXPECT_EQ(memory.find(tensors[3], true).amax, 100.0f);
}

TEST(TensorMemory, LooksAgainAfterAWrite) {
  TensorMemory memory;
  at::Tensor t = hpu(torch::ones({3}));
  memory.find(t, true).memo = 1;
  t.mul_(5);
  EXPECT_EQ(memory.find(t, true).amax, 5.0f);
  EXPECT_FALSE(memory.find(t, true).memo.has_value());
}

TEST(TensorMemory, InferenceTensorsAreLookedAtEveryTime) {
  TensorMemory memory;
  const c10::InferenceMode inference;
  const at::Tensor t = hpu(torch::ones({3}));
  EXPECT_EQ(memory.find(t, true).amax, 1.0f);
  write_behind(t, 7.0f);
  EXPECT_EQ(memory.find(t, true).amax, 7.0f);
}

TEST(TensorMemory, AnotherTensorAtTheSameAddressIsAnother) {
  TensorMemory memory;
  for (int i = 0; i < 100; ++i) {
    const at::Tensor t = hpu(torch::full({3}, static_cast<float>(i)));
    ASSERT_EQ(memory.find(t, true).amax, static_cast<float>(i));
  }
}

TEST(TensorMemory, KeepsNoMemoryOfTheDevice) {
  const auto before = runtime::memory_stats().InUse;
  TensorMemory memory;
  memory.find(hpu(torch::ones({1000})), true);
  EXPECT_EQ(runtime::memory_stats().InUse, before);
}

TEST(TensorMemory, AmaxOfViewsIsTheViews) {
  const at::Tensor t = hpu(torch::randn({6, 7, 8}));
  for (const at::Tensor& view : {t, t.transpose(0, 2), t.narrow(1, 2, 3), t.select(2, 1),
                                 t.narrow(0, 1, 2).transpose(1, 2), t.expand({2, 6, 7, 8}), t.narrow(0, 0, 0)})
    EXPECT_EQ(amax_of(view), view.numel() == 0 ? 0.0f : view.cpu().abs().max().item<float>()) << view.sizes();
}

TEST(TensorMemory, UnreadValuesMayBeAnything) {
  TensorMemory memory;
  EXPECT_EQ(memory.find(hpu(torch::full({2}, NAN)), false).amax, 0.0f);
}

}  // namespace
}  // namespace fp8::measure
