// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose tensors are not of the sizes that config.json says: every command that takes a model folder names
// folder, tensor, what was found and what is asked for, and ends with 1; of each family, size by size.
#include "tools/models/families/answers.h"

namespace fp8::models {
namespace {

/// Sizes that are those of tensors.
const std::vector<std::string> kSizes = args(
    "vocab_size hidden_size n_embd d_model dim intermediate_size n_inner ffn_dim hidden_dim n_layer num_hidden_layers "
    "n_layers head_dim num_local_experts num_experts n_routed_experts moe_num_experts moe_intermediate_size "
    "num_key_value_heads intermediate_size_mlp d_ff d_kv num_layers num_decoder_layers encoder_layers decoder_layers "
    "encoder_ffn_dim decoder_ffn_dim");

struct Contradictions : ::testing::TestWithParam<std::string> {
  void SetUp() override {
    fixture.write(folder / "model");
    const auto ids = at::arange(3, 11, at::kLong).unsqueeze(0);
    if (parse_config(fixture.config, "config.json").values->shape.task == Task::answer)
      return testing::write_pairs(folder / "ids.safetensors", ids, ids);
    testing::write_ids(folder / "ids.safetensors", ids);
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
      if (std::ranges::find(kSizes, key) != kSizes.end() && value.is_number_integer()) keys.push_back(key);
    return keys;
  }

  test::Run run(const std::string& command, std::vector<std::string> more) const {
    more.insert(more.begin(), {command, command == "inspect" ? path("model") : "--model"});
    if (command != "inspect") more.insert(more.begin() + 2, path("model"));
    more.emplace_back("--quiet");
    return test::fp8_in_process(more);
  }
  /// By file, tensor and shapes, unless a key contradicts another one already.
  void expect_refused(const test::Run& run) const {
    EXPECT_EQ(run.code, 1) << run.err;
    EXPECT_EQ(run.out, "");
    EXPECT_THAT(run.err, HasSubstr(path("model")));
    EXPECT_THAT(run.err, AnyOf(HasSubstr("found "), HasSubstr("missing"), HasSubstr("key '")));
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }

  void expect_refused_by_those_that_run_it() const {
    const auto family = parse_config(fixture.config, "config.json");
    const std::string data = path("ids.safetensors"), out = path("out");
    expect_refused(run("measure", args("--data {} --out {}", data, out)));
    expect_refused(run("measure", args("--data {} --out {} --block-wise", data, out)));
    expect_refused(run("inspect", {"--data", data}));
    expect_refused(run("quantize", args("--dynamic --out {} --budget kl=0.1 --data {}", out, data)));
    expect_refused(run("evaluate", args("--data {} --reference {}", data, path("model"))));
    const auto task = family.values->shape.task;
    if (task == Task::embed) expect_refused(run("embed", args("--data {} --out {}", data, out)));
    if (task != Task::causal && task != Task::answer) return;
    expect_refused(run("generate", {"--prompt", "a"}));
    if (family.family.trainable) expect_refused(run("train", args("--data {} --out {} --steps 1", data, out)));
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
    expect_refused(run("quantize", args("--dynamic --out {}", out)));
    expect_refused(run("convert", args("--format bf16 --out {}", out)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Contradictions, ::testing::ValuesIn(testing::fixtures_of([](Task) { return true; })),
                         testing::test_name);

// A family that is not known: every command that would run it says which are, and what still works on such a folder.

struct UnknownFamily : ::testing::Test {
  void SetUp() override {
    testing::Fixture fixture("llama");
    fixture.config["model_type"] = "nobody_knows";
    fixture.write(folder / "model");
    std::ofstream(folder / "vocab.txt") << "[UNK]\n[CLS]\n[SEP]\na\n";
    testing::write_ids(folder / "ids.safetensors", at::arange(3, 7, at::kLong).unsqueeze(0));
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }

  const test::TempDir folder;
};

TEST_F(UnknownFamily, IsRefusedWithWhatStillWorks) {
  const std::string model = path("model"), data = path("ids.safetensors"), out = path("out");
  const std::vector<std::vector<std::string>> all = {
      args("measure --model {} --data {} --out {}", model, data, out),
      args("measure --model {} --data {} --out {} --block-wise", model, data, out),
      args("evaluate --model {} --data {}", model, data),
      args("generate --model {} --prompt a", model),
      args("embed --model {} --data {} --out {}", model, data, path("out.safetensors")),
      args("inspect {} --data {}", model, data),
      args("quantize --model {} --out {} --dynamic --budget kl=0.1 --data {}", model, out, data)};
  std::string families;
  for (const auto& family : model_families())
    families += (families.empty() ? "" : ", ") + std::string(family.model_type);
  const auto whole = path("model") +
                     "/config.json: model_type \"nobody_knows\" is not supported, allowed: " + families +
                     "; on files of any model: fp8 quantize --dynamic, convert and inspect; on TorchScript: fp8 "
                     "measure and run; in Python: the transformer_engine package\n";
  for (const auto& arguments : all) {
    const auto run = test::fp8_in_process(arguments);
    EXPECT_EQ(run.code, 1) << arguments[0];
    EXPECT_EQ(run.out, "") << arguments[0];
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr(whole)) << arguments[0];
    EXPECT_FALSE(std::filesystem::exists(folder / "out")) << arguments[0];
  }
}

/// The commands that the message names work.
TEST_F(UnknownFamily, StillIsQuantizedConvertedAndInspected) {
  const std::string model = path("model");
  const std::vector<std::vector<std::string>> all = {
      args("quantize --model {} --out {} --dynamic", model, path("fp8")),
      args("convert --model {} --format bf16 --out {}", path("fp8"), path("bf16")),
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
