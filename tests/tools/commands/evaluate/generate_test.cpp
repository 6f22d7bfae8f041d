// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string kjv() { return (test::demo_data() / "kjv-byte-1.7M").string(); }

test::Run generate(const std::string& model, std::vector<std::string> more) {
  std::vector<std::string> arguments = {"generate", "--device", "cpu", "--threads", "1", "--model", model};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return test::run_fp8(arguments);
}

io::Json json_of(const test::Run& run) {
  EXPECT_EQ(run.code, 0) << run.err;
  return io::parse_json(run.out, "stdout");
}

TEST(Generate, Stories260KTellsItsStory) {
  FP8_NEED_TEST_DATA(data);
  const auto run =
      generate((data / "models/stories260K").string(), {"--prompt", "Once upon a time", "--tokens", "100"});
  EXPECT_EQ(run.code, 0) << run.err;
  // The opening that llama2.c prints for this model.
  EXPECT_THAT(run.out, StartsWith("Once upon a time, there was a little girl named Lily. She loved to play outside in "
                                  "the park. One day, she saw "
                                  "a big, red ball. She wanted to play with it, but it was too high."));
}

TEST(Generate, JsonHasTheContinuationAndItsIds) {
  const auto json = json_of(generate(kjv(), {"--prompt", "And the LORD said", "--tokens", "20", "--json"}));
  EXPECT_EQ(json["prompt"], "And the LORD said");
  EXPECT_EQ(json["prompt_tokens"], 17);
  EXPECT_EQ(json["tokens"], json["ids"].size());
  std::string text;  // this model's ids are bytes
  for (const auto& id : json["ids"]) text += static_cast<char>(id.get<int>());
  EXPECT_EQ(json["text"], text);
  const auto plain = generate(kjv(), {"--prompt", "And the LORD said", "--tokens", "20"});
  EXPECT_EQ(plain.out, "And the LORD said" + text + "\n");
}

TEST(Generate, APromptComesFromAFileToo) {
  const test::TempDir folder;
  const std::string file = (folder / "prompt.txt").string();
  std::ofstream(file) << "And the LORD said";
  const auto json = json_of(generate(kjv(), {"--prompt-file", file, "--tokens", "5", "--json"}));
  EXPECT_EQ(json["prompt"], "And the LORD said");
  EXPECT_EQ(json["ids"], json_of(generate(kjv(), {"--prompt", "And the LORD said", "--tokens", "5", "--json"}))["ids"]);
  const auto wrong = [&](std::vector<std::string> more, int code, const std::string& message) {
    const auto run = generate(kjv(), std::move(more));
    EXPECT_EQ(run.code, code);
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  wrong({}, 2, "--prompt is required, or --prompt-file");
  wrong({"--prompt", "", "--prompt-file", file}, 2, "--prompt and --prompt-file: found both");
  wrong({"--prompt-file", file + "x"}, 1, "prompt.txtx");
  std::ofstream(file) << std::string(513, 'a');
  wrong({"--prompt-file", file}, 1, file + ": found 513 tokens, allowed: up to max_position_embeddings 512");
}

TEST(Generate, JsonHasTheSpeedOfPromptAndText) {
  const auto json = json_of(generate(kjv(), {"--prompt", "And the LORD said", "--tokens", "20", "--json"}));
  const double prompt = 17 / json["prompt_tokens_per_second"].get<double>(),
               text = (json["tokens"].get<double>() - 1) / json["tokens_per_second"].get<double>();
  EXPECT_NEAR(prompt + text, json["seconds"].get<double>(), 1e-6);
  const auto one = json_of(generate(kjv(), {"--prompt", "And", "--tokens", "1", "--json"}));
  EXPECT_TRUE(one["tokens_per_second"].is_null());  // the prompt's forward gave it
  EXPECT_GT(one["prompt_tokens_per_second"].get<double>(), 0);
}

TEST(Generate, SeedSteersSampling) {
  const auto sample = [](const std::string& seed) {
    return json_of(generate(
        kjv(), {"--prompt", "And", "--tokens", "30", "--temperature", "1.5", "--seed", seed, "--json"}))["ids"];
  };
  EXPECT_EQ(sample("5"), sample("5"));
  EXPECT_NE(sample("5"), sample("6"));
}

TEST(Generate, StopsAtTheEndOfTheContext) {
  const auto json = json_of(generate(kjv(), {"--prompt", std::string(508, 'a'), "--tokens", "50", "--json"}));
  EXPECT_LE(json["tokens"].get<int>(), 5);  // positions 508 to 511, and the prediction after the last
  EXPECT_TRUE(json["stopped"] == "context" || json["stopped"] == "eos") << json["stopped"];
  const auto run = generate(kjv(), {"--prompt", std::string(513, 'a')});
  EXPECT_EQ(run.code, 1);
  EXPECT_THAT(run.err, HasSubstr("--prompt: found 513 tokens, allowed: up to max_position_embeddings 512"));
}

TEST(Generate, PromptsThatLookLikeOptions) {
  for (const std::string prompt : {"--json", "doctor", "[a,b]", "%%"}) {
    const auto run = generate(kjv(), {"--prompt", prompt, "--tokens", "1"});
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_THAT(run.out, StartsWith(prompt));
  }
}

}  // namespace
}  // namespace fp8
