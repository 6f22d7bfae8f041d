// SPDX-License-Identifier: Apache-2.0
// fp8 embed: vectors are what pooling makes of the model's hidden states; what lies beside a model decides how.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/models/load.h"
#include "support/in_process.h"
#include "support/temp_dir.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

using ::testing::HasSubstr;

class Embed : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::Fixture fixture("bert");
    fixture.config["architectures"] = {"BertModel"};
    fixture.write(folder / "model");
    io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {5, 12}}});
    writer.write("input_ids", ids.const_data_ptr());
    writer.commit();
  }

  test::CommandRun embed(const std::vector<std::string>& more = {}, const std::string& model = "model") const {
    std::vector<std::string> arguments = {"embed",
                                          "--json",
                                          "--quiet",
                                          "--model",
                                          (folder / model).string(),
                                          "--data",
                                          (folder / "ids.safetensors").string(),
                                          "--out",
                                          (folder / "out.safetensors").string(),
                                          "--device",
                                          "hpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::fp8_in_process(arguments);
  }
  at::Tensor vectors() const {
    const io::SafetensorsFile file(folder / "out.safetensors");
    const auto* info = file.find("embeddings");
    auto values = at::empty(info->shape, at::kFloat);
    file.read(*info, values.mutable_data_ptr());
    return values;
  }
  at::Tensor hidden() const { return load_model(folder / "model").model->forward(ids); }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((folder / "model" / name).parent_path());
    std::ofstream(folder / "model" / name) << text;
  }
  static void expect_near(const at::Tensor& a, const at::Tensor& b) {
    ASSERT_EQ(a.sizes(), b.sizes());
    EXPECT_LE((a - b).abs().max().item<float>(), 1e-4f);
  }

  const at::NoGradGuard no_grad;
  const at::Tensor ids = (at::arange(60, at::kLong) * 17 + 5).remainder(45).view({5, 12}) + 3;
  const test::TempDir folder;
};

TEST_F(Embed, TheMeanOfHiddenStates) {
  const auto run = embed();
  ASSERT_EQ(run.code, 0) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_EQ(json["texts"], 5);
  EXPECT_EQ(json["width"], 64);
  EXPECT_EQ(json["pooling"], "mean");
  expect_near(vectors(), hidden().mean(1));
}

TEST_F(Embed, OptionsSayHow) {
  ASSERT_EQ(embed({"--pooling", "cls"}).code, 0);
  expect_near(vectors(), hidden().select(1, 0));
  ASSERT_EQ(embed({"--pooling", "last", "--normalize"}).code, 0);
  const auto last = hidden().select(1, 11);
  expect_near(vectors(), last / last.norm(2, -1, /*keepdim=*/true));
}

TEST_F(Embed, FilesOfSentenceTransformersSayHow) {
  write("modules.json", R"([{"type": "sentence_transformers.models.Transformer"},
                            {"type": "sentence_transformers.models.Pooling"},
                            {"type": "sentence_transformers.models.Normalize"}])");
  write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})");
  ASSERT_EQ(embed().code, 0);
  const auto first = hidden().select(1, 0);
  expect_near(vectors(), first / first.norm(2, -1, /*keepdim=*/true));
  ASSERT_EQ(embed({"--pooling", "mean"}).code, 0);
  const auto mean = hidden().mean(1);
  expect_near(vectors(), mean / mean.norm(2, -1, /*keepdim=*/true));
}

TEST_F(Embed, WhatWouldChangeTheNumbersIsRefused) {
  write("modules.json", R"([{"type": "sentence_transformers.models.Dense"}])");
  auto run = embed();
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("found module \"sentence_transformers.models.Dense\", allowed: Transformer"));
  write("modules.json", "[]");
  write("1_Pooling/config.json", R"({"pooling_mode_max_tokens": true})");
  run = embed();
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("1_Pooling/config.json: key 'pooling_mode_max_tokens': found true, allowed: false"));
  write("1_Pooling/config.json", "{}");
  write("sentence_bert_config.json", R"({"max_seq_length": 8})");
  run = embed();
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("rows of 12 tokens, allowed: up to 8"));
  EXPECT_EQ(embed({"--seq-len", "65"}).code, 2);
}

TEST_F(Embed, InFp8VectorsPointWhereTheyDid) {
  const std::string model = (folder / "model").string(), fp8 = (folder / "fp8").string();
  ASSERT_EQ(test::fp8_in_process({"quantize", "--quiet", "--model", model, "--dynamic", "--out", fp8}).code, 0);
  ASSERT_EQ(embed({"--normalize"}, "fp8").code, 0);
  const auto mean = hidden().mean(1);
  const auto cosine = (vectors() * mean).sum(-1) / mean.norm(2, -1);
  EXPECT_GE(cosine.min().item<float>(), 0.99f);
  const auto run = test::fp8_in_process({"evaluate", "--json", "--quiet", "--model", fp8, "--reference", model,
                                         "--data", (folder / "ids.safetensors").string()});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto json = io::parse_json(run.out, "stdout");
  EXPECT_TRUE(json["perplexity"].is_null());
  EXPECT_NEAR(json["cosine"].get<double>(), cosine.mean().item<double>(), 1e-5);
}

TEST_F(Embed, EncodersContinueNoText) {
  write("tokenizer.json", "{}");
  const auto run = test::fp8_in_process({"generate", "--model", (folder / "model").string(), "--prompt", "a"});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("BertModel is an encoder, which continues no text"));
}

}  // namespace
}  // namespace fp8::models
