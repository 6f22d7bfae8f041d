// SPDX-License-Identifier: Apache-2.0
// The program in odd surroundings: other locales, closed or full standard streams, no colours, --quiet; and that it
// documents itself.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

class Program : public test::InFolder {};

TEST_F(Program, MeasureWithoutDataTakesTheBuiltInText) {
  const auto run = fp8("measure --json --model $DEMO --samples 2 --seq-len 32 --out {}", folder / "stats");
  EXPECT_EQ(json_of(run)["built_in_data"], true);
  EXPECT_EQ(json_of(run)["data"], "the built-in text");
  EXPECT_EQ(json_of(run)["seq_len"], 32);
  EXPECT_THAT(run.err, HasSubstr("no --data: taking the built-in text"));
}

TEST_F(Program, JsonIsOneObjectAndNothingElse) {
  const std::string stats = (folder / "stats").string(), out = (folder / "fp8").string();
  const auto measured = fp8("measure --json --model $DEMO --data $CALIB --samples 2 --out {}", stats);
  for (const char* key : {"modules", "tensors", "samples", "forward_seconds", "seconds", "out"})
    EXPECT_TRUE(json_of(measured).contains(key)) << key;
  EXPECT_EQ(json_of(measured)["modules"], 29);  // 4 layers of 7, and lm_head
  EXPECT_EQ(json_of(measured)["tensors"], 3 * 29);
  EXPECT_EQ(json_of(measured)["out"].size(), 5u);
  const auto quantized = fp8("quantize --json --model $DEMO --measurements {} --out {}", stats, out);
  for (const char* key :
       {"modules_quantized", "modules_skipped", "weights_bytes", "source_bytes", "seconds", "peak_rss_bytes"})
    EXPECT_TRUE(json_of(quantized).contains(key)) << key;
  const auto evaluated =
      fp8("evaluate --json --model {} --reference $DEMO --data $HELDOUT --samples 2 --seq-len 256", out);
  for (const char* key : {"perplexity", "tokens", "weights_bytes", "seconds", "tokens_per_second",
                          "reference_perplexity", "kl", "top1_agreement"})
    EXPECT_TRUE(json_of(evaluated).contains(key)) << key;
  for (const auto& run : {measured, quantized, evaluated}) EXPECT_EQ(run.err, "");
}

TEST_F(Program, OutputIsPlainTextWithoutATerminal) {
  for (const Environment& environment : {Environment{}, Environment{{"NO_COLOR", "1"}},
                                         Environment{{"TERM", "xterm-256color"}, {"CLICOLOR_FORCE", "1"}}}) {
    const auto run = fp8(args("evaluate --model $DEMO --data $HELDOUT --samples 2"), environment);
    expect_success(run);
    EXPECT_THAT(run.out, AllOf(HasSubstr("perplexity"), Not(HasSubstr("\x1b"))));
  }
}

TEST_F(Program, LocalesChangeNoNumber) {
  const Arguments arguments = args("evaluate --json --model $DEMO --data $HELDOUT --samples 2");
  const auto plain = json_of(fp8(arguments));
  for (const char* locale : {"de_DE.UTF-8", "tr_TR.UTF-8", "C.UTF-8", "nonsense"}) {
    const auto json = json_of(fp8(arguments, {{"LC_ALL", locale}, {"LANG", locale}}));
    EXPECT_EQ(json["perplexity"], plain["perplexity"]) << locale;
  }
}

TEST_F(Program, QuietSilencesWarningsNotErrors) {
  const std::string config =
      write_config(folder / "config.json",
                   R"("mode": "MEASURE", "blocklist": {"names": ["no_such_module"], "types": []})", folder / "stats/s");
  Arguments arguments = args("evaluate --model $DEMO --data $HELDOUT --samples 1");
  const auto loud = succeeded(fp8(arguments, {{"QUANT_CONFIG", config}}));
  EXPECT_THAT(loud.err, AllOf(HasSubstr("fp8: warning: "), HasSubstr("no_such_module")));
  arguments.push_back("--quiet");
  expect_success(fp8(arguments, {{"QUANT_CONFIG", config}}));
  expect_refused(fp8("evaluate --quiet --model {} --data $HELDOUT", folder / "none"), {"none"});
}

// Activations go into fp8 from the dtype they have, and once for layers that share them: no copy in f32 in between.
TEST_F(Program, TraceOfEvaluateShowsOneCastForEachInput) {
  const test::TempDir dir;
  const std::string quantized = (dir / "fp8").string();
  expect_success(fp8("quantize --dynamic --model $DEMO --out {} --quiet", quantized));
  const auto run = succeeded(fp8(
      args("evaluate --model {} --data $HELDOUT --samples 1 --dtype bf16 --quiet", quantized), {{"FP8_TRACE", "1"}}));
  std::map<std::string, std::vector<std::string>> ops;  // of each module
  std::istringstream lines(run.err);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(line.find("_to_copy") != std::string::npos && line.find("BFloat16") != std::string::npos) << line;
    const auto bar = line.find(" | ");
    if (bar != std::string::npos) ops[line.substr(bar + 3)].push_back(line.substr(11, line.find(' ', 11) - 11));
  }
  using Ops = std::vector<std::string>;
  const std::string layer = "model.layers.0.";
  for (const char* first : {"self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"})
    EXPECT_EQ(ops[layer + first], (Ops{"fp8::quantize", "hpu::fp8_gemm_v2"})) << first;
  for (const char* next : {"self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj"})
    EXPECT_EQ(ops[layer + next], Ops{"hpu::fp8_gemm_v2"}) << next;
}

// Commands write equal bytes every time: twice, on 1 and 2 threads, in any batch, and codes and scales on every SIMD
// level of this machine.

TEST(Determinism, MeasureWritesTheSameBytes) {
  const test::TempDir folder;
  const Arguments base = args("measure --model $DEMO --data $CALIB --samples 9 --out");
  const std::vector<Arguments> ways = {{}, {}, {"--threads", "1"}, {"--threads", "2", "--batch", "2"}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Arguments arguments = base;
    arguments.push_back((folder / std::to_string(i)).string());
    arguments.insert(arguments.end(), ways[i].begin(), ways[i].end());
    expect_success(fp8(arguments));
    EXPECT_EQ(contents(folder / std::to_string(i)), contents(folder / "0")) << i;
  }
  EXPECT_EQ(names_in(folder / "0").size(), 5u);
}

/// Quantizes in several ways that must not matter.
void expect_same_checkpoints(const Arguments& arguments) {
  const test::TempDir folder;
  const std::vector<std::pair<Arguments, Environment>> ways = {
      {{}, {}}, {{"--threads", "1"}, {{"FP8_SIMD", "scalar"}}}, {{"--threads", "2"}, {{"FP8_SIMD", "avx2"}}}};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    Arguments more = arguments;
    more.insert(more.end(), ways[i].first.begin(), ways[i].first.end());
    const std::string name = std::to_string(i);
    const auto run = [&] {
      Arguments all = args("quantize --quiet --model $DEMO --out {} {}", folder / name, more);
      return fp8(all, ways[i].second);
    }();
    if (run.code != 0 && run.err.find("FP8_SIMD") != std::string::npos) continue;  // a level that this CPU has not
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(contents(folder / name), contents(folder / "0")) << i;
  }
  EXPECT_EQ(names_in(folder / "0").size(), 6u);
}

struct DeterminismOfScales : ::testing::Test {
  void SetUp() override { measure(demo_model(), calibration_text(), folder_ / "stats", "2"); }
  std::string stats() const { return (folder_ / "stats").string(); }
  std::string config(const std::string& method, const std::string& device) const {
    return write_config(
        folder_ / "config.json",
        R"("mode": "QUANTIZE", "scale_method": ")" + method + R"(", "device_for_scales": ")" + device + "\"",
        folder_ / "stats/inc_output");
  }
  test::TempDir folder_;
};

TEST_F(DeterminismOfScales, QuantizeWritesTheSameBytes) {
  expect_same_checkpoints({"--measurements", stats()});
  expect_same_checkpoints({"--measurements", stats(), "--scheme", "channel", "--dialect", "gaudi2"});
  expect_same_checkpoints({"--dynamic", "--dialect", "gaudi3"});
  expect_same_checkpoints({"--weights-only"});
}

TEST_F(DeterminismOfScales, QuantizeWithAConfigWritesTheSameBytes) {
  expect_same_checkpoints({"--config", config("maxabs_hw", "GAUDI2")});
  expect_same_checkpoints({"--config", config("maxabs_arbitrary", "GAUDI3")});
  expect_same_checkpoints({"--config", config("act_maxabs_hw_weights_pcs_maxabs_pow2", "GAUDI2")});
}

TEST_F(DeterminismOfScales, LogitsAreTheSameBits) {
  quantize(demo_model(), folder_ / "static", {"--measurements", stats()});
  quantize(demo_model(), folder_ / "dynamic", {"--dynamic"});
  quantize(demo_model(), folder_ / "weights", {"--weights-only"});
  for (const std::string& model :
       {demo_model(), (folder_ / "static").string(), (folder_ / "dynamic").string(), (folder_ / "weights").string()}) {
    const std::string first = logits(model, heldout_text(), "5");
    EXPECT_GT(first.size(), 5u * 256 * 256 * 4);
    EXPECT_TRUE(logits(model, heldout_text(), "5", {"--threads", "1"}) == first) << model;
    EXPECT_TRUE(logits(model, heldout_text(), "5", {"--threads", "2", "--batch", "2"}) == first) << model;
  }
}

}  // namespace
}  // namespace fp8::e2e
