// SPDX-License-Identifier: Apache-2.0
// Calibration as programs: observers, shapes, files in between. Ranks: tests/measure/calibration/files_test.cpp and
// shares_test.

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

struct Calibration : ::testing::Test {
  /// The arguments of a run over `samples`, with the keys of `json` as its config.
  Arguments arguments(io::Json json, const std::string& samples = "4") const {
    json["mode"] = json.value("mode", "MEASURE");
    json["dump_stats_path"] = "x/p";
    const auto config = folder_ / "config.json";
    write_file(config, json.dump());
    return args("measure --model $DEMO --data $CALIB --samples {} --seq-len 64 --batch 2 --config {} --out {}", samples,
                config, out());
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  io::Json json(const std::string& name) const { return io::read_json(out() / name); }
  std::vector<std::filesystem::path> backups() const {
    std::vector<std::filesystem::path> found;
    for (const auto& name : names_in(out()))
      if (name.rfind("backup_p_", 0) == 0) found.push_back(out() / name);
    return found;
  }
  test::TempDir folder_;
};

TEST_F(Calibration, ModeShapeWritesShapes) {
  expect_success(fp8(arguments({{"mode", "SHAPE"}, {"measure_exclude", "NONE"}})));
  EXPECT_THAT(names_in(out()), Contains("p_hooks_shape.npz"));
  const auto shapes = json("p_hooks_shape.json");
  EXPECT_EQ(shapes["Mode"], "Shape");
  const auto& node = shapes["Nodes"]["model.layers.0.self_attn.q_proj"];
  EXPECT_EQ(node["inputs"][0][0].size(), 3u);
  EXPECT_EQ(node["inputs"][0][0][0], 2);  // the last batch
  EXPECT_EQ(node["inputs"][0][0][1], 64);
  EXPECT_EQ(node["inputs"][0][0][2], node["params"]["weight"][0][1]);
}

TEST_F(Calibration, ThresholdsLieWithinTheMaxima) {
  expect_success(fp8(arguments({{"observer", "maxabs"}})));
  const auto maxima = json("p_hooks_maxabs.json")["Nodes"];
  for (const char* observer : {"percentile", "mse", "kl"}) {
    expect_success(fp8(arguments({{"observer", observer}})));
    const auto nodes = json(std::string("p_hooks_") + observer + ".json")["Nodes"];
    ASSERT_EQ(nodes.size(), maxima.size());
    int clipped = 0;
    for (const auto& [module, node] : nodes.items())
      for (std::size_t i = 0; i < node["inputs"].size(); ++i) {
        const double t = node["inputs"][i][0][0].get<double>(), amax = maxima[module]["inputs"][i][0][0].get<double>();
        EXPECT_LE(t, amax) << observer << module;
        clipped += t < amax;
      }
    EXPECT_GT(clipped, 5) << observer;
  }
}

TEST_F(Calibration, WhatWasWrittenInBetweenSurvivesTheHardestEnd) {
  auto process = start_fp8(arguments({{"calibration_sample_interval", 4}}, "4000"));
  wait_for([&] { return std::filesystem::exists(out() / "p_hooks_maxabs_mod_list.json"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.send(SIGKILL);
  EXPECT_EQ(process.wait().code, -SIGKILL);
  const auto samples = json("p_hooks_maxabs.json")["NumSamples"].get<std::int64_t>();
  EXPECT_GE(samples, 4);
  EXPECT_LT(samples, 4000);
  EXPECT_THAT(backups(), IsEmpty());
}

// Every observer from the first command to the last: measure -> quantize -> evaluate, by QUANT_CONFIG and by fp8
// measure and fp8 quantize. What an observer finds must serve: its model is hardly further from the original than that
// of maxabs.

constexpr const char* kObservers[] = {"maxabs", "maxabs_per_channel", "histogram", "percentile", "mse", "kl"};
constexpr double kAllowed = 1.35;  // KL, over that of maxabs

/// One model, each observer's measurements of it in a folder of their own.
class Subject {
 public:
  Subject(std::string model, std::string calibration, std::string heldout)
      : model_(std::move(model)), calibration_(std::move(calibration)), heldout_(std::move(heldout)) {}

  std::string config(const std::string& observer, io::Json keys) const {
    keys["observer"] = observer;
    keys["dump_stats_path"] = (folder_ / observer / "inc_output").string();
    const auto path = folder_ / (observer + ".json");
    write_file(path, keys.dump());
    return path.string();
  }
  std::string stats(const std::string& observer) const { return (folder_ / observer).string(); }

  void measure_on_the_way(const std::string& observer) const {
    const std::string path = config(observer, {{"mode", "MEASURE"}});
    json_of(
        fp8(args("evaluate --json --model {} --data {} --samples 4", model_, calibration_), {{"QUANT_CONFIG", path}}));
  }
  void measure_explicitly(const std::string& observer) const {
    const std::string path = config(observer, {{"mode", "MEASURE"}});
    json_of(fp8("measure --json --model {} --data {} --samples 4 --config {} --out {}", model_, calibration_, path,
                stats(observer)));
  }
  double kl_on_load(const std::string& observer, const io::Json& keys) const {
    return kl(model_, {{"QUANT_CONFIG", config(observer, keys)}});
  }
  double kl_of_checkpoint(const Arguments& more) const {
    Arguments arguments = args("quantize --json --model {} --out {} --overwrite {}", model_, folder_ / "fp8", more);
    json_of(fp8(arguments));
    return kl((folder_ / "fp8").string(), {});
  }
  test::Run quantize(const Arguments& more) const {
    return fp8("quantize --json --model {} --out {} {}", model_, folder_ / "refused", more);
  }
  test::Run evaluate(const Environment& environment) const {
    return fp8(
        args("evaluate --json --model {} --reference {} --data {} --samples 1 --seq-len 256", model_, model_, heldout_),
        environment);
  }
  const test::TempDir& folder() const { return folder_; }

 private:
  double kl(const std::string& model, const Environment& environment) const {
    return json_of(fp8(args("evaluate --json --model {} --reference {} --data {} --samples 8 --seq-len 256", model,
                            model_, heldout_),
                       environment))
        .value("kl", 1e9);
  }

  std::string model_, calibration_, heldout_;
  test::TempDir folder_;
};

/// Schemes of a config: whole models on load, with attention and caches; weights only in a checkpoint.
const std::vector<io::Json> kSchemes = {{{"mode", "QUANTIZE"}},
                                        {{"mode", "QUANTIZE"},
                                         {"scale_method", "maxabs_arbitrary"},
                                         {"scale_params", {{"input_backoff", 1}, {"weight_backoff", 1}}}}};
const io::Json kLinear = {{"mode", "QUANTIZE"},
                          {"scale_method", "maxabs_pow2"},
                          {"allowlist", {{"types", {"Linear"}}}},
                          {"blocklist", {{"names", {"lm_head"}}}}};

void expect_close_to_maxabs(const std::string& scheme, const std::map<std::string, double>& kl) {
  const double maxabs = kl.at("maxabs");
  EXPECT_GT(maxabs, 1e-6) << scheme;
  for (const auto& [observer, value] : kl) EXPECT_LE(value, kAllowed * maxabs) << scheme << ", " << observer;
  for (const char* same : {"maxabs_per_channel", "histogram"}) {  // the largest value of each tensor, all of them
    if (kl.count(same) != 0) {
      EXPECT_EQ(kl.at(same), maxabs) << scheme << ", " << same;
    }
  }
}

void expect_all_serve(const Subject& s, const std::vector<std::string>& observers) {
  std::map<std::string, std::map<std::string, double>> kl;  // by scheme and observer
  for (const auto& observer : observers) {
    SCOPED_TRACE(observer);
    s.measure_on_the_way(observer);
    for (const auto& scheme : kSchemes) kl["on load, " + scheme.dump()][observer] = s.kl_on_load(observer, scheme);
    s.measure_explicitly(observer);
    kl["--config"][observer] = s.kl_of_checkpoint({"--config", s.config(observer, kLinear)});
    for (const char* granularity : {"tensor", "channel"})
      kl[std::string("--scheme ") + granularity][observer] =
          s.kl_of_checkpoint({"--measurements", s.stats(observer), "--scheme", granularity});
  }
  for (const auto& [scheme, values] : kl) expect_close_to_maxabs(scheme, values);
}

/// The demo model with activations that stand out 64 times: of one channel in front of attention and MLP, and of one
/// neuron of each MLP. What reads them is divided by as much (powers of two: exact in bf16), so that the model computes
/// what it did.
class OutlierModel : public Model {
 public:
  OutlierModel() : tensors_(Tensors::read(path() / "model.safetensors")) {
    const io::Json header = tensors_.header;
    for (const auto& item : header.items()) {
      const std::string end = "input_layernorm.weight", name = item.key();
      if (name.size() <= end.size() || name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
      const std::string layer = name.substr(0, name.size() - end.size());
      channel(layer + "input_layernorm",
              {layer + "self_attn.q_proj", layer + "self_attn.k_proj", layer + "self_attn.v_proj"});
      channel(layer + "post_attention_layernorm", {layer + "mlp.gate_proj", layer + "mlp.up_proj"});
      scale(layer + "mlp.up_proj.weight", kChannel, std::nullopt, kPower);
      scale(layer + "mlp.down_proj.weight", std::nullopt, kChannel, -kPower);
      ++layers_;
    }
    write("model.safetensors", tensors_.bytes());
  }
  int layers() const { return layers_; }

 private:
  static constexpr std::int64_t kChannel = 3;
  static constexpr int kPower = 6;

  void channel(const std::string& norm, const std::vector<std::string>& readers) {
    scale(norm + ".weight", kChannel, std::nullopt, kPower);
    for (const auto& reader : readers) scale(reader + ".weight", std::nullopt, kChannel, -kPower);
  }
  /// Multiplies a row (of a vector: an element) or a column of a bf16 tensor by 2^power.
  void scale(const std::string& tensor, std::optional<std::int64_t> row, std::optional<std::int64_t> column,
             int power) {
    const auto shape = tensors_.header.at(tensor).at("shape").get<std::vector<std::int64_t>>();
    const std::int64_t rows = shape[0], columns = shape.size() > 1 ? shape[1] : 1;
    ASSERT_EQ(tensors_.header.at(tensor).at("dtype"), "BF16");
    auto* bytes = tensors_.data.data() + tensors_.begin(tensor);
    for (std::int64_t r = row.value_or(0); r < (row ? *row + 1 : rows); ++r)
      for (std::int64_t c = column.value_or(0); c < (column ? *column + 1 : columns); ++c) {
        std::uint16_t bf16 = 0;
        std::memcpy(&bf16, bytes + 2 * (r * columns + c), 2);
        const int exponent = (bf16 >> 7) & 0xff;
        if (exponent == 0) continue;  // zeros; there are no subnormals in it
        bf16 = static_cast<std::uint16_t>((bf16 & 0x807f) | ((exponent + power) << 7));
        std::memcpy(bytes + 2 * (r * columns + c), &bf16, 2);
      }
  }

  Tensors tensors_;
  int layers_ = 0;
};

TEST(Observers, ClippingOnesServeAModelWithOutliers) {
  const OutlierModel model;
  ASSERT_GT(model.layers(), 1);
  const auto same =
      json_of(fp8("evaluate --json --model {} --reference $DEMO --data $HELDOUT --samples 2 --seq-len 256 --dtype f32",
                  model.name()));
  EXPECT_LT(same.value("kl", 1e9), 1e-6) << "the same function";
  const Subject subject(model.name(), calibration_text(), heldout_text());
  expect_all_serve(subject, {"maxabs", "percentile", "mse", "kl"});
  const auto amax = [&](const std::string& observer) {
    const auto file =
        io::read_json(std::filesystem::path(subject.stats(observer)) / ("inc_output_hooks_" + observer + ".json"));
    return file["Nodes"]["model.layers.1.mlp.down_proj"]["inputs"][0][0][0].get<double>();
  };
  EXPECT_LE(amax("percentile"), amax("maxabs"));
}

TEST(Observers, ShapeAndSaveEndInARefusalThatNamesThem) {
  const Subject s(demo_model(), calibration_text(), heldout_text());
  for (const std::string observer : {"shape", "save"}) {
    SCOPED_TRACE(observer);
    s.measure_explicitly(observer);
    const std::string config = s.config(observer, {{"mode", "QUANTIZE"}});
    const std::string key = "key 'observer': found \"" + observer + "\"",
                      file = "measurements: found those of observer '" + observer + "'";
    expect_refused(s.evaluate({{"QUANT_CONFIG", config}}), {key, "maxabs"});
    expect_refused(s.quantize({"--config", config}), {key});
    expect_refused(s.quantize({"--measurements", s.stats(observer)}), {file, "measure with maxabs"});
    expect_refused(s.quantize({"--dynamic", "--kv-cache", "fp8", "--measurements", s.stats(observer)}), {file});
    write_file(s.folder() / "other.json", R"({"mode": "QUANTIZE"})");  // it names no observer
    expect_refused(s.quantize({"--config", (s.folder() / "other.json").string(), "--measurements", s.stats(observer)}),
                   {file});
    EXPECT_FALSE(std::filesystem::exists(s.folder() / "refused"));
  }
}

TEST(Observers, EveryOneServesFromMeasuringToEvaluating) {
  expect_all_serve({demo_model(), calibration_text(), heldout_text()}, {std::begin(kObservers), std::end(kObservers)});
}

}  // namespace
}  // namespace fp8::e2e
