// SPDX-License-Identifier: Apache-2.0
// Perplexities against those that transformers gave for the same chunks in f32 (chunks of 256 tokens).
#include <cmath>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

std::string model() { return (test::demo_data() / "kjv-byte-1.7M").string(); }
std::string text() { return (test::demo_data() / "kjv_heldout_16k.txt").string(); }

test::Run evaluate(std::vector<std::string> more, const test::RunOptions& options = {}) {
  return run_fp8(args("evaluate --device cpu --threads 1 {}", more), options);
}

/// stdout parsed: with --json it is one object on one line and nothing else.
io::Json quiet_json_of(const test::Run& run) {
  EXPECT_EQ(run.err, "");
  return json_of(run);
}

TEST(Evaluate, PerplexityOfKjvByteEqualsTransformers) {
  const auto json = quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --dtype f32 --json")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 2.653164, 1, 1e-5);
  EXPECT_EQ(json["tokens"], 16384);
  EXPECT_EQ(json["chunks"], 64);
  EXPECT_EQ(json["weights_bytes"],
            4 * 1672896);  // parameters: 2*256*192 + 4*(2*192*192 + 2*192*64 + 3*192*512 + 2*192) + 192
  EXPECT_GT(json["seconds"].get<double>(), 0);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
  EXPECT_FALSE(json.contains("kl"));
}

TEST(Evaluate, PerplexityOfStories260KEqualsTransformers) {
  FP8_NEED_TEST_DATA(data);
  const auto json = quiet_json_of(evaluate(args("--model {} --data {} --dtype f32 --samples 96 --json",
                                                data / "models/stories260K", data / "text/ts_calib.txt")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 7.012570, 1, 1e-5);
  EXPECT_EQ(json["tokens"], 96 * 256);
}

TEST(Evaluate, BatchAndThreadsChangeNothing) {
  const std::vector<std::string> base =
      args("--model $DEMO --data $HELDOUT --dtype f32 --samples 5 --seq-len 64 --json");
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return quiet_json_of(evaluate(more))["perplexity"].get<double>();
  };
  const auto one = with({"--batch", "1"});
  EXPECT_NEAR(with({"--batch", "5"}) / one, 1, 1e-6);
  EXPECT_NEAR(with({"--batch", "3"}) / one, 1, 1e-6);
}

TEST(Evaluate, SeveralFilesAndPatterns) {
  const test::TempDir folder;
  std::ofstream(folder / "a.txt") << std::string(70, 'a');
  std::ofstream(folder / "b.md") << std::string(70, 'b');
  std::ofstream(folder / "c.json") << R"(["ccc", {"prompt": "d", "completion": "e"}])";
  const auto tokens = [&](std::vector<std::string> data) {
    data.insert(data.begin(), {"--model", model(), "--json", "--seq-len", "16", "--data"});
    return quiet_json_of(evaluate(data))["tokens"].get<std::int64_t>();
  };
  const auto file = [&](const char* name) { return (folder / name).string(); };
  EXPECT_EQ(tokens({file("a.txt"), file("b.md"), file("c.json")}), 145 / 16 * 16);
  EXPECT_EQ(tokens({file("[ab].*")}), 140 / 16 * 16);
  EXPECT_EQ(tokens({file("a.txt"), "--data", file("b.md")}), 140 / 16 * 16);
}

TEST(Evaluate, AModelIsItsOwnReference) {
  const auto json = quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --reference $DEMO --samples 2 --json")));
  EXPECT_EQ(json["perplexity"], json["reference_perplexity"]);
  EXPECT_NEAR(json["kl"].get<double>(), 0, 1e-12);
  EXPECT_EQ(json["top1_agreement"], 1.0);
}

TEST(Evaluate, DumpedLogitsGiveThePerplexity) {
  const test::TempDir folder;
  const auto file = (folder / "logits.safetensors").string();
  const auto json = quiet_json_of(evaluate(args(
      "--model $DEMO --data $HELDOUT --dtype f32 --samples 3 --seq-len 32 --skip 1 --batch 2 --dump-logits {} --json",
      file)));
  const io::SafetensorsFile logits(file);
  const auto* info = logits.find("logits");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, io::DType::F32);
  ASSERT_EQ(info->shape, (std::vector<std::int64_t>{3, 32, 256}));
  std::vector<float> values(3 * 32 * 256);
  logits.read(*info, values.data());
  const auto bytes = read_file(text());  // this model's tokens are bytes
  double nll = 0;
  for (int c = 0; c < 3; ++c)
    for (int t = 0; t + 1 < 32; ++t) {
      const float* row = values.data() + (c * 32 + t) * 256;
      double sum = 0;
      for (int v = 0; v < 256; ++v) sum += std::exp(static_cast<double>(row[v]));
      nll += std::log(sum) - row[static_cast<unsigned char>(bytes[static_cast<std::size_t>((c + 1) * 32 + t + 1)])];
    }
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(nll / (3 * 31)), 1e-5);
}

TEST(Evaluate, TokenIdsFromSafetensors) {
  const test::TempDir folder;
  const auto bytes = read_file(text());
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 4 * 128; ++i) ids.push_back(static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]));
  const auto write = [&](const std::string& name) {
    io::SafetensorsWriter writer(folder / name, {{"input_ids", io::DType::I64, {4, 128}}});
    writer.write("input_ids", ids.data());
    writer.commit();
    return (folder / name).string();
  };
  const auto from_ids = quiet_json_of(evaluate(args("--model $DEMO --data {} --json", write("ids.safetensors"))));
  const auto from_text =
      quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --seq-len 128 --samples 4 --json")));
  EXPECT_EQ(from_ids["perplexity"], from_text["perplexity"]);
  ids[200] = 256;
  expect_failed(evaluate(args("--model $DEMO --data {}", write("bad.safetensors"))), {"256"});
}

TEST(Evaluate, DataErrors) {
  EXPECT_THAT(evaluate(args("--model $DEMO --data /no/text.txt")).err, HasSubstr("/no/text.txt"));
  expect_failed(evaluate(args("--model $DEMO --data $HELDOUT --seq-len 513")),
                {"chunks of 513 tokens (--seq-len), allowed: up to max_position_embeddings 512"});
}

TEST(Evaluate, InterruptLeavesNothingBehind) {
  for (const std::vector<int>& signals :
       {std::vector<int>{SIGINT}, std::vector<int>{SIGINT, SIGINT}, std::vector<int>{SIGTERM}}) {
    const test::TempDir folder;
    std::ofstream(folder / "long.txt") << std::string(4'000'000, 'a');
    const auto out = folder / "out";
    std::filesystem::create_directory(out);
    const auto run =
        evaluate(args("--model $DEMO --data {} --dump-logits {}", folder / "long.txt", out / "l.safetensors"),
                 {.signals_after_start = signals, .started_file = out.string()});
    EXPECT_EQ(run.code, 128 + signals[0]) << run.err;  // as shells count
    EXPECT_TRUE(std::filesystem::is_empty(out)) << signals.size();
    if (signals.size() == 1) {
      EXPECT_EQ(run.err, "fp8: error: interrupted\n");
    }
  }
}

}  // namespace
}  // namespace fp8
