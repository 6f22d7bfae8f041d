// SPDX-License-Identifier: Apache-2.0
// Interception in the places where models call it: typed modules, autocast regions, TorchScript (scripted, traced,
// frozen), other threads, and the pause in which the original op runs.
#include <ATen/autocast_mode.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include "support/hpu_test.h"
#include "support/values.h"

namespace fp8::test {
namespace {

using at::Tensor;

at::Tensor input(at::IntArrayRef sizes) {
  torch::manual_seed(17);
  return at::randn(sizes, on_hpu());
}

struct Watched {
  torch::nn::Linear layer;
  std::shared_ptr<RecordingHandler> handler = std::make_shared<RecordingHandler>();
  explicit Watched(bool bias) : layer(torch::nn::LinearOptions(6, 4).bias(bias)) {
    layer->to(kHpu);
    runtime::tag_weight(layer->weight, "layer", handler);
  }
};

TEST(Modules, LinearOfAnyInputIsSeenOnce) {
  for (const bool bias : {true, false})
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{3, 6}, {2, 3, 6}, {6}, {0, 6}, {2, 1, 3, 6}}) {
      Watched m(bias);
      const at::Tensor x = input(sizes);
      std::size_t calls = 0;
      in_every_mode([&] {
        const at::Tensor y = m.layer(x);
        ASSERT_EQ(m.handler->calls.size(), ++calls) << sizes;
        EXPECT_TRUE(same_bits(m.handler->calls.back().x, x));
        at::Tensor expected = at::matmul(x.cpu().to(at::kDouble), m.layer->weight.cpu().to(at::kDouble).t());
        if (bias) expected = expected + m.layer->bias.cpu().to(at::kDouble);
        EXPECT_TRUE(at::allclose(y.cpu().to(at::kDouble), expected, 1e-5, 1e-5)) << sizes;
      });
    }
}

TEST(Modules, InsideAnAutocastRegionToo) {
  Watched m(true);
  at::autocast::set_autocast_enabled(at::kHPU, true);
  const std::string text = error_of([&] {
    m.layer(input({3, 6}));
    m.layer(input({2, 3, 6}));
  });
  at::autocast::set_autocast_enabled(at::kHPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(text, "");
  EXPECT_EQ(m.handler->calls.size(), 2u);
}

TEST(Modules, TiedWeightsAnswerForBothUses) {
  torch::nn::Embedding embed(5, 6);
  torch::nn::Linear head(torch::nn::LinearOptions(6, 5).bias(false));
  head->weight = embed->weight;
  embed->to(kHpu);
  head->weight.set_data(embed->weight);
  const auto handler = std::make_shared<CodesHandler>(0.05);
  const at::Tensor decoded = (embed->weight.detach().cpu() / 0.05).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.05;
  convert_to_codes(embed->weight, "embed", handler, 0.05);
  runtime::tag_weight(embed->weight, "head", handler);
  const at::Tensor ids = at::tensor({4, 1}, on_hpu(at::kLong));
  EXPECT_TRUE(same_bits(embed(ids), at::embedding(decoded, ids.cpu())));
  EXPECT_EQ(handler->dequantized, 1);
  EXPECT_TRUE(at::allclose(head(input({2, 6})).cpu(), at::linear(input({2, 6}).cpu(), decoded), 1e-5, 1e-5));
  EXPECT_EQ(handler->linears, 1);
}

TEST(Modules, UntaggedLayersAreUntouched) {
  Watched m(true);
  torch::nn::Linear other = hpu(torch::nn::Linear(6, 4));
  other(input({3, 6}));
  at::matmul(input({3, 6}), input({6, 2}));
  EXPECT_TRUE(m.handler->calls.empty());
}

TEST(Threads, EachIsIntercepted) {
  Watched m(true);
  const at::Tensor x = input({3, 6});
  std::thread([&] { m.layer(x); }).join();
  m.layer(x);
  EXPECT_EQ(m.handler->calls.size(), 2u);
}

TEST(Pause, NestsAndIsItsThreadsOwn) {
  Watched m(true);
  const at::Tensor x = input({3, 6});
  {
    const runtime::InterceptionPause outer;
    { const runtime::InterceptionPause inner; }
    EXPECT_TRUE(runtime::interception_paused());
    m.layer(x);
    EXPECT_TRUE(m.handler->calls.empty());
    std::thread([&] { m.layer(x); }).join();
    EXPECT_EQ(m.handler->calls.size(), 1u);
  }
  EXPECT_FALSE(runtime::interception_paused());
  m.layer(x);
  EXPECT_EQ(m.handler->calls.size(), 2u);
}

TEST(Pause, EndsWhenTheOriginalThrows) {
  Watched m(true);
  EXPECT_REFUSED(m.layer(input({3, 5})), "cannot be multiplied");
  EXPECT_FALSE(runtime::interception_paused());
  m.layer(input({3, 6}));
  EXPECT_EQ(m.handler->calls.size(), 1u);
}

/// linear and conv1d in one scripted module.
torch::jit::Module scripted() {
  torch::jit::Module m("m");
  m.register_attribute("training", c10::BoolType::get(), true);  // without it nothing would be frozen
  torch::manual_seed(2);
  m.register_parameter("w", at::randn({4, 6}), false);
  m.register_parameter("b", at::randn({4}), false);
  m.register_parameter("kernel", at::randn({2, 1, 3}), false);
  m.define(R"(
def forward(self, x):
    y = torch.linear(x, self.w, self.b)
    return torch.conv1d(y.unsqueeze(1), self.kernel, None, 1, 1)
)");
  m.to(kHpu);
  return m;
}

std::shared_ptr<RecordingHandler> watch(const torch::jit::Module& m) {
  auto handler = std::make_shared<RecordingHandler>();
  for (const auto& p : m.named_parameters())
    if (p.name != "b") runtime::tag_weight(p.value, p.name, handler);
  return handler;
}

TEST(TorchScript, EveryRunIsSeenAndUnchanged) {
  const torch::jit::Module plain = scripted(), m = scripted();
  const auto handler = watch(m);
  const at::Tensor x = input({3, 6}), expected = torch::jit::Module(plain).forward({x}).toTensor();
  for (std::size_t run = 1; run <= 5; ++run) {
    EXPECT_TRUE(same_bits(torch::jit::Module(m).forward({x}).toTensor(), expected));
    ASSERT_EQ(handler->calls.size(), 2 * run);
    EXPECT_EQ(handler->calls[2 * run - 2].modules, "w");
    EXPECT_EQ(handler->calls[2 * run - 1].modules, "kernel");
  }
  const c10::InferenceMode inference;
  torch::jit::Module(m).forward({x});
  EXPECT_EQ(handler->calls.size(), 12u);
}

TEST(TorchScript, FrozenModulesToo) {
  torch::jit::Module m = scripted();
  m.eval();
  const auto handler = watch(m);
  const at::Tensor x = input({3, 6}), expected = m.forward({x}).toTensor();
  const at::NoGradGuard no_grad;
  torch::jit::Module frozen = torch::jit::freeze(m);
  handler->calls.clear();
  for (std::size_t run = 1; run <= 5; ++run) {
    EXPECT_TRUE(same_bits(frozen.forward({x}).toTensor(), expected));
    EXPECT_EQ(handler->calls.size(), 2 * run);
  }
}

TEST(TorchScript, TracedGraphsToo) {
  torch::nn::Conv2d conv = hpu(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3)));
  for (auto& p : conv->parameters()) p.set_requires_grad(false);  // a trace takes them in as constants
  const auto handler = std::make_shared<RecordingHandler>();
  runtime::tag_weight(conv->weight, "conv", handler);
  const at::Tensor x = input({1, 1, 5, 5}), expected = conv(x);
  const auto traced = torch::jit::tracer::trace(
      {x}, [&](torch::jit::Stack in) { return torch::jit::Stack{conv(in[0].toTensor())}; },
      [](const at::Tensor&) { return ""; });
  const auto graph = traced.first->graph;
  EXPECT_THAT(graph->toString(), HasSubstr("aten::_convolution"));
  torch::jit::CompilationUnit unit;
  auto* function = unit.create_function(c10::QualifiedName("traced"), graph);
  handler->calls.clear();
  for (std::size_t run = 1; run <= 5; ++run) {
    EXPECT_TRUE(same_bits((*function)({x}).toTensor(), expected));
    EXPECT_EQ(handler->calls.size(), run);
  }
  EXPECT_FALSE(same_bits((*function)({x + 1}).toTensor(), expected));  // the input is no constant of the trace
}

TEST(TorchScript, CodesRunInEveryRun) {
  torch::jit::Module m = scripted();
  const auto handler = std::make_shared<CodesHandler>(0.02);
  at::Tensor w = m.attr("w").toTensor();
  const at::Tensor x = input({3, 6}), decoded = (w.cpu() / 0.02).to(at::kFloat8_e4m3fn).to(at::kFloat) * 0.02;
  convert_to_codes(w, "w", handler, 0.02);
  torch::jit::Module reference = scripted();
  reference.attr("w").toTensor().copy_(decoded);
  for (int run = 1; run <= 5; ++run) {
    EXPECT_TRUE(at::allclose(m.forward({x}).toTensor().cpu(), reference.forward({x}).toTensor().cpu(), 1e-5, 1e-5));
    EXPECT_EQ(handler->linears, run);
  }
  const at::NoGradGuard no_grad;
  m.eval();
  torch::jit::Module frozen = torch::jit::freeze(m);
  frozen.forward({x});
  EXPECT_EQ(handler->linears, 6);
}

TEST(TorchScript, OptimizeForInferenceOfCodesThrowsInsteadOfMisreading) {
  torch::jit::Module m = scripted();
  m.eval();
  at::Tensor w = m.attr("w").toTensor();
  convert_to_codes(w, "w", std::make_shared<CodesHandler>(0.02), 0.02);
  const at::NoGradGuard no_grad;
  // It puts a transposed copy of the weight into the graph, which no tag follows.
  EXPECT_REFUSED(torch::jit::optimize_for_inference(m), "module 'w'", "optimize_for_inference", "freeze");
}

// Recurrent modules on hpu: lstm, gru, rnn and their cells come down to one linear per step and weight, so every tagged
// weight's handler is asked; typed, scripted and packed, in grad mode, without gradients and in InferenceMode.

/// A recurrent module whose forward(x) gives one tensor.
struct Recurrent {
  const char* name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Tensor& x)> run;
  std::size_t calls;  ///< of linear, for a sequence of 3 steps
};

template <typename Module, typename Options>
Recurrent sequence(const char* name, Options options, std::size_t calls) {
  torch::manual_seed(1);
  Module m(options);
  m->to(kHpu);
  return {name, m.ptr(), [m](const Tensor& x) mutable { return std::get<0>(m(x)); }, calls};
}

template <typename Module>
Recurrent cell(const char* name, Module m) {
  m->to(kHpu);
  const auto run = [m](const Tensor& x) mutable {
    if constexpr (std::is_same_v<Module, torch::nn::LSTMCell>)
      return std::get<1>(m(x[0]));
    else
      return m(x[0]);
  };
  return {name, m.ptr(), run, 2};
}

std::vector<Recurrent> all() {
  namespace nn = torch::nn;
  torch::manual_seed(1);
  const std::size_t steps = 3;
  return {sequence<nn::LSTM>("LSTM", nn::LSTMOptions(4, 5), 2 * steps),
          sequence<nn::LSTM>("LSTM, two layers, both directions, no bias",
                             nn::LSTMOptions(4, 5).num_layers(2).bidirectional(true).bias(false), 8 * steps),
          sequence<nn::LSTM>("LSTM with projections", nn::LSTMOptions(4, 5).proj_size(3), 3 * steps),
          sequence<nn::GRU>("GRU", nn::GRUOptions(4, 5), 2 * steps),
          sequence<nn::RNN>("RNN", nn::RNNOptions(4, 5), 2 * steps),
          sequence<nn::RNN>("RNN, relu", nn::RNNOptions(4, 5).nonlinearity(torch::kReLU), 2 * steps),
          cell("LSTMCell", nn::LSTMCell(4, 5)),
          cell("GRUCell", nn::GRUCell(4, 5)),
          cell("RNNCell", nn::RNNCell(4, 5))};
}

bool is_weight(const std::string& name) { return name.find("weight") != std::string::npos; }

std::set<std::string> weights_of(const torch::nn::Module& m) {
  std::set<std::string> names;
  for (const auto& p : m.named_parameters())
    if (is_weight(p.key())) names.insert(p.key());
  return names;
}

Tensor input() {
  torch::manual_seed(2);
  return at::randn({3, 2, 4}, on_hpu());  // 3 steps, batch 2
}

void expect_watched() {
  for (const Recurrent& r : all()) {
    const Tensor x = input(), expected = r.run(x);
    const auto handler = std::make_shared<RecordingHandler>();
    for (auto& p : r.module->named_parameters())
      if (is_weight(p.key())) runtime::tag_weight(p.value(), p.key(), handler);
    EXPECT_TRUE(same_bits(r.run(x), expected)) << r.name;
    EXPECT_EQ(handler->calls.size(), r.calls) << r.name;
    std::set<std::string> met;
    for (const auto& call : handler->calls) met.insert(call.modules);
    EXPECT_EQ(met, weights_of(*r.module)) << r.name;
  }
}

TEST(RecurrentWatchers, SeeEveryWeightInEveryStep) { in_every_mode(expect_watched); }

TEST(RecurrentWatchers, TrainAsWithout) {
  for (std::size_t i = 0; i < all().size(); ++i) {
    const auto gradients = [&](bool tagged) {
      const Recurrent r = all()[i];
      for (auto& p : r.module->named_parameters())
        if (tagged && is_weight(p.key())) runtime::tag_weight(p.value(), p.key(), std::make_shared<RecordingHandler>());
      r.run(input()).square().sum().backward();
      return collected(r.module->parameters(), [](const auto& p) { return p.grad(); });
    };
    const auto expected = gradients(false), got = gradients(true);
    for (std::size_t p = 0; p < expected.size(); ++p) EXPECT_TRUE(same_bits(got[p], expected[p])) << all()[i].name;
  }
}

constexpr double kScale = 0.01;

void expect_codes() {
  for (const Recurrent& r : all()) {
    const Tensor x = input();
    for (auto& p : r.module->named_parameters())  // the reference: the weights that the codes stand for
      if (is_weight(p.key()))
        p.value().set_data(hpu((p.value().detach().cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale));
    const Tensor expected = r.run(x);
    const auto handler = std::make_shared<CodesHandler>(kScale);
    for (auto& p : r.module->named_parameters())
      if (is_weight(p.key())) convert_to_codes(p.value(), p.key(), handler, kScale);
    EXPECT_TRUE(at::allclose(r.run(x).cpu(), expected.cpu(), 1e-5, 1e-6)) << r.name;
    EXPECT_EQ(handler->linears, static_cast<int>(r.calls)) << r.name;
    EXPECT_EQ(handler->dequantized, 0) << r.name;
  }
}

TEST(RecurrentCodes, RunThroughTheHandler) { in_every_mode(expect_codes); }

TEST(RecurrentCodes, PackedSequences) {
  torch::manual_seed(1);
  torch::nn::LSTM lstm = hpu(torch::nn::LSTM(torch::nn::LSTMOptions(4, 5)));
  const auto packed = [] { return torch::nn::utils::rnn::pack_padded_sequence(input(), at::tensor({3, 2})); };
  for (auto& p : lstm->named_parameters())
    if (is_weight(p.key()))
      p.value().set_data(hpu((p.value().detach().cpu() / kScale).to(at::kFloat8_e4m3fn).to(at::kFloat) * kScale));
  const Tensor expected = std::get<0>(lstm->forward_with_packed_input(packed())).data();
  const auto handler = std::make_shared<CodesHandler>(kScale);
  for (auto& p : lstm->named_parameters())
    if (is_weight(p.key())) convert_to_codes(p.value(), p.key(), handler, kScale);
  const Tensor y = std::get<0>(lstm->forward_with_packed_input(packed())).data();
  EXPECT_TRUE(at::allclose(y.cpu(), expected.cpu(), 1e-5, 1e-6));
  EXPECT_EQ(handler->dequantized, 0);
  EXPECT_GE(handler->linears, 4);
}

/// lstm, gru and both cells in one scripted module, weights as parameters.
torch::jit::Module scripted_lstm() {
  torch::jit::Module m("m");
  m.register_attribute("training", c10::BoolType::get(), true);
  torch::manual_seed(2);
  for (const char* kind : {"lstm", "gru"}) {
    const std::int64_t gates = std::string(kind) == "lstm" ? 20 : 15;
    m.register_parameter(kind + std::string("_ih"), at::randn({gates, 4}), false);
    m.register_parameter(kind + std::string("_hh"), at::randn({gates, 5}), false);
    m.register_parameter(kind + std::string("_b"), at::randn({gates}), false);
  }
  m.define(R"(
def forward(self, x):
    h = torch.zeros([1, 2, 5], device=x.device)
    y, a, b = torch.lstm(x, [h, h], [self.lstm_ih, self.lstm_hh, self.lstm_b, self.lstm_b],
                         True, 1, 0.0, False, False, False)
    z, c = torch.gru(x, h, [self.gru_ih, self.gru_hh, self.gru_b, self.gru_b], True, 1, 0.0, False, False, False)
    d, e = torch.lstm_cell(x[0], [h[0], h[0]], self.lstm_ih, self.lstm_hh, self.lstm_b, self.lstm_b)
    f = torch.gru_cell(x[0], h[0], self.gru_ih, self.gru_hh, self.gru_b, self.gru_b)
    return y + z + d + f
)");
  m.to(kHpu);
  m.eval();
  return m;
}

TEST(RecurrentScripts, ScriptedAndFrozenOnesAreSeen) {
  torch::jit::Module m = scripted_lstm();
  const at::NoGradGuard no_grad;
  const Tensor x = input(), expected = m.forward({x}).toTensor();
  const auto handler = std::make_shared<RecordingHandler>();
  for (const auto& p : m.named_parameters())
    if (p.name.back() == 'h') runtime::tag_weight(p.value, p.name, handler);
  const std::size_t once = 2 * (3 + 3 + 1 + 1);  // two weights; 3 steps of lstm and gru, one of each cell
  for (std::size_t run = 1; run <= 3; ++run) {
    EXPECT_TRUE(same_bits(m.forward({x}).toTensor(), expected));
    EXPECT_EQ(handler->calls.size(), run * once);
  }
  torch::jit::Module frozen = torch::jit::freeze(m);
  handler->calls.clear();
  EXPECT_TRUE(same_bits(frozen.forward({x}).toTensor(), expected));
  EXPECT_EQ(handler->calls.size(), once);
}

}  // namespace
}  // namespace fp8::test
