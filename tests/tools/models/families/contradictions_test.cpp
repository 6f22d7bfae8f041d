// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose tensors are not of the sizes that config.json says: every command that takes a model folder names
// folder, tensor, what was found and what is asked for, and ends with 1; of each family, size by size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/registry.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/families/answers.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using ::testing::AnyOf;
using testing::Fixture;
using ::testing::HasSubstr;

/// Sizes that are those of tensors.
const std::set<std::string> kSizes = {"vocab_size",
                                      "hidden_size",
                                      "n_embd",
                                      "d_model",
                                      "dim",
                                      "intermediate_size",
                                      "n_inner",
                                      "ffn_dim",
                                      "hidden_dim",
                                      "n_layer",
                                      "num_hidden_layers",
                                      "n_layers",
                                      "head_dim",
                                      "num_local_experts",
                                      "num_experts",
                                      "n_routed_experts",
                                      "moe_num_experts",
                                      "moe_intermediate_size",
                                      "num_key_value_heads",
                                      "intermediate_size_mlp",
                                      "d_ff",
                                      "d_kv",
                                      "num_layers",
                                      "num_decoder_layers",
                                      "encoder_layers",
                                      "decoder_layers",
                                      "encoder_ffn_dim",
                                      "decoder_ffn_dim"};

class Contradictions : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fixture.write(folder / "model");
    const std::vector<std::int64_t> ids = {3, 4, 5, 6, 7, 8, 9, 10};
    if (parse_config(fixture.config, "config.json").values->shape.task == Task::answer) {
      const auto pair = at::tensor(ids, at::kLong).unsqueeze(0);
      return testing::write_pairs(folder / "ids.safetensors", pair, pair);
    }
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {1, 8}}});
    writer.write("input_ids", ids.data());
    writer.commit();
  }

  std::string path(const std::string& name) const { return (folder / name).string(); }

  /// The model with one size doubled.
  void write_config(const std::string& key) {
    auto config = fixture.config;
    auto& values = config.contains("text_config") ? config["text_config"] : config;
    values[key] = 2 * values[key].get<std::int64_t>();
    std::ofstream(folder / "model" / "config.json") << config.dump();
  }
  std::vector<std::string> sizes() const {
    const auto& values = fixture.config.contains("text_config") ? fixture.config["text_config"] : fixture.config;
    std::vector<std::string> keys;
    for (const auto& [key, value] : values.items())
      if (kSizes.contains(key) && value.is_number_integer()) keys.push_back(key);
    return keys;
  }

  test::CommandRun run(const std::string& command, std::vector<std::string> more) const {
    more.insert(more.begin(), {command, command == "inspect" ? path("model") : "--model"});
    if (command != "inspect") more.insert(more.begin() + 2, path("model"));
    more.emplace_back("--quiet");
    return test::fp8_in_process(more);
  }
  /// By file, tensor and shapes, unless a key contradicts another one already.
  void expect_refused(const test::CommandRun& run) const {
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, HasSubstr(path("model")));
    EXPECT_THAT(run.err, AnyOf(HasSubstr("found "), HasSubstr("missing"), HasSubstr("key '")));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }

  void expect_refused_by_those_that_run_it() const {
    const auto family = parse_config(fixture.config, "config.json");
    const std::string data = path("ids.safetensors"), out = path("out");
    expect_refused(run("measure", {"--data", data, "--out", out}));
    expect_refused(run("measure", {"--data", data, "--out", out, "--block-wise"}));
    expect_refused(run("inspect", {"--data", data}));
    expect_refused(run("quantize", {"--dynamic", "--out", out, "--budget", "kl=0.1", "--data", data}));
    expect_refused(run("evaluate", {"--data", data, "--reference", path("model")}));
    const auto task = family.values->shape.task;
    if (task == Task::embed) expect_refused(run("embed", {"--data", data, "--out", out}));
    if (task != Task::causal && task != Task::answer) return;
    expect_refused(run("generate", {"--prompt", "a"}));
    if (family.family.trainable) expect_refused(run("train", {"--data", data, "--out", out, "--steps", "1"}));
  }

  Fixture fixture{GetParam()};
  const test::TempDir folder;
};

TEST_P(Contradictions, AreRefusedByEveryCommand) {
  const std::string data = path("ids.safetensors"), out = path("out");
  bool all = false;
  for (const auto& key : sizes()) {
    SCOPED_TRACE(key);
    write_config(key);
    const auto evaluated = run("evaluate", {"--data", data});
    expect_refused(evaluated);
    if (evaluated.err.find("key '") != std::string::npos)
      continue;  // contradicts another one, whatever the tensors are
    if (!all) expect_refused_by_those_that_run_it();
    all = true;
    expect_refused(run("inspect", {}));
    expect_refused(run("inspect", {"--plan"}));
    expect_refused(run("quantize", {"--dynamic", "--out", out}));
    expect_refused(run("convert", {"--to", "bf16", "--out", out}));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Contradictions, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

}  // namespace
}  // namespace fp8::models
