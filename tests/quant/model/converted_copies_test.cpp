// SPDX-License-Identifier: Apache-2.0
// Copies of real conversions: scales per tensor, channel and block go along with all of a weight, activations' scales
// stay where they are, and a part of a weight is copied only where its scale is one number.

#include "configs/quant_config_text.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/intercept/tag_operators.h"
#include "fp8/runtime/modules/op_modules.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

/// A converted [48, 32] layer; its weights are `size` times as large as usual.
torch::nn::Linear converted(Granularity granularity, double size, std::uint64_t seed,
                            ActivationScaling activations = ActivationScaling::none) {
  torch::manual_seed(seed);
  torch::nn::Sequential model{{{"proj", torch::nn::Linear(32, 48)}}};
  auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->children()[0]);
  const torch::NoGradGuard no_grad;
  layer->weight.mul_(size * (1 + torch::arange(48).unsqueeze(1)));
  model->to(test::kHpu);
  PlanOptions o{.activations = activations, .weights = granularity};
  if (granularity == Granularity::block) o.block = {16, 16};
  if (activations == ActivationScaling::static_tensor) {
    const auto session = measure::CalibrationSession::attach(*model, {});
    model->forward(torch::randn({8, 32}, test::on_hpu()) * size);
    session->finalize();
    o.measurements = session->result();
  }
  convert(*model, o);
  return torch::nn::Linear(layer);
}

at::Tensor input() { return torch::linspace(-1, 1, 64, test::on_hpu()).view({2, 32}); }
constexpr Granularity kAll[] = {Granularity::tensor, Granularity::channel, Granularity::block};

TEST(ConvertedCopies, AStateDictBringsItsScales) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll)
    for (const bool by_host : {false, true}) {
      auto from = converted(granularity, 1, 1), to = converted(granularity, 98, 2);
      const at::Tensor expected = from(input());
      for (const auto& item : from->named_parameters())
        to->named_parameters()[item.key()].copy_(by_host ? item.value().cpu() : item.value());
      EXPECT_TRUE(same_bits(to(input()), expected)) << name_of(granularity) << by_host;
      EXPECT_TRUE(same_bits(runtime::dequantize(to->weight), runtime::dequantize(from->weight)));
      EXPECT_TRUE(same_bits(from(input()), expected));
    }
}

/// Multiplies until its codes lie packed (runtime/device/block.h).
void use(torch::nn::Linear& layer) {
  serve(*layer);
  const auto packed = [&] {
    const auto* order = runtime::block_of(layer->weight)->order.load();
    return order != nullptr && order->packed;
  };
  for (int i = 0; i < 100 && !packed(); ++i) layer(input());
  ASSERT_TRUE(packed());
}

TEST(ConvertedCopies, OnlyServedWeightsArePacked) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(Granularity::channel, 1, 1);
  for (int i = 0; i < 50; ++i) layer(input());
  EXPECT_NE(layer->weight.const_data_ptr(), nullptr);
  EXPECT_EQ(serve(*layer), 1u);
  for (int i = 0; i < 50; ++i) layer(input());
  EXPECT_REFUSED(layer->weight.const_data_ptr(), "lie packed for products");
  EXPECT_EQ(serve(*torch::nn::Linear(4, 4)), 0u);
}

TEST(ConvertedCopies, OfAWeightInUseAreTheSame) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    SCOPED_TRACE(name_of(granularity));
    auto from = converted(granularity, 1, 1), to = converted(granularity, 98, 2), loaded = converted(granularity, 1, 1);
    const at::Tensor expected = from(input()), values = runtime::dequantize(from->weight).cpu(),
                     bytes = from->weight.view(at::kByte).cpu();
    use(from);
    EXPECT_TRUE(same_bits(from(input()), expected));
    use(to);
    to->weight.copy_(from->weight);
    to->bias.copy_(from->bias);
    EXPECT_TRUE(same_bits(to(input()), expected));
    use(from);
    EXPECT_TRUE(same_bits(from->weight.view(at::kByte).clone(), bytes));
    use(from);
    EXPECT_TRUE(same_bits(runtime::dequantize(from->weight), values));
    use(from);
    EXPECT_TRUE(same_bits(runtime::values_of_weight(from->weight.narrow(0, 5, 3)).cpu(), values.narrow(0, 5, 3)));
    use(from);
    std::stringstream stream;
    torch::save(from, stream);
    use(loaded);
    torch::load(loaded, stream);
    EXPECT_TRUE(same_bits(loaded(input()), expected));
    use(from);
    EXPECT_TRUE(same_bits(at::linear(input(), from->weight.t().t(), from->bias), expected));
    use(from);
    from->to(at::kCPU);
    EXPECT_TRUE(same_bits(from->weight.view(at::kByte), bytes));
    from->to(test::kHpu);
    EXPECT_TRUE(same_bits(from(input()), expected));
  }
}

TEST(ConvertedCopies, AWeightInUseServesOtherProducts) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(Granularity::channel, 1, 1);
  const at::Tensor many = torch::randn({100, 32}, test::on_hpu()), expected = layer(many);
  use(layer);
  EXPECT_TRUE(same_bits(layer(many), expected));
  const at::Tensor part = at::linear(many, layer->weight.narrow(0, 16, 16), layer->bias.narrow(0, 16, 16));
  EXPECT_TRUE(same_bits(part, expected.narrow(1, 16, 16)));
}

TEST(ConvertedCopies, TheActivationsScaleStays) {
  const torch::NoGradGuard no_grad;
  auto from = converted(Granularity::tensor, 1, 1, ActivationScaling::static_tensor),
       to = converted(Granularity::tensor, 98, 2, ActivationScaling::static_tensor);
  const auto handler = [](const torch::nn::Linear& l) {
    return dynamic_cast<const Fp8Handler*>(runtime::find_tag(l->weight)->handler.get());
  };
  const float its = handler(from)->scheme().input_scale_inv, mine = handler(to)->scheme().input_scale_inv;
  ASSERT_NE(its, mine);
  to->weight.copy_(from->weight);
  EXPECT_EQ(handler(to)->scheme().input_scale_inv, mine);
  EXPECT_EQ(handler(from)->scheme().input_scale_inv, its);
  EXPECT_TRUE(same_bits(runtime::dequantize(to->weight), runtime::dequantize(from->weight)));
}

TEST(ConvertedCopies, AnotherScaleMovesNoCopy) {
  const torch::NoGradGuard no_grad;
  auto layer = converted(Granularity::tensor, 1, 1);
  const at::Tensor expected = layer(input()), values = runtime::dequantize(layer->weight);
  const at::Tensor host = layer->weight.cpu(), clone = layer->weight.clone();
  dynamic_cast<Fp8Handler&>(*runtime::find_tag(layer->weight)->handler).set_weight_scale_inv(3.0f);
  EXPECT_TRUE(same_bits(runtime::dequantize(clone), values));
  EXPECT_TRUE(same_bits(runtime::dequantize(host), values.cpu()));
  layer->weight.copy_(host);
  EXPECT_TRUE(same_bits(layer(input()), expected));
}

TEST(ConvertedCopies, BetweenGranularitiesThrow) {
  const torch::NoGradGuard no_grad;
  for (const auto a : kAll)
    for (const auto b : kAll) {
      if (a == b) continue;
      auto from = converted(a, 1, 1), to = converted(b, 1, 2);
      const at::Tensor expected = to(input());
      EXPECT_REFUSED(to->weight.copy_(from->weight), "[copy]", "module 'proj'", "same scales", "before converting")
          << name_of(a) << " -> " << name_of(b);
      EXPECT_TRUE(same_bits(to(input()), expected));
    }
}

TEST(ConvertedCopies, OfPartsNeedOneScale) {
  for (const auto granularity : kAll) {
    const auto layer = converted(granularity, 1, 1);
    const at::Tensor w = layer->weight.detach(), values = runtime::dequantize(w);
    const bool one = granularity == Granularity::tensor;
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> parts = {
        [](const at::Tensor& t) { return t.narrow(0, 16, 8).clone(); },
        [](const at::Tensor& t) { return t.chunk(2, 1)[1].contiguous(); },
        [](const at::Tensor& t) { return t[3].clone(); }, [](const at::Tensor& t) { return t.diagonal().clone(); }};
    for (const auto& part : parts) {
      if (one) {
        EXPECT_TRUE(same_bits(runtime::dequantize(part(w)), part(values)));
      } else {
        EXPECT_REFUSED(part(w), "[copy]", "module 'proj'", "fp8::dequantize") << name_of(granularity);
      }
    }
    const at::Tensor flat = w.flatten().clone(), turned = w.t().clone();  // all of it, in its order
    EXPECT_TRUE(same_bits(runtime::dequantize(flat.view({48, 32})), values)) << name_of(granularity);
    EXPECT_TRUE(same_bits(runtime::dequantize(turned), values.t())) << name_of(granularity);
    EXPECT_TRUE(same_bits(runtime::dequantize(w.t().cpu().to(test::kHpu)), values.t())) << name_of(granularity);
  }
}

TEST(ConvertedCopies, PartsAreWrittenWhereTheirScalesAreTheSame) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    auto a = converted(granularity, 1, 1), same = converted(granularity, 1, 1), other = converted(granularity, 98, 2);
    const at::Tensor values = runtime::dequantize(a->weight);
    a->weight.narrow(0, 0, 16).copy_(same->weight.narrow(0, 0, 16));
    EXPECT_TRUE(same_bits(runtime::dequantize(a->weight), values));
    EXPECT_REFUSED(a->weight.narrow(0, 0, 16).copy_(other->weight.narrow(0, 0, 16)), "[copy]", "module 'proj'");
    if (granularity != Granularity::tensor) {
      EXPECT_REFUSED(a->weight.narrow(0, 0, 16).copy_(same->weight.narrow(0, 16, 16)), "[copy]", "module 'proj'");
    }
    EXPECT_TRUE(same_bits(runtime::dequantize(a->weight), values));
  }
}

TEST(ConvertedCopies, ArchivesAndHostCopiesOfModels) {
  const torch::NoGradGuard no_grad;
  for (const auto granularity : kAll) {
    auto a = converted(granularity, 1, 1), same = converted(granularity, 1, 1), other = converted(granularity, 98, 1);
    const at::Tensor expected = a(input());
    std::stringstream stream;
    torch::save(a, stream);
    const std::string bytes = stream.str();
    std::stringstream one(bytes), two(bytes);
    torch::load(same, one);
    EXPECT_TRUE(same_bits(same(input()), expected));
    EXPECT_REFUSED(torch::load(other, two), "[set_]", "module 'proj'", "same scales") << name_of(granularity);
    a->to(at::kCPU);
    EXPECT_REFUSED(a->to(at::kFloat), "module 'proj'");
    a->to(test::kHpu);
    EXPECT_TRUE(same_bits(a(input()), expected)) << name_of(granularity);
  }
}

// QUANT_CONFIG in memory, with its files: scales are stored, fresh ones used, stale ones made again.

struct ModelImpl : torch::nn::Module {
  torch::nn::Linear proj = register_module("proj", torch::nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)));
  runtime::Matmul product = register_module("product", runtime::Matmul());
  explicit ModelImpl(float size = 1.0f) {
    torch::manual_seed(1);
    proj->weight.data().copy_(torch::randn({4, 8}) * size);
    to(test::kHpu);
  }
};
TORCH_MODULE(Model);

struct Files {
  test::TempDir dir;
  std::string prefix = (dir.path() / "stats").string();
  explicit Files(float amax = 3.0f) { measured(amax); }
  void measured(float amax) const {
    measure::MeasurementFile f{.modules = {{"proj", {{amax}}, std::nullopt, std::nullopt},
                                           {"product", {{amax}, {amax}}, std::nullopt, std::nullopt}},
                               .selected = {"proj", "product"}};
    measure::write_measurements(prefix, f);
  }
  configs::QuantConfig config(const std::string& method, const std::string& more = "") const {
    return test::quant_config(R"({"hp_dtype": "fp32", "dump_stats_path": ")" + prefix + R"(", "scale_method": )" +
                              method + more + "}");
  }
  measure::StatsName name(const std::string& method) const { return {prefix, "maxabs", method, std::nullopt}; }
};

ConversionReport convert_for(const Model& m, const configs::QuantConfig& config,
                             recipes::Dialect device = recipes::Dialect::gaudi2) {
  return convert_with_config(*m, config, device);
}

float input_scale(const Model& m) {
  return dynamic_cast<const Fp8Handler&>(*runtime::find_tag(m->proj->weight)->handler).scheme().input_scale_inv;
}

bool mentions(const ConversionReport& report, const std::string& text) {
  for (const auto& w : report.warnings)
    if (w.find(text) != std::string::npos) return true;
  return false;
}

struct ConfigConvert : ::testing::Test {
  const Files files;
};

TEST_F(ConfigConvert, ScalesAreStoredInIncsForm) {
  Model model;
  EXPECT_EQ(convert_for(model, files.config("\"maxabs_pow2\"")).converted.size(), 2u);
  const ScaleFile stored = read_scales(files.name("MAXABS_POW2"));
  const auto* proj = stored.find("proj");
  ASSERT_NE(proj, nullptr);
  EXPECT_EQ(proj->inputs[0].values, std::vector<float>{0x1p-4f});  // 3 / 60 = 0.05
  EXPECT_EQ(proj->inputs[0].values[0], input_scale(model));
  const float w = proj->weight->values[0];
  EXPECT_EQ(w,
            std::exp2(std::ceil(std::log2(ModelImpl().proj->weight.detach().cpu().abs().max().item<float>() / 120))));
  EXPECT_EQ(proj->outputs[0].values, std::vector<float>{0x1p-4f * w});
  EXPECT_EQ(stored.find("product")->inputs.size(), 2u);
  EXPECT_EQ(stored.find("product")->outputs[0].values, std::vector<float>{0x1p-8f});
}

TEST_F(ConfigConvert, FilesOfEveryObserverQuantizeTheirModelAndNoOther) {
  for (const std::string observer : {"maxabs", "maxabs_per_channel", "histogram", "percentile", "mse", "kl"}) {
    SCOPED_TRACE(observer);
    const test::TempDir dir;
    const io::Json json = {{"hp_dtype", "fp32"},
                           {"observer", observer},
                           {"dump_stats_path", (dir / "s").string()},
                           {"allowlist", {{"types", {"Linear"}}}}};
    const auto config = configs::parse_quant_config(json, "q.json");
    Model measured, model, other(3.0f);
    const auto session = measure::CalibrationSession::attach(
        *measured, measure::calibration_options(config, recipes::Dialect::gaudi2, {}).options);
    measured->proj(hpu(torch::randn({64, 8})));
    session->finalize();
    EXPECT_EQ(convert_for(model, config).converted.size(), 1u);
    // Its weight is three times as large: no threshold is above it.
    EXPECT_REFUSED(convert_for(other, config), "proj", "another model");
  }
}

TEST_F(ConfigConvert, ObserversWithoutAnAmaxAreRefusedByTheirNames) {
  for (const std::string observer : {"shape", "save"}) {
    const Files files;  // of maxabs, under the same prefix
    Model model;
    const auto config = files.config("\"maxabs_hw\"", R"(, "observer": ")" + observer + "\"");
    EXPECT_REFUSED(convert_for(model, config), "key 'observer': found \"" + observer + "\"",
                   "allowed where scales are made");
    EXPECT_EQ(
        convert_for(model, files.config("\"unit_scale\"", R"(, "observer": ")" + observer + "\"")).converted.size(), 2u)
        << "nothing is read";
  }
}

TEST_F(ConfigConvert, AnEmptyPathIsAnErrorOnlyWhereAFileIsRead) {
  const auto config = [](const std::string& keys) {
    return test::quant_config(R"({"dump_stats_path": "")" + keys + "}");
  };
  Model model, fixed, dynamic;
  EXPECT_REFUSED(convert_for(model, config("")), "key 'dump_stats_path': found \"\"", "MAXABS_HW reads measurements");
  EXPECT_EQ(convert_for(fixed, config(R"(, "scale_method": "unit_scale")")).converted.size(), 2u);
  EXPECT_EQ(convert_for(dynamic, config(R"(, "scale_method": "maxabs_pcs_pow2", "dynamic_quantization": true)"))
                .converted.size(),
            2u);
}

TEST_F(ConfigConvert, ChannelScalesAreStoredAsLists) {
  Model model;
  convert_for(model, files.config("\"act_maxabs_pow2_weights_pcs_maxabs_pow2\""));
  const ScaleFile stored = read_scales(files.name("ACT_MAXABS_POW2_WEIGHTS_PCS_MAXABS_POW2"));
  EXPECT_EQ(stored.find("proj")->weight->values.size(), 4u);
  EXPECT_EQ(stored.find("proj")->weight->in, std::vector<float>(8, 1.0f));
  EXPECT_EQ(stored.find("proj")->outputs[0].values.size(), 4u);
}

TEST_F(ConfigConvert, AStaleScaleFileNeverWins) {
  const auto config = files.config("\"maxabs_pow2\"");
  Model first;
  convert_for(first, config);
  Model again;
  EXPECT_TRUE(convert_for(again, config).warnings.empty()) << "fresh";
  EXPECT_EQ(input_scale(again), 0x1p-4f);
  files.measured(300.0f);  // measured anew: 100 times as large
  Model measured_again;
  const auto report = convert_for(measured_again, config);
  EXPECT_EQ(input_scale(measured_again), 8.0f);  // 300 / 60 = 5
  EXPECT_FALSE(report.warnings.empty());
  EXPECT_EQ(read_scales(files.name("MAXABS_POW2")).find("proj")->inputs[0].values[0], 8.0f) << "and the file is mended";
  Model other(4.0f);
  EXPECT_FALSE(convert_for(other, config).warnings.empty()) << "other weights";
  Model target;
  EXPECT_FALSE(convert_with_config(*target, config, recipes::Dialect::gaudi3).warnings.empty()) << "another device";
}

TEST_F(ConfigConvert, AnotherToolsScalesAreUsedUnlessRecalculated) {
  ScaleFile foreign{
      .modules = {{"proj", {StoredScale::of(0.5f)}, {StoredScale::of(0.125f)}, StoredScale::of(0.25f)},
                  {"product", {StoredScale::of(0.5f), StoredScale::of(0.5f)}, {StoredScale::of(0.25f)}, std::nullopt}}};
  write_scales(files.name("MAXABS_POW2"), foreign);
  Model model;
  const auto report = convert_for(model, files.config("\"maxabs_pow2\""));
  EXPECT_EQ(input_scale(model), 0.5f);
  EXPECT_EQ(dynamic_cast<const Fp8Handler&>(*runtime::find_tag(model->proj->weight)->handler)
                .weight_scale_inv()
                .item<float>(),
            0.25f);
  EXPECT_EQ(dynamic_cast<const NodeHandler&>(*model->product->handler()).scheme().input_scale_inv,
            (std::vector<float>{0.5f, 0.5f}));
  EXPECT_TRUE(mentions(report, "MAXABS_POW2"));
  Model recalculated;
  convert_for(recalculated, files.config("\"maxabs_pow2\"", R"(, "recalc_scales": true)"));
  EXPECT_EQ(input_scale(recalculated), 0x1p-4f);
}

TEST_F(ConfigConvert, ModeLoadTakesScalesWithoutMeasurements) {
  Model model;
  const auto config = files.config("\"maxabs_pow2\"");
  convert_for(model, config);
  for (const char* end : {"_hooks_maxabs.json", "_hooks_maxabs.npz"}) std::filesystem::remove(files.prefix + end);
  Model loaded;
  convert_for(loaded, files.config("\"maxabs_pow2\"", R"(, "mode": "LOAD")"));
  const at::Tensor x = hpu(torch::randn({3, 8}));
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(same_bits(loaded->proj(x), model->proj(x)));
  Model missing;
  EXPECT_REFUSED(convert_for(missing, files.config("\"maxabs_hw\"", R"(, "mode": "LOAD")")), "MAXABS_HW", "LOAD");
  EXPECT_EQ(missing->proj->weight.scalar_type(), at::kFloat);
}

TEST_F(ConfigConvert, ScaleFormatsGiveEqualResults) {
  const at::Tensor x = torch::randn({3, 8});
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> results;
  for (const char* format : {"SCALAR", "CONST"}) {
    Model model;
    convert_with_config(*model, files.config("\"maxabs_hw\"", std::string(R"(, "scale_format": ")") + format + "\""),
                        recipes::Dialect::gaudi2);
    results.push_back(model->proj(hpu(x)));
  }
  EXPECT_TRUE(same_bits(results[0], results[1]));
}

TEST_F(ConfigConvert, FixedAndDynamicMethodsTouchNoFile) {
  const test::TempDir dir;
  const std::string prefix = (dir.path() / "none" / "stats").string();
  for (const char* keys :
       {R"("scale_method": "unit_scale")", R"("scale_method": "maxabs_pow2", "dynamic_quantization": true)"}) {
    Model model;
    const auto config = test::quant_config(R"({"dump_stats_path": ")" + prefix + "\", " + keys + "}");
    EXPECT_EQ(convert_for(model, config).converted.size(), 2u);
  }
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "none"));
}

struct Variable {
  const char* name;
  Variable(const char* n, const std::string& value) : name(n) { setenv(n, value.c_str(), 1); }
  ~Variable() { unsetenv(name); }
};

TEST_F(ConfigConvert, ScalesCanBePatchedAtRunTime) {
  const Variable patching("RUNTIME_SCALE_PATCHING", "1");
  Model channels;
  EXPECT_REFUSED(convert_for(channels, files.config("\"act_maxabs_pow2_weights_pcs_maxabs_pow2\"")),
                 "RUNTIME_SCALE_PATCHING");
  Model model;
  convert_for(model, files.config("\"maxabs_pow2\""));
  const at::Tensor x = torch::full({1, 8}, 1000.0f);  // far beyond the measured 3
  const torch::NoGradGuard no_grad;
  const at::Tensor saturated = model->proj(hpu(x)).cpu();
  set_scale(*model, "proj", ScaleOf::input, 0, 8.0f);
  const at::Tensor y = model->proj(hpu(x)).cpu(), want = x.matmul(ModelImpl().proj->weight.detach().cpu().t());
  EXPECT_GT((saturated - want).norm().item<double>(), 10 * (y - want).norm().item<double>());
  EXPECT_LT(((y - want).norm() / want.norm()).item<double>(), 0.1);
  set_scale(*model, "product", ScaleOf::input, 1, 2.0f);
  EXPECT_EQ(dynamic_cast<const NodeHandler&>(*model->product->handler()).scheme().input_scale_inv[1], 2.0f);
  EXPECT_REFUSED(set_scale(*model, "produkt", ScaleOf::input, 0, 1.0f), "no module 'produkt', did you mean 'product'?");
  EXPECT_REFUSED(set_scale(*model, "proj", ScaleOf::input, 0, -1.0f), "proj");
  EXPECT_REFUSED(set_scale(*model, "product", ScaleOf::weight, 0, 1.0f), "product");
}

TEST_F(ConfigConvert, TheMethodOfEveryModuleIsDumped) {
  const std::string path = (files.dir.path() / "methods.json").string();
  const Variable dump("SCALE_METHOD_CONFIG_DUMP_PATH", path);
  Model model;
  convert_for(model, files.config("\"maxabs_pow2\""));
  for (const char* word : {"proj", "product", "POW2", "MAXABS"}) EXPECT_THAT(read_file(path), HasSubstr(word));
}

TEST_F(ConfigConvert, MissingMeasurementsAreNamed) {
  const test::TempDir dir;
  Model model;
  const std::string prefix = (dir.path() / "stats").string();
  const auto config = test::quant_config(R"({"dump_stats_path": ")" + prefix + R"("})");
  EXPECT_REFUSED(convert_for(model, config), "stats_hooks_maxabs");
  EXPECT_EQ(model->proj->weight.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace fp8::quant
