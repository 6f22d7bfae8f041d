// SPDX-License-Identifier: Apache-2.0
// A family that is not known: every command that would run it says which are, and what still works on such a folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fp8/tools/models/registry.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using ::testing::HasSubstr;

class UnknownFamily : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Fixture fixture("llama");
    fixture.config["model_type"] = "nobody_knows";
    fixture.write(folder / "model");
    std::ofstream(folder / "vocab.txt") << "[UNK]\n[CLS]\n[SEP]\na\n";
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {1, 4}}});
    const std::vector<std::int64_t> ids = {3, 4, 5, 6};
    writer.write("input_ids", ids.data());
    writer.commit();
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const test::TempDir folder;
};

TEST_F(UnknownFamily, IsRefusedWithWhatStillWorks) {
  const std::string model = path("model"), data = path("ids.safetensors"), out = path("out");
  const std::vector<std::vector<std::string>> all = {
      {"measure", "--model", model, "--data", data, "--out", out},
      {"measure", "--model", model, "--data", data, "--out", out, "--block-wise"},
      {"evaluate", "--model", model, "--data", data},
      {"generate", "--model", model, "--prompt", "a"},
      {"embed", "--model", model, "--data", data, "--out", path("out.safetensors")},
      {"inspect", model, "--data", data},
      {"quantize", "--model", model, "--out", out, "--dynamic", "--budget", "kl=0.1", "--data", data}};
  std::string families;
  for (const auto& family : model_families())
    families += (families.empty() ? "" : ", ") + std::string(family.model_type);
  const auto whole =
      path("model") + "/config.json: model_type \"nobody_knows\" is not supported, allowed: " + families +
      "; on files of any model: fp8 quantize --dynamic, convert and inspect; on TorchScript: fp8 measure and run; in "
      "Python: the transformer_engine package\n";
  for (const auto& arguments : all) {
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 1) << arguments[0];
    EXPECT_EQ(run.out, "") << arguments[0];
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr(whole)) << arguments[0];
    EXPECT_FALSE(std::filesystem::exists(folder / "out")) << arguments[0];
  }
}

/// What the message names does work.
TEST_F(UnknownFamily, StillIsQuantizedConvertedAndInspected) {
  const std::string model = path("model");
  const std::vector<std::vector<std::string>> all = {
      {"quantize", "--model", model, "--out", path("fp8"), "--dynamic"},
      {"convert", "--model", path("fp8"), "--to", "bf16", "--out", path("bf16")},
      {"inspect", model},
      {"inspect", path("fp8")}};
  for (const auto& arguments : all) {
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 0) << arguments[0] << ": " << run.err;
  }
  const io::Checkpoint fp8(folder / "fp8"), bf16(folder / "bf16");
  EXPECT_EQ(fp8.info("model.layers.0.mlp.up_proj.weight").dtype, io::DType::F8_E4M3);
  EXPECT_EQ(bf16.info("model.layers.0.mlp.up_proj.weight").dtype, io::DType::BF16);
}

}  // namespace
}  // namespace fp8::models
