// SPDX-License-Identifier: Apache-2.0
// fp8 run: what it writes equals what the model returns, modules go into fp8 as they were measured, and what is
// refused.
#include <torch/script.h>
#include <torch/torch.h>

#include "e2e/e2e.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::commands {
namespace {

using torch::jit::Module;

using e2e::fp8;

struct RunCommand : ::testing::Test {
  Module linear() {
    Module m("Linear");
    m.register_attribute("training", c10::BoolType::get(), false);
    m.register_parameter("weight", torch::randn({6, 4}), /*is_buffer=*/false);
    m.define("def forward(self, x):\n  return torch.linear(x, self.weight)\n");
    return m;
  }
  /// Two Linears, of which forward calls one, and a product of activations.
  std::string model() {
    torch::manual_seed(1);
    Module m("M");
    m.register_attribute("training", c10::BoolType::get(), false);
    m.register_module("used", linear());
    m.register_module("never", linear());
    m.define(R"(
def forward(self, x, twice: bool=False):
    y = self.used.forward(x)
    if x.dim() == 7:
        y = self.never.forward(x)
    if twice:
        y = y + y
    return y, torch.matmul(y.unsqueeze(-1), y.unsqueeze(-2)).sum()
)");
    m.save((folder / "m.pt").string());
    module = m;
    return (folder / "m.pt").string();
  }
  std::string inputs(std::int64_t samples) {
    torch::manual_seed(2);
    x = torch::randn({samples, 4});
    io::SafetensorsWriter writer(folder / "in.safetensors", {{"x", io::DType::F32, {samples, 4}}});
    writer.write("x", x.const_data_ptr());
    writer.commit();
    return (folder / "in.safetensors").string();
  }
  at::Tensor output(const std::string& name) {
    const io::SafetensorsFile file(folder / "out.safetensors");
    const auto* info = file.find(name);
    EXPECT_NE(info, nullptr) << name;
    at::Tensor t = torch::empty(info->shape);
    file.read(*info, t.mutable_data_ptr());
    return t;
  }
  test::Run run(std::vector<std::string> more) {
    return fp8("run --json --overwrite --out {} {}", folder / "out.safetensors", more);
  }
  test::TempDir folder;
  Module module;
  at::Tensor x;
};

TEST_F(RunCommand, WritesWhatForwardReturns) {
  const auto result = succeeded(run({model(), "--data", inputs(5), "--batch", "1"}));
  EXPECT_EQ(output("output.0").sizes(), at::IntArrayRef({5, 6}));
  EXPECT_EQ(output("output.1").sizes(), at::IntArrayRef({5}));
  for (int i = 0; i < 5; ++i) {
    const auto expected = module.forward({x.narrow(0, i, 1)}).toTuple();
    EXPECT_TRUE(torch::equal(output("output.0").narrow(0, i, 1), expected->elements()[0].toTensor())) << i;
    EXPECT_EQ(output("output.1")[i].item<float>(), expected->elements()[1].toTensor().item<float>()) << i;
  }
  const auto json = io::parse_json(result.out, "stdout");
  EXPECT_EQ(json.at("chunks"), 5);
  EXPECT_NEAR(json.at("outputs").at("output.0").at("mean").get<double>(), output("output.0").mean().item<float>(),
              1e-6);
  EXPECT_NEAR(json.at("outputs").at("output.0").at("max").get<double>(), output("output.0").max().item<float>(), 1e-6);
}

TEST_F(RunCommand, MeasuredModulesRunInFp8AndUncalledOnesAreListed) {
  const auto file = model(), data = inputs(64);
  const auto stats = (folder / "stats").string();
  ASSERT_EQ(fp8("measure --model {} --data {} --out {}", file, data, stats).code, 0);
  ASSERT_EQ(run({file, "--data", data, "--batch", "1"}).code, 0);
  std::filesystem::rename(folder / "out.safetensors", folder / "f32.safetensors");
  const auto json = json_of(run({file, "--data", data, "--batch", "1", "--measurements", stats, "--reference",
                                 (folder / "f32.safetensors").string()}));
  ASSERT_EQ(json.at("modules_quantized").size(), 1u);
  EXPECT_EQ(json.at("modules_quantized")[0].at("name"), "used");
  std::string reason;
  for (const auto& m : json.at("modules_kept"))
    if (m.at("name") == "never") reason = m.at("reason");
  EXPECT_THAT(reason, HasSubstr("never called"));
  const auto& difference = json.at("outputs").at("output.0");
  // Rounding to E4M3 is at most 2^-4 of a value; a sum of 4 products of two rounded factors of size ~1.
  EXPECT_GT(difference.at("mean_difference").get<double>(), 1e-3);
  EXPECT_LT(difference.at("mean_difference").get<double>(), 0.25);
}

TEST_F(RunCommand, CodesAreTheEmulatedDevices) {
  const auto file = model(), data = inputs(8);
  const auto stats = (folder / "stats").string();
  ASSERT_EQ(fp8("measure --model {} --data {} --out {}", file, data, stats).code, 0);
  const auto scheme = [&](const std::string& device, const std::vector<std::string>& more) {
    std::vector<std::string> arguments =
        args("run --json {} --data {} --batch 1 --measurements {} --overwrite --out {} {}", file, data, stats,
             folder / "out.safetensors", more);
    test::RunOptions options;
    options.environment = {{"FP8_HPU_DEVICE", device}, {"QUANT_CONFIG", ""}};
    return json_of(run_fp8(arguments, options)).at("modules_quantized")[0].at("scheme").get<std::string>();
  };
  EXPECT_THAT(scheme("gaudi2", {}), HasSubstr("gaudi2"));
  EXPECT_THAT(scheme("gaudi2", {"--dialect", "ocp"}), HasSubstr("ocp"));
  EXPECT_THAT(scheme("gaudi3", {}), HasSubstr("ocp"));
}

TEST_F(RunCommand, AQuantConfigMeasuresAndQuantizesNodesWithoutAWeightToo) {
  const auto file = model(), data = inputs(32);
  const auto config = [&](const std::string& mode) {
    std::ofstream(folder / (mode + ".json")) << R"({"mode": ")" << mode
                                             << R"(", "observer": "maxabs", "scale_method": "maxabs_hw", )"
                                                R"("ignore_modules_wo_measures": true, "dump_stats_path": ")"
                                             << (folder / "stats" / "s").string() << "\"}";
    return (folder / (mode + ".json")).string();
  };
  const auto measured = succeeded(
      fp8("measure --model {} --data {} --out {} --config {}", file, data, folder / "stats", config("MEASURE")));
  const auto nodes = io::read_json(folder / "stats" / "s_hooks_maxabs.json").at("Nodes");
  ASSERT_TRUE(nodes.contains("matmul")) << nodes.dump();
  EXPECT_EQ(nodes.at("matmul").at("inputs").size(), 2u);
  EXPECT_FALSE(nodes.contains("never"));
  std::vector<std::string> quantized;
  const auto json = json_of(run({file, "--data", data, "--batch", "1", "--config", config("QUANTIZE")}));
  for (const auto& m : json.at("modules_quantized"))
    quantized.push_back(m.at("name").get<std::string>() + ":" + m.at("type").get<std::string>());
  EXPECT_THAT(quantized, UnorderedElementsAre("used:Linear", "matmul:Matmul"));
}

TEST_F(RunCommand, WhatIsRefused) {
  const auto file = model(), data = inputs(4);
  const auto refused = [&](const test::Run& r, const std::string& words, int code = 1) {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_THAT(r.err, HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  };
  refused(run({file, "--data", data}),
          "output.1 has 1 rows for 4 samples, allowed: as many for each sample (try --batch 1)");
  refused(run({file, "--data", (folder / "none.wav").string()}), "none.wav");
  refused(run({(folder / "none.pt").string(), "--data", data}), "none.pt");
  refused(run({file, "--data", data, "--exclude", "x"}), "--include and --exclude go with --measurements", 2);
  refused(run({file, "--data", data, "--measurements", (folder / "none").string()}), "none");
  std::ofstream(folder / "c.json") << R"({"mode": "MEASURE", "dump_stats_path": "a/b"})";
  refused(run({file, "--data", data, "--config", (folder / "c.json").string()}), "expected QUANTIZE");
}

}  // namespace
}  // namespace fp8::commands
