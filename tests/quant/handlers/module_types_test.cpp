// SPDX-License-Identifier: Apache-2.0
// Modules with a weight beyond Linear and Conv2d, through convert(), against f64 computations on dequantized operands.
#include <ATen/ops/embedding_bag.h>

#include "configs/quant_config_text.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/fp8_reference.h"
#include "support/hpu_test.h"

namespace fp8::quant {
namespace {

PlanOptions per_channel() { return {.weights = Granularity::channel}; }

/// INC's rules for Gaudi 3, with a measurement of the input of "m".
PlanOptions configured(const std::string& json, float input_amax) {
  PlanOptions o{.dialect = recipes::Dialect::gaudi3,
                .config = test::quant_config(json),
                .measurements = measure::MeasurementFile{}};
  o.measurements->modules.push_back({"m", {{input_amax}}, std::nullopt, std::nullopt});
  return o;
}

TEST(ModuleTypes, Conv1dIsAConvolutionOfImagesOfHeightOne) {
  torch::manual_seed(1);
  for (std::int64_t groups : {1, 2}) {
    torch::nn::Conv1d conv(torch::nn::Conv1dOptions(4, 6, 3).stride(2).padding(1).dilation(2).groups(groups));
    conv->to(test::kHpu);
    const at::Tensor w = test::quantize_by_amax(conv->weight, 6).values, bias = f64(conv->bias),
                     x = torch::randn({3, 4, 21});
    torch::nn::Sequential model(conv);
    convert(*model, per_channel());
    const at::Tensor want = at::conv1d(test::quantize_by_amax(x, 1).values, w, bias, 2, 1, 2, groups);
    at::Tensor leaf = hpu(x).requires_grad_(true);
    const at::Tensor y = conv(leaf);
    EXPECT_EQ(y.sizes(), want.sizes());
    EXPECT_LT(relative_error(y, want), 1e-6);
    y.sum().backward();
    at::Tensor plain = x.to(at::kDouble).requires_grad_(true);
    at::conv1d(plain, w, bias, 2, 1, 2, groups).sum().backward();
    EXPECT_LT(relative_error(leaf.grad(), plain.grad()), 1e-6);
  }
}

TEST(ModuleTypes, Conv3dRunsOnQuantizedValues) {
  torch::manual_seed(2);
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(2, 4, 2));
  conv->to(test::kHpu);
  const at::Tensor w = test::quantize_by_amax(conv->weight, 4).values, bias = f64(conv->bias),
                   x = torch::randn({2, 2, 4, 5, 3});
  torch::nn::Sequential model(conv);
  convert(*model, per_channel());
  EXPECT_EQ(conv->weight.scalar_type(), at::kFloat8_e4m3fn);
  const torch::NoGradGuard no_grad;
  EXPECT_LT(relative_error(conv(hpu(x)), at::conv3d(test::quantize_by_amax(x, 1).values, w, bias)), 1e-6);
}

TEST(ModuleTypes, EmbeddingBagsReadQuantizedRows) {
  torch::manual_seed(3);
  torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(10, 6).mode(torch::kSum));
  bag->to(test::kHpu);
  const at::Tensor w = test::quantize_by_amax(bag->weight, 10).values,
                   ids = torch::tensor({{1, 2, 9}, {0, 0, 3}}, at::kLong);
  torch::nn::Sequential model(bag);
  PlanOptions o = per_channel();
  EXPECT_EQ(convert(*model, o).converted.size(), 0u) << "embeddings are kept by default";
  o.include = {"0"};
  convert(*model, o);
  const torch::NoGradGuard no_grad;
  EXPECT_LT(relative_error(bag(hpu(ids)), w.index_select(0, ids.flatten()).view({2, 3, 6}).sum(1)), 1e-6);
}

TEST(ModuleTypes, RecurrentWeightsAreQuantizedEachByItself) {
  torch::manual_seed(4);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 8).num_layers(1).batch_first(true));
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 8));
  torch::nn::LSTMCell cell(6, 8);
  for (const std::shared_ptr<torch::nn::Module>& m :
       std::vector<std::shared_ptr<torch::nn::Module>>{lstm.ptr(), gru.ptr(), cell.ptr()}) {
    m->eval();
    m->to(test::kHpu);
  }
  const at::Tensor x = torch::randn({2, 5, 6});
  const torch::NoGradGuard no_grad;
  // The plain module on quantized weights: only the activations' casts are missing, 2^-4 of each at most.
  const auto plain_lstm = std::get<0>(lstm(hpu(x)));
  const auto plain_gru = std::get<0>(gru(hpu(x)));
  const auto plain_cell = std::get<0>(cell(hpu(x.select(1, 0))));
  const at::Tensor wi = test::quantize_by_amax(cell->weight_ih, 32).values;
  const at::Tensor bi = f64(cell->bias_ih), bh = f64(cell->bias_hh);
  torch::nn::Sequential model;
  model->push_back("lstm", lstm);
  model->push_back("gru", gru);
  model->push_back("cell", cell);
  const auto report = convert(*model, per_channel());
  EXPECT_EQ(report.converted.size(), 6u);
  EXPECT_EQ(report.converted[0].name, "lstm.weight_ih_l0");
  const at::Tensor y = std::get<0>(lstm(hpu(x)));
  EXPECT_FALSE(same_bits(y, plain_lstm));
  EXPECT_LT(relative_error(y, f64(plain_lstm)), 0.08);
  EXPECT_LT(relative_error(std::get<0>(gru(hpu(x))), f64(plain_gru)), 0.08);
  // One step of the cell, exactly: gates i, f, g, o of W_ih x' + W_hh 0 + biases.
  const auto gates =
      (test::quantize_by_amax(x.select(1, 0).contiguous(), 2).values.matmul(wi.t()) + bi + bh).chunk(4, 1);
  const at::Tensor c = gates[0].sigmoid() * gates[2].tanh();
  EXPECT_LT(relative_error(std::get<0>(cell(hpu(x.select(1, 0)))), gates[3].sigmoid() * c.tanh()), 1e-5);
  EXPECT_LT(relative_error(std::get<0>(cell(hpu(x.select(1, 0)))), f64(plain_cell)), 0.08);
}

struct RowParallelLinearImpl : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
};
TORCH_MODULE(RowParallelLinear);

TEST(ModuleTypes, ParallelLinearsAreLinears) {
  torch::manual_seed(5);
  RowParallelLinear linear(torch::nn::LinearOptions(16, 4));
  linear->to(test::kHpu);
  const at::Tensor w = test::quantize_by_amax(linear->weight, 4).values, bias = f64(linear->bias),
                   x = torch::randn({3, 16});
  torch::nn::Sequential model;
  model->push_back("o", linear);
  const auto report = convert(*model, per_channel());
  ASSERT_EQ(report.converted.size(), 1u);
  EXPECT_EQ(report.converted[0].type, "RowParallelLinear");
  const torch::NoGradGuard no_grad;
  EXPECT_LT(relative_error(linear(hpu(x)), test::quantize_by_amax(x, 3).values.matmul(w.t()) + bias), 1e-6);
}

/// As peft writes it: a base weight and a low-rank correction.
struct LoRALinearImpl : torch::nn::LinearImpl {
  torch::nn::Linear lora_A{nullptr}, lora_B{nullptr};
  LoRALinearImpl(std::int64_t in, std::int64_t out) : LinearImpl(in, out) {
    lora_A = register_module("lora_A", torch::nn::Linear(torch::nn::LinearOptions(in, 2).bias(false)));
    lora_B = register_module("lora_B", torch::nn::Linear(torch::nn::LinearOptions(2, out).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return LinearImpl::forward(x) + lora_B(lora_A(x)); }
};
TORCH_MODULE(LoRALinear);

struct LoRACompatibleLinearImpl : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
};
TORCH_MODULE(LoRACompatibleLinear);

TEST(ModuleTypes, AdaptersStayInHighPrecisionAndLearn) {
  torch::manual_seed(6);
  LoRALinear layer(16, 4);
  layer->to(test::kHpu);
  layer->weight.set_requires_grad(false);
  const at::Tensor w = test::quantize_by_amax(layer->weight, 4).values, x = torch::randn({3, 16});
  torch::nn::Sequential model;
  model->push_back("q_proj", layer);
  const auto report = convert(*model, per_channel());
  EXPECT_EQ(report.converted.size(), 1u);
  EXPECT_EQ(report.skipped.size(), 2u);
  EXPECT_EQ(layer->weight.scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_EQ(layer->lora_A->weight.scalar_type(), at::kFloat);
  const at::Tensor y = layer->forward(hpu(x));
  const at::Tensor want = test::quantize_by_amax(x, 3).values.matmul(w.t()) + f64(layer->bias) +
                          f64(x).matmul(f64(layer->lora_A->weight).t()).matmul(f64(layer->lora_B->weight).t());
  EXPECT_LT(relative_error(y, want), 1e-5);
  y.sum().backward();
  EXPECT_GT(layer->lora_A->weight.grad().abs().max().item<double>(), 0);
}

TEST(ModuleTypes, ALoraLayerThatIsSetIsRefusedByName) {
  for (bool set : {false, true}) {
    LoRACompatibleLinear layer(8, 4);
    if (set) layer->register_module("lora_layer", torch::nn::Linear(8, 4));
    layer->to(test::kHpu);
    torch::nn::Sequential model;
    model->push_back("to_q", layer);
    if (set) {
      EXPECT_REFUSED(convert(*model, per_channel()), "to_q", "lora_layer");
      EXPECT_EQ(layer->weight.scalar_type(), at::kFloat) << "nothing is converted then";
    } else {
      EXPECT_EQ(convert(*model, per_channel()).converted.size(), 1u);
    }
  }
}

struct Experts {
  runtime::MixtureOfExperts moe{nullptr};
  std::vector<at::Tensor> w12, w3;  ///< f64, before quantization
  at::Tensor x, table, router;
  explicit Experts(at::ScalarType dtype) {
    torch::manual_seed(7);
    moe = runtime::MixtureOfExperts(
        runtime::MixtureOfExpertsOptions{.num_experts = 3, .hidden_size = 8, .intermediate_size = 6});
    for (auto& p : moe->parameters()) p.data().copy_(torch::randn(p.sizes()));
    moe->to(dtype);
    moe->to(test::kHpu);
    x = torch::randn({5, 8}).to(dtype);
    table = torch::tensor({{0, 1}, {1, 0}, {1, 0}, {0, 1}, {1, 0}}, at::kLong);  // expert 2 is idle
    router = torch::rand({5, 2}).to(dtype);
  }
  /// With weights through fp8 (rows: scales per channel or per tensor), the activations too if scales are given.
  at::Tensor reference(const std::vector<at::Tensor>& w12q, const std::vector<at::Tensor>& w3q, float hidden,
                       const std::vector<float>& intermediate, float max) const {
    at::Tensor y = torch::zeros({5, 8}, at::kDouble);
    const at::Tensor xv = test::quantize_reference(x, {hidden}, max).values;
    for (std::int64_t t = 0; t < 5; ++t)
      for (std::int64_t slot = 0; slot < 2; ++slot) {
        const auto e = static_cast<std::size_t>(table[t][slot].item<std::int64_t>());
        const auto parts = w12q[e].matmul(xv[t]).chunk(2, 0);
        const at::Tensor h = (at::silu(parts[0]) * parts[1]).to(at::kFloat);
        y[t] += f64(router)[t][slot] * w3q[e].matmul(test::quantize_reference(h, {intermediate[e]}, max).values);
      }
    return y;
  }
};

struct HolderImpl : torch::nn::Module {
  explicit HolderImpl(runtime::MixtureOfExperts m) { register_module("moe", std::move(m)); }
};
TORCH_MODULE(Holder);

TEST(ModuleTypes, ExpertsRunInFp8WithAScaleEach) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {  // bf16: the operator; f32: composed
    Experts e(dtype);
    std::vector<at::Tensor> w12, w3;
    for (int i = 0; i < 3; ++i) {
      w12.push_back(test::quantize_by_amax(e.moe->w13_list->ptr(i)->as<runtime::MoeMatmulImpl>()->weight, 1).values);
      w3.push_back(test::quantize_by_amax(e.moe->w2_list->ptr(i)->as<runtime::MoeMatmulImpl>()->weight, 1).values);
    }
    PlanOptions o{.activations = ActivationScaling::static_tensor, .measurements = measure::MeasurementFile{}};
    auto& modules = o.measurements->modules;
    modules.push_back({"moe", {{4.0f}}, std::vector<measure::Amax>{{9.0f}, {20.0f}, {40.0f}, {0.0f}}, std::nullopt});
    for (const std::string list : {"moe.w13_list.", "moe.w2_list."}) {
      for (const char* i : {"0", "1", "2"}) modules.push_back({list + i, {{0.0f}}, {}, {}});  // INC's placeholder
    }
    Holder model(e.moe);
    const auto report = convert(*model, o);
    EXPECT_EQ(report.converted.size(), 7u);
    ASSERT_FALSE(report.warnings.empty());
    EXPECT_THAT(report.warnings[0], HasSubstr("no token to expert 2"));
    const at::Tensor want = e.reference(w12, w3, 4.0f / 448, {20.0f / 448, 40.0f / 448, 40.0f / 448}, 448);
    const torch::NoGradGuard no_grad;
    const at::Tensor y = e.moe(hpu(e.x), hpu(e.table), hpu(e.router));
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(relative_error(y, want), dtype == at::kFloat ? 0.01 : 0.03)
        << "f32: an intermediate value beside a tie; bf16: one rounding of every step too";
    // Without the mixture's handler each expert's matrices answer for themselves, with the same scales.
    e.moe->slot()->handler = nullptr;
    EXPECT_LT(relative_error(e.moe(hpu(e.x), hpu(e.table), hpu(e.router)), want), 0.03);
  }
}

TEST(ModuleTypes, DynamicExpertsNeedNoMeasurement) {
  Experts e(at::kFloat);
  const torch::NoGradGuard no_grad;
  const at::Tensor plain = e.moe(hpu(e.x), hpu(e.table), hpu(e.router));
  Holder model(e.moe);
  EXPECT_EQ(convert(*model, per_channel()).converted.size(), 7u);
  const at::Tensor y = e.moe(hpu(e.x), hpu(e.table), hpu(e.router));
  EXPECT_FALSE(same_bits(y, plain));
  EXPECT_LT(relative_error(y, f64(plain)), 0.1);
}

TEST(ModuleTypes, QuantizeDequantizeEqualsTheFp8Product) {
  for (const char* mode : {"", R"(, "use_qdq": true)"}) {
    torch::manual_seed(8);
    torch::nn::Linear linear(32, 12);
    linear->to(at::kBFloat16);
    linear->to(test::kHpu);
    const at::Tensor w = linear->weight.detach().cpu().clone(), x = torch::rand({5, 32}).to(at::kBFloat16);
    torch::nn::Sequential model;
    model->push_back("m", linear);
    convert(*model, configured(std::string(R"({"scale_method": "maxabs_pow2")") + mode + "}", 1.0f));
    EXPECT_EQ(linear->weight.scalar_type(), at::kFloat8_e4m3fn);
    const torch::NoGradGuard no_grad;
    // amax 1 (amax of w: 0.18): scale_inv 2^-6 = 1 / (448 * .25) rounded up; of w 2^-10 = 0.18 / 224 rounded up.
    const at::Tensor wv = test::quantize_reference(w, {0x1p-10f}, 448).values,
                     xv = test::quantize_reference(x, {0x1p-6f}, 448).values;
    const at::Tensor want = xv.matmul(wv.t()) + f64(linear->bias);
    EXPECT_LE(((f64(linear(hpu(x))) - want).abs() / (want.abs() * 0.01 + 1e-3)).max().item<double>(), 1.0) << mode;
  }
}

TEST(ModuleTypes, FakeQuantizationTrainsTheWeight) {
  torch::manual_seed(9);
  torch::nn::Linear linear(16, 4);
  linear->to(test::kHpu);
  const at::Tensor before = linear->weight.detach().cpu().clone(), x = torch::randn({3, 16}), dy = torch::randn({3, 4});
  torch::nn::Sequential model;
  model->push_back("m", linear);
  model->push_back("conv", torch::nn::Conv2d(1, 1, 1));
  const auto report =
      convert(*model, configured(R"({"scale_method": "maxabs_pow2", "hp_dtype": "fp32", "fake_quant": true})",
                                 x.abs().max().item<float>()));
  ASSERT_EQ(report.skipped.size(), 1u);
  EXPECT_THAT(report.skipped[0].reason, HasSubstr("fake_quant"));
  EXPECT_TRUE(same_bits(linear->weight.detach(), before)) << "the weight keeps dtype and values";
  const auto pow2 = [](const at::Tensor& t, double backoff) {
    return static_cast<float>(std::exp2(std::ceil(std::log2(t.abs().max().item<double>() / (448 * backoff)))));
  };
  const at::Tensor wv = test::quantize_reference(before, {pow2(before, 0.5)}, 448).values,
                   xv = test::quantize_reference(x, {pow2(x, 0.25)}, 448).values;
  at::Tensor leaf = hpu(x).requires_grad_(true);
  const at::Tensor y = linear(leaf);
  EXPECT_LT(relative_error(y, xv.matmul(wv.t()) + f64(linear->bias)), 1e-6);
  y.backward(hpu(dy));
  EXPECT_LT(relative_error(leaf.grad(), f64(dy).matmul(wv)), 1e-6);
  ASSERT_TRUE(linear->weight.grad().defined());
  EXPECT_LT(relative_error(linear->weight.grad(), f64(dy).t().matmul(xv)), 1e-6);
  EXPECT_LT(relative_error(linear->bias.grad(), f64(dy).sum(0)), 1e-6);
}

TEST(ModuleTypes, E5m2WeightsAndActivations) {
  torch::manual_seed(10);
  torch::nn::Linear linear(torch::nn::LinearOptions(16, 4).bias(false));
  linear->to(test::kHpu);
  const at::Tensor w = linear->weight.detach().cpu().clone(), x = torch::randn({3, 16});
  torch::nn::Sequential model;
  model->push_back("m", linear);
  model->push_back("p", runtime::Matmul());
  PlanOptions o;
  o.config = test::quant_config(R"({"scale_method": "unit_scale", "hp_dtype": "fp32", "fp8_config": "E5M2"})");
  convert(*model, o);
  EXPECT_EQ(linear->weight.scalar_type(), at::kFloat8_e5m2);
  const auto values = [](const at::Tensor& t) {
    at::Tensor out = t.to(at::kDouble).clone();
    for (std::int64_t i = 0; i < t.numel(); ++i) {
      const int code = test::nearest_code(t.const_data_ptr<float>()[i], 57344.0f, test::e5m2_value);
      out.mutable_data_ptr<double>()[i] = test::e5m2_value(code);
    }
    return out;
  };
  const torch::NoGradGuard no_grad;
  EXPECT_LT(relative_error(linear(hpu(x)), values(x).matmul(values(w).t())), 1e-6);
  const at::Tensor b = torch::randn({16, 3});
  EXPECT_LT(relative_error(model[1]->as<runtime::MatmulImpl>()->forward(hpu(x), hpu(b)), values(x).matmul(values(b))),
            1e-6);
}

}  // namespace
}  // namespace fp8::quant
