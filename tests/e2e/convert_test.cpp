// SPDX-License-Identifier: Apache-2.0
// fp8 convert as a user meets it: what it prints, its exit codes, the perplexity of what it wrote, killed and resumed,
// shared out.
#include "e2e/processes.h"
#include "support/values.h"

namespace fp8::e2e {
namespace {

io::Json convert(const std::string& model, const std::string& to, const std::filesystem::path& out,
                 const Arguments& more = {}) {
  Arguments arguments = args("convert --json --model {} --format {} --out {} {}", model, to, out, more);
  return json_of(fp8(arguments));
}

double perplexity(const std::string& model) {
  return json_of(fp8("evaluate --json --model {} --data $HELDOUT --samples 4 --seq-len 128", model))["perplexity"];
}

TEST(Convert, ExactFormsHaveTheSamePerplexity) {
  const test::TempDir folder;
  const auto json = convert(quantized(), "modelopt", folder / "modelopt", {"--verify"});
  expect_values(json, {{"exact", true}, {"modules_converted", json["modules"].size()}});
  EXPECT_EQ(json["verify"]["modules_bit_equal"], json["modules"].size());
  EXPECT_TRUE(json["verify"]["broken"].empty());
  EXPECT_GT(json["peak_rss_bytes"], 0);
  convert((folder / "modelopt").string(), "compressed-tensors", folder / "back");
  const double expected = perplexity(quantized());
  EXPECT_EQ(perplexity((folder / "modelopt").string()), expected);
  EXPECT_EQ(perplexity((folder / "back").string()), expected);
}

TEST(Convert, VerifyOnlyFindsWhatChangedAfterwards) {
  const test::TempDir folder;
  const std::string out = (folder / "bf16").string();
  convert(quantized(), "bf16", out);
  EXPECT_TRUE(convert(quantized(), "bf16", out, {"--verify-only"})["verify"]["broken"].empty());
  {
    std::fstream file(folder / "bf16" / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  }
  const auto run = fp8("convert --model {} --format bf16 --out {} --verify-only", quantized(), out);
  EXPECT_EQ(run.code, 1);
  EXPECT_EQ(run.error_lines(), 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("differs from"), HasSubstr("promised exact")));
}

TEST(Convert, RanksAreSplitAndPutTogetherAgain) {
  const test::TempDir folder;
  const std::string inc = (folder / "inc").string();
  json_of(fp8({"quantize", "--json", "--dynamic", "--scheme", "tensor", "--format", "inc", "--model", demo_model(),
               "--out", inc}));
  expect_values(convert(inc, "inc", folder / "two", {"--ranks", "2"}), {{"from_ranks", 1}, {"ranks", 2}});
  convert((folder / "two").string(), "inc", folder / "one", {"--ranks", "1"});
  EXPECT_EQ(perplexity((folder / "one").string()), perplexity(inc));
  const auto refused = [&](const std::string& model, const Arguments& more, int code, const std::string& part) {
    Arguments arguments = {"convert", "--model", model, "--out", (folder / "out").string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_refused(fp8(arguments), {part}, code);
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  };
  refused(inc, {"--format", "inc", "--ranks", "1"}, 1, "is of 1 ranks already");
  refused(inc, {"--format", "inc", "--ranks", "5"}, 1, "can't be shared out to 5 ranks");
  refused(inc, {"--format", "bf16", "--ranks", "2"}, 2, "--ranks is for --format inc, found --format bf16");
  refused(inc, {"--format", "inc", "--ranks", "2", "--scheme", "tensor"}, 2, "--scheme doesn't go with --ranks");
  refused(quantized(), {"--format", "inc", "--ranks", "2"}, 1, "expected INC's");
  refused((folder / "two").string(), {"--format", "bf16"}, 1, "fp8 convert --format inc --ranks 1");
}

TEST(Convert, RefusesInOneLine) {
  const test::TempDir folder;
  const std::string out = (folder / "out").string();
  const auto refused = [&](const Arguments& more, int code, const std::string& part) {
    Arguments arguments = args("convert --out {} {}", out, more);
    expect_failed(fp8(arguments), {part}, code);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  refused({"--model", quantized()}, 2, "--format is required");
  refused(args("--model {} --format int8", quantized()), 2, "allowed: bf16, f16, f32, compressed-tensors");
  refused(args("--model {} --format bf16 --scheme tensor", quantized()), 2, "--scheme is for fp8 forms");
  refused(args("--model {} --format fp8 --scheme tensor --block 64", quantized()), 2,
          "--block and --scale-format are --scheme block:N");
  refused(args("--model {} --format fp8", quantized()), 1, "--scheme tensor, channel or block requantizes (not exact)");
  refused(args("--model {} --format inc-vllm --scheme tensor", quantized()), 1,
          "fp8 quantize --measurements makes them");
}

TEST(Convert, DryRunWritesNothingAndSaysWhatItWould) {
  const test::TempDir folder;
  const auto dry = convert(quantized(), "fp8", folder / "out", args("--scheme block:64 --dry-run"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(dry["exact"], false);
  const auto wet = convert(quantized(), "fp8", folder / "out", args("--scheme block:64"));
  EXPECT_EQ(wet["weights_bytes"], dry["weights_bytes"]);
  for (const auto& m : wet["modules"]) {
    EXPECT_EQ(m["change"], "requantized");
    EXPECT_GT(m["max_relative_error"], 0);
    EXPECT_LT(m["max_relative_error"], 0.07) << "half a step of three bits of mantissa";
  }
}

/// 24 weights of 1024 x 1024 codes with a scale per channel, so that there is time to be killed in.
void write_large(const std::filesystem::path& model) {
  constexpr std::size_t kSize = 1024;
  std::string codes(kSize * kSize, '\0'), scales(kSize * sizeof(float), '\0');
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<char>(i * 2654435761u >> 8 & 0xBF);  // below 2: never NaN
  for (std::size_t i = 0; i < kSize; ++i) {
    const float scale = 0.001f + 0.00001f * static_cast<float>(i);
    std::memcpy(&scales[i * sizeof scale], &scale, sizeof scale);
  }
  Tensors file;
  const auto add = [&](const std::string& name, const char* dtype, std::size_t cols, const std::string& bytes) {
    file.header[name] = {{"dtype", dtype},
                         {"shape", {kSize, cols}},
                         {"data_offsets", {file.data.size(), file.data.size() + bytes.size()}}};
    file.data += bytes;
  };
  for (int i = 0; i < 24; ++i) {
    const std::string name =
        "model.layers." + std::to_string(i) + ".mlp." + (i % 2 == 0 ? "gate_proj" : "up_proj") + ".weight";
    add(name, "F8_E4M3", kSize, codes);
    add(name + "_scale", "F32", 1, scales);
  }
  std::filesystem::create_directories(model);
  write_file(model / "model.safetensors", file.bytes());
  write_file(model / "config.json",
             R"({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors",
    "format": "float-quantized", "quantization_status": "compressed", "ignore": [], "config_groups": {"group_0": {
    "targets": ["Linear"], "input_activations": null,
    "weights": {"num_bits": 8, "type": "float", "symmetric": true, "strategy": "channel", "dynamic": false}}}}})");
}

TEST(Convert, KilledItEndsWithTheSameBytes) {
  const test::TempDir models;
  write_large(models / "fp8");
  std::mt19937 random(20250311);
  int kills = 0;
  for (const Arguments& way : {args("--format bf16 --shard-size 10000000"), args("--format fp8 --scheme tensor"),
                               args("--format inc --dialect gaudi2")})
    kills += expect_survives_kills(args("convert --model {} {}", models / "fp8", way), random);
  EXPECT_GE(kills, 3);
  std::printf("%d kills\n", kills);
}

TEST(Convert, RanksJoinToTheSameBytes) {
  const test::TempDir folder;
  const Arguments shards = {"--shard-size", "500000"};
  convert(quantized(), "bf16", folder / "whole", shards);
  for (const char* rank : {"0", "1"})
    convert(quantized(), "bf16", folder / "out", args("--shard-size 500000 --rank {} --world-size 2", rank));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  convert(quantized(), "bf16", folder / "out", args("--shard-size 500000 --join --verify"));
  EXPECT_TRUE(contents(folder / "out") == contents(folder / "whole"));
}

}  // namespace
}  // namespace fp8::e2e
