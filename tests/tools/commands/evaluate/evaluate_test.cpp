// SPDX-License-Identifier: Apache-2.0
// Perplexities against those that transformers gave for the same chunks in f32 (chunks of 256 tokens).

#include "fp8/runtime/io/tensors/safetensors.h"
#include "support/values.h"
#include "tools/commands/run_fp8.h"

namespace fp8 {
namespace {

test::Run evaluate(std::vector<std::string> more, const test::RunOptions& options = {}) {
  return run_fp8(args("evaluate --device cpu --threads 1 {}", more), options);
}

/// stdout parsed: with --json it is one object on one line and nothing else.
io::Json quiet_json_of(const test::Run& run) {
  EXPECT_EQ(run.err, "");
  return json_of(run);
}

using Evaluate = InFolder;

TEST_F(Evaluate, PerplexityOfKjvByteEqualsTransformers) {
  const auto json = quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --dtype f32 --seq-len 256 --json")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 2.653164, 1, 1e-5);
  // exp(mean +- 1.99834 * 0.0142343), the standard error of the 64 chunks' means
  EXPECT_NEAR(json["intervals"]["perplexity"][0].get<double>() / 2.578758, 1, 2e-5);
  EXPECT_NEAR(json["intervals"]["perplexity"][1].get<double>() / 2.729717, 1, 2e-5);
  expect_values(
      json, {{"tokens", 16384}, {"chunks", 64}, {"seq_len", 256}, {"data", io::Json::array({"kjv_heldout_16k.txt"})}});
  // of the file, in bf16: 2*256*192 + 4*(2*192*192 + 2*192*64 + 3*192*512 + 2*192) + 192 parameters
  EXPECT_EQ(json["weights_bytes"], 2 * 1672896);
  EXPECT_GT(json["seconds"].get<double>(), 0);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
  EXPECT_FALSE(json.contains("kl"));
}

TEST_F(Evaluate, ChunksAreAsLongAsTheModelTakes) {
  const auto json = quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --dtype f32 --json")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 5.178564, 1, 1e-5);
  expect_values(json, {{"chunks", 32}, {"seq_len", 512}});
  std::ofstream(folder / "short.txt") << read_file(test::heldout_text()).substr(0, 100);  // one chunk
  const auto short_one = quiet_json_of(evaluate(args("--model $DEMO --data {} --json", folder / "short.txt")));
  EXPECT_EQ(short_one["tokens"], 100);
  EXPECT_EQ(short_one["intervals"]["perplexity"], nullptr);
  expect_failed(evaluate(args("--model $DEMO --data {} --seq-len 256", folder / "short.txt")),
                {"100 tokens, fewer than one chunk of 256"});
}

/// transformers' perplexity guide: each window's last tokens are scored, by logits that transformers gave in f32.
TEST_F(Evaluate, WindowsSlideAsInTransformersGuide) {
  const auto of = [&](std::size_t bytes, const std::vector<std::string>& more) {
    std::ofstream(folder / "text.txt") << read_file(test::heldout_text()).substr(0, bytes);
    return evaluate(args("--model $DEMO --data {} --dtype f32 --json {}", folder / "text.txt", more));
  };
  const auto json = quiet_json_of(of(5000, args("--seq-len 256 --stride 128")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 2.743539, 1, 1e-5);
  expect_values(json, {{"tokens", 4999}, {"chunks", 39}, {"stride", 128}});
  const auto odd = quiet_json_of(of(3000, args("--seq-len 256 --stride 100 --batch 3 --reference $DEMO")));
  EXPECT_NEAR(odd["perplexity"].get<double>() / 2.720442, 1, 1e-5);
  expect_values(odd, {{"tokens", 2999}, {"chunks", 29}});
  EXPECT_NEAR(odd["kl"].get<double>(), 0, 1e-9);
  EXPECT_EQ(odd["top1_agreement"], 1.0);
  const auto apart = quiet_json_of(of(16384, args("--seq-len 512 --stride 512")));
  EXPECT_NEAR(apart["perplexity"].get<double>() / 5.178564, 1, 1e-5);
  expect_failed(of(5000, args("--seq-len 64 --stride 65")),
                {"--stride: found 65, allowed: 1 to the window's length 64"});
}

TEST_F(Evaluate, SeveralModelsAreAsEachByItself) {
  const auto fp8 = folder / "fp8";
  ASSERT_EQ(run_fp8("quantize --model $DEMO --dynamic --out {} --quiet", fp8).code, 0);
  const auto common = args("--data $HELDOUT --samples 3 --reference $DEMO --json");
  const auto on_hpu = [](const std::vector<std::string>& more) { return run_fp8("evaluate --threads 1 {}", more); };
  const auto json = quiet_json_of(on_hpu(args("--model $DEMO {} {} --html {}", fp8, common, folder / "page.html")));
  ASSERT_EQ(json["models"].size(), 2u);
  EXPECT_EQ(json["models"][0]["model"], "kjv-byte-1.7M");
  EXPECT_EQ(json["models"][0]["perplexity_change"], 0.0);
  EXPECT_EQ(json["data"], io::Json::array({"kjv_heldout_16k.txt"}));
  auto alone = quiet_json_of(on_hpu(args("--model {} {}", fp8, common))), among = json["models"][1];
  for (const char* free : {"seconds", "forward_seconds", "tokens_per_second"}) alone.erase(free), among.erase(free);
  EXPECT_EQ(among, alone);
  EXPECT_GT(alone["intervals"]["kl"][1], alone["kl"]);
  const auto page = read_file(folder / "page.html");
  for (const char* said :
       {"kjv-byte-1.7M (reference)", "Quality and size", "fp8 evaluate kjv-byte-1.7M fp8 --reference"})
    EXPECT_THAT(page, HasSubstr(said));
  EXPECT_THAT(page, ::testing::Not(HasSubstr(folder.path().string())));
  expect_failed(evaluate(args("--model $DEMO {} --data $HELDOUT --dump-logits {}", fp8, folder / "l")),
                {"--dump-logits goes with one model, found 2"}, 2);
}

TEST_F(Evaluate, PerplexityOfStories260KEqualsTransformers) {
  FP8_NEED_TEST_DATA(data);
  const auto json = quiet_json_of(evaluate(args("--model {} --data {} --dtype f32 --samples 96 --seq-len 256 --json",
                                                data / "models/stories260K", data / "text/ts_calib.txt")));
  EXPECT_NEAR(json["perplexity"].get<double>() / 7.012570, 1, 1e-5);
  EXPECT_EQ(json["tokens"], 96 * 256);
}

TEST_F(Evaluate, BatchAndThreadsChangeNothing) {
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

TEST_F(Evaluate, SeveralFilesAndPatterns) {
  std::ofstream(folder / "a.txt") << std::string(70, 'a');
  std::ofstream(folder / "b.md") << std::string(70, 'b');
  std::ofstream(folder / "c.json") << R"(["ccc", {"prompt": "d", "completion": "e"}])";
  const auto tokens = [&](std::vector<std::string> data) {
    data.insert(data.begin(), {"--model", test::demo_model(), "--json", "--seq-len", "16", "--data"});
    return quiet_json_of(evaluate(data))["tokens"].get<std::int64_t>();
  };
  const auto file = [&](const char* name) { return (folder / name).string(); };
  EXPECT_EQ(tokens({file("a.txt"), file("b.md"), file("c.json")}), 145 / 16 * 16);
  EXPECT_EQ(tokens({file("[ab].*")}), 140 / 16 * 16);
  EXPECT_EQ(tokens({file("a.txt"), "--data", file("b.md")}), 140 / 16 * 16);
}

TEST_F(Evaluate, AModelIsItsOwnReference) {
  const auto json = quiet_json_of(evaluate(args("--model $DEMO --data $HELDOUT --reference $DEMO --samples 2 --json")));
  EXPECT_EQ(json["perplexity"], json["reference_perplexity"]);
  EXPECT_NEAR(json["kl"].get<double>(), 0, 1e-12);
  EXPECT_EQ(json["top1_agreement"], 1.0);
}

TEST_F(Evaluate, DumpedLogitsGiveThePerplexity) {
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
  const auto bytes = read_file(test::heldout_text());  // this model's tokens are bytes
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

TEST_F(Evaluate, TokenIdsFromSafetensors) {
  const auto bytes = read_file(test::heldout_text());
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

TEST_F(Evaluate, DataErrors) {
  EXPECT_THAT(evaluate(args("--model $DEMO --data /no/text.txt")).err, HasSubstr("/no/text.txt"));
  expect_failed(evaluate(args("--model $DEMO --data $HELDOUT --seq-len 513")),
                {"chunks of 513 tokens (--seq-len), allowed: up to max_position_embeddings 512"});
}

TEST_F(Evaluate, InterruptLeavesNothingBehind) {
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
      EXPECT_TRUE(run.err.ends_with("fp8: error: interrupted\n")) << run.err;  // how long it takes may be said before
    }
  }
}

using test::demo_model;

test::Run generate(const std::string& model, std::vector<std::string> more) {
  return run_fp8("generate --device cpu --threads 1 --model {} {}", model, more);
}

class Generate : public test::InFolder {};

TEST_F(Generate, Stories260KTellsItsStory) {
  FP8_NEED_TEST_DATA(data);
  const auto run =
      succeeded(generate((data / "models/stories260K").string(), {"--prompt", "Once upon a time", "--tokens", "100"}));
  // The opening that llama2.c prints for this model.
  EXPECT_THAT(run.out,
              StartsWith("Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
                         "One day, she saw a big, red ball. She wanted to play with it, but it was too high."));
}

TEST_F(Generate, JsonHasTheContinuationAndItsIds) {
  const auto json = json_of(generate(demo_model(), {"--prompt", "And the LORD said", "--tokens", "20", "--json"}));
  expect_values(json, {{"prompt", "And the LORD said"}, {"prompt_tokens", 17}, {"tokens", json["ids"].size()}});
  std::string text;  // this model's ids are bytes
  for (const auto& id : json["ids"]) text += static_cast<char>(id.get<int>());
  EXPECT_EQ(json["text"], text);
  const auto plain = generate(demo_model(), {"--prompt", "And the LORD said", "--tokens", "20"});
  EXPECT_EQ(plain.out, "And the LORD said" + text + "\n");
}

TEST_F(Generate, APromptComesFromAFileToo) {
  const std::string file = (folder / "prompt.txt").string();
  std::ofstream(file) << "And the LORD said";
  const auto json = json_of(generate(demo_model(), {"--prompt-file", file, "--tokens", "5", "--json"}));
  EXPECT_EQ(json["prompt"], "And the LORD said");
  EXPECT_EQ(json["ids"],
            json_of(generate(demo_model(), {"--prompt", "And the LORD said", "--tokens", "5", "--json"}))["ids"]);
  const auto wrong = [&](std::vector<std::string> more, int code, const std::string& message) {
    const auto run = generate(demo_model(), std::move(more));
    EXPECT_EQ(run.code, code);
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  wrong({"--prompt", "", "--prompt-file", file}, 2, "--prompt, --prompt-file and --data: found several");
  wrong({"--prompt", "", "--data", file}, 2, "--prompt, --prompt-file and --data: found several");
  wrong({"--prompt-file", file + "x"}, 1, "prompt.txtx");
  std::ofstream(file) << std::string(513, 'a');
  wrong({"--prompt-file", file}, 1, file + ": found 513 tokens, allowed: up to max_position_embeddings 512");
}

TEST_F(Generate, PromptsOfAFileGoOnTogetherAsEachByItself) {
  const std::string file = (folder / "prompts.jsonl").string(), text = (folder / "prompts.txt").string();
  const std::vector<std::string> prompts = {"And the LORD said", "A", "In the beginning God", std::string(500, 'a')};
  for (const auto& prompt : prompts) {
    std::ofstream(file, std::ios::app) << io::Json{{"text", prompt}}.dump() << "\n";
    std::ofstream(text, std::ios::app) << prompt << "\n<|endoftext|>\n";
  }
  const auto of = [](const std::string& path, std::vector<std::string> more) {
    more = args("{} --data {} --tokens 30 --json --dtype f32", more, path);  // bf16 has many ties
    return json_of(generate(demo_model(), std::move(more)));
  };
  const auto all = of(file, {}), pairs = of(file, {"--batch", "2"}), plain = of(text, {});
  ASSERT_EQ(all["results"].size(), prompts.size());
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto alone =
        json_of(generate(demo_model(), {"--prompt", prompts[i], "--tokens", "30", "--json", "--dtype", "f32"}));
    for (const char* key : {"prompt", "text", "ids", "prompt_tokens", "tokens", "stopped"}) {
      EXPECT_EQ(all["results"][i][key], alone[key]) << prompts[i] << ": " << key;
      EXPECT_EQ(pairs["results"][i][key], alone[key]) << prompts[i] << ": " << key;
      EXPECT_EQ(plain["results"][i][key], alone[key]) << prompts[i] << ": " << key;
    }
    tokens += alone["tokens"].get<std::size_t>();
  }
  EXPECT_NE(all["results"][3]["stopped"], "tokens");  // the end of its context; the others went on
  EXPECT_EQ(all["results"][1]["stopped"], "tokens");
  EXPECT_EQ(all["tokens"], tokens);
  EXPECT_GT(all["tokens_per_second"].get<double>(), 0);
}

TEST_F(Generate, PromptsOfAFileShowOneAfterTheOther) {
  const std::string file = (folder / "prompts.txt").string();
  std::ofstream(file) << "And the LORD<|endoftext|>A";
  const auto run = succeeded(generate(demo_model(), {"--data", file, "--tokens", "5"}));
  const auto alone = [](const std::string& prompt) {
    return generate(demo_model(), {"--prompt", prompt, "--tokens", "5"}).out;
  };
  EXPECT_EQ(run.out, alone("And the LORD") + "\n" + alone("A"));
  // One prompt of a file is a list too.
  std::ofstream(file) << "A";
  EXPECT_EQ(json_of(generate(demo_model(), {"--data", file, "--tokens", "5", "--json"}))["results"].size(), 1u);
}

TEST_F(Generate, SamplesOfPromptsFollowTheirNumbers) {
  const std::string file = (folder / "prompts.jsonl").string();
  for (int i = 0; i < 3; ++i) std::ofstream(file, std::ios::app) << "{\"text\": \"And\"}\n";
  const auto of = [&](const std::string& batch) {
    return json_of(generate(demo_model(), args("--data {} --tokens 20 --temperature 1.5 --seed 5 --batch {} --json",
                                               file, batch)))["results"];
  };
  const auto all = of("8"), single = of("1");
  EXPECT_NE(all[0]["ids"], all[1]["ids"]);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i]["ids"], single[i]["ids"]) << i;
  EXPECT_EQ(all[1]["ids"],
            json_of(generate(demo_model(), args("--prompt And --tokens 20 --temperature 1.5 --seed 6 --json")))["ids"]);
}

TEST_F(Generate, PromptsThatAreNone) {
  const auto wrong = [&](const std::string& name, const std::string& content, int code, const std::string& message) {
    const std::string file = (folder / name).string();
    std::ofstream(file) << content;
    const auto run = generate(demo_model(), {"--data", file});
    EXPECT_EQ(run.code, code);
    EXPECT_THAT(run.err, HasSubstr(message));
  };
  wrong("a.csv", "A", 1, "a.csv: has the suffix '.csv', allowed: .txt, .md, .jsonl");
  wrong("a.md", std::string("A\0", 2), 1, "a.md: holds a NUL byte at 1");
  wrong("m.jsonl", R"({"messages": [{"role": "user", "content": "A"}]})", 1, "no chat_template");
  wrong("a.jsonl", "", 1, "a.jsonl: found no prompts");
  wrong("b.jsonl", "{}", 1, "b.jsonl");
  wrong("long.jsonl", "{\"text\": \"A\"}\n{\"text\": \"" + std::string(513, 'a') + "\"}", 1,
        "found 513 tokens, allowed: up to max_position_embeddings 512");
}

TEST_F(Generate, JsonHasTheSpeedOfPromptAndText) {
  const auto json = json_of(generate(demo_model(), {"--prompt", "And the LORD said", "--tokens", "20", "--json"}));
  const double prompt = 17 / json["prompt_tokens_per_second"].get<double>(),
               text = (json["tokens"].get<double>() - 1) / json["tokens_per_second"].get<double>();
  EXPECT_NEAR(prompt + text, json["seconds"].get<double>(), 1e-6);
  const auto one = json_of(generate(demo_model(), {"--prompt", "And", "--tokens", "1", "--json"}));
  EXPECT_TRUE(one["tokens_per_second"].is_null());  // the prompt's forward gave it
  EXPECT_GT(one["prompt_tokens_per_second"].get<double>(), 0);
}

TEST_F(Generate, SeedSteersSampling) {
  const auto sample = [](const std::string& seed) {
    return json_of(generate(
        demo_model(), {"--prompt", "And", "--tokens", "30", "--temperature", "1.5", "--seed", seed, "--json"}))["ids"];
  };
  EXPECT_EQ(sample("5"), sample("5"));
  EXPECT_NE(sample("5"), sample("6"));
}

TEST_F(Generate, StopsAtTheEndOfTheContext) {
  const auto json = json_of(generate(demo_model(), {"--prompt", std::string(508, 'a'), "--tokens", "50", "--json"}));
  EXPECT_LE(json["tokens"].get<int>(), 5);  // positions 508 to 511, and the prediction after the last
  EXPECT_TRUE(json["stopped"] == "context" || json["stopped"] == "eos") << json["stopped"];
  expect_failed(generate(demo_model(), {"--prompt", std::string(513, 'a')}),
                {"--prompt: found 513 tokens, allowed: up to max_position_embeddings 512"});
}

TEST_F(Generate, PromptsThatLookLikeOptions) {
  for (const std::string prompt : {"--json", "doctor", "[a,b]", "%%"}) {
    EXPECT_THAT(succeeded(generate(demo_model(), {"--prompt", prompt, "--tokens", "1"})).out, StartsWith(prompt));
  }
}

}  // namespace
}  // namespace fp8
