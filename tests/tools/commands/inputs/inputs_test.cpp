// SPDX-License-Identifier: Apache-2.0
// Arguments of a TorchScript model from files, and the tensors in what it returns.
#include <torch/script.h>
#include <torch/torch.h>

#include <cstring>

#include "fp8/tools/commands/inputs/forecast.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "fp8/tools/commands/measure/measure_run.h"
#include "fp8/tools/models/registry.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

using torch::jit::Module;

Module with_forward(const std::string& code) {
  Module m("M");
  m.register_attribute("training", c10::BoolType::get(), false);
  m.define(code);
  return m;
}

struct Entry {
  std::string name;
  at::Tensor tensor;
};

std::filesystem::path write(const test::TempDir& folder, const std::vector<Entry>& tensors) {
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& t : tensors)
    entries.push_back(
        {t.name, t.tensor.scalar_type() == at::kLong ? io::DType::I64 : io::DType::F32, t.tensor.sizes().vec()});
  io::SafetensorsWriter writer(folder / "in.safetensors", entries);
  for (const auto& t : tensors) writer.write(t.name, t.tensor.contiguous().const_data_ptr());
  writer.commit();
  return folder / "in.safetensors";
}

TEST(KvCacheOptions, ModesHaveNames) { test::check_names<KvCacheOptions::Mode>(); }

using FilesForScripts = InFolder;

TEST_F(FilesForScripts, TensorsAreNamedAsTheArguments) {
  const at::Tensor x = torch::randn({5, 3}), y = torch::randn({5});
  const auto model = with_forward(
      "def forward(self, x, scale: float, y, flag: bool=True, more: int=3):\n  return x * scale + y.sum()\n");
  const auto file = write(folder, {{"y", y}, {"x", x}, {"scale", torch::tensor({0.5f})}});
  const ScriptInputs inputs(file, model, {});
  EXPECT_EQ(inputs.samples(), 5);
  EXPECT_EQ(inputs.batch(), 8);
  const auto arguments = inputs.arguments(1, 2, at::kCPU, std::nullopt);
  ASSERT_EQ(arguments.size(), 3u);  // trailing defaults are left out
  EXPECT_TRUE(torch::equal(arguments[0].toTensor(), x.narrow(0, 1, 2)));
  EXPECT_EQ(arguments[1].toDouble(), 0.5);
  EXPECT_TRUE(torch::equal(arguments[2].toTensor(), y.narrow(0, 1, 2)));
  EXPECT_EQ(inputs.arguments(0, 1, at::kCPU, at::kBFloat16)[0].toTensor().scalar_type(), at::kBFloat16);
}

TEST_F(FilesForScripts, ADefaultBeforeAGivenArgumentIsPassed) {
  const auto model = with_forward("def forward(self, x, n: int=7, y: Optional[Tensor]=None):\n  return x\n");
  const auto file = write(folder, {{"x", torch::zeros({2})}, {"y", torch::ones({2})}});
  const auto arguments = ScriptInputs(file, model, {}).arguments(0, 1, at::kCPU, std::nullopt);
  ASSERT_EQ(arguments.size(), 3u);
  EXPECT_EQ(arguments[1].toInt(), 7);
  EXPECT_TRUE(torch::equal(arguments[2].toTensor(), torch::ones({1})));
}

TEST_F(FilesForScripts, SamplesAndSkipSelectAndBatchFollowsTheState) {
  const at::Tensor x = torch::arange(6, at::kFloat);
  const auto file = write(folder, {{"x", x}});
  const auto model = with_forward("def forward(self, x):\n  return x\n");
  const ScriptInputs some(file, model, {.samples = 3, .skip = 2, .batch = 2});
  EXPECT_EQ(some.samples(), 3);
  EXPECT_EQ(some.batch(), 2);
  EXPECT_TRUE(torch::equal(some.arguments(2, 1, at::kCPU, std::nullopt)[0].toTensor(), torch::tensor({4.0f})));
  EXPECT_EQ(ScriptInputs(file, model, {.samples = 30, .skip = 2}).samples(), 4);
  EXPECT_ERROR(io::Error, ScriptInputs(file, model, {.skip = 6}), "--skip passes over all of them");

  Module keeps("Keeps");
  keeps.register_attribute("training", c10::BoolType::get(), false);
  keeps.register_attribute("sum", c10::TensorType::get(), torch::zeros({1}));
  keeps.define("def forward(self, x):\n  self.sum = self.sum + x\n  return self.sum\n");
  EXPECT_TRUE(keeps_state(keeps));
  EXPECT_FALSE(keeps_state(model));
  EXPECT_EQ(ScriptInputs(file, keeps, {}).batch(), 1);
  EXPECT_EQ(ScriptInputs(file, keeps, {.batch = 3}).batch(), 3);
}

TEST_F(FilesForScripts, WhatIsRefused) {
  const auto model = with_forward("def forward(self, x, n: int):\n  return x\n");
  const auto refused = [&](const std::vector<Entry>& tensors) {
    return error_of<io::Error>([&] { ScriptInputs(write(folder, tensors), model, {}); });
  };
  EXPECT_THAT(refused({{"y", torch::zeros({2})}}), HasSubstr("expected a tensor 'x'"));
  EXPECT_THAT(refused({{"x", torch::zeros({2})}}), HasSubstr("expected a tensor 'n' (forward's argument of type int)"));
  EXPECT_THAT(refused({{"x", torch::zeros({2})}, {"n", torch::zeros({2}, at::kLong)}}),
              HasSubstr("n: found 2 elements"));
  EXPECT_THAT(refused({{"x", torch::zeros({2})}, {"n", torch::zeros({1})}}), HasSubstr("allowed: an integer"));
  EXPECT_THAT(refused({{"x", torch::zeros({})}, {"n", torch::zeros({1}, at::kLong)}}),
              HasSubstr("the same number of samples"));
  EXPECT_EQ(refused({{"x", torch::zeros({2})}, {"n", torch::zeros({1}, at::kLong)}}), "");
  EXPECT_ERROR(io::Error, ScriptInputs(folder / "x.txt", model, {}), "from a .safetensors or .wav file");
  const auto lists = with_forward("def forward(self, x: List[int]):\n  return x\n");
  EXPECT_ERROR(io::Error, ScriptInputs(write(folder, {{"x", torch::zeros({2}, at::kLong)}}), lists, {}),
               "allowed: Tensor, int, float, bool");
}

TEST_F(FilesForScripts, SoundComesInChunksWithItsRate) {
  std::string data;
  for (int i = 0; i < 10; ++i) {
    const std::int16_t sample = static_cast<std::int16_t>(i * 1024);
    data.append(reinterpret_cast<const char*>(&sample), 2);
  }
  const std::string format("\x01\x00\x01\x00\x40\x1F\x00\x00\x80\x3E\x00\x00\x02\x00\x10\x00",
                           16);  // PCM, mono, 8000 Hz, 16 bits
  std::ofstream(folder / "a.wav", std::ios::binary)
      << "RIFF" << std::string("\x38\x00\x00\x00", 4) << "WAVEfmt " << std::string("\x10\x00\x00\x00", 4) << format
      << "data" << std::string("\x14\x00\x00\x00", 4) << data;
  const auto model = with_forward("def forward(self, x, sr: int):\n  return x\n");
  const ScriptInputs inputs(folder / "a.wav", model, {.chunk = 4});
  EXPECT_EQ(inputs.samples(), 2);  // the last two frames are dropped
  const auto arguments = inputs.arguments(1, 1, at::kCPU, std::nullopt);
  EXPECT_TRUE(torch::equal(arguments[0].toTensor(), torch::tensor({{4.0f, 5.0f, 6.0f, 7.0f}}) / 32));
  EXPECT_EQ(arguments[1].toInt(), 8000);
  EXPECT_ERROR(io::Error, ScriptInputs(folder / "a.wav", model, {.chunk = 11}), "found 10 frames");
  const auto other = with_forward("def forward(self, x, rate: int):\n  return x\n");
  EXPECT_ERROR(io::Error, ScriptInputs(folder / "a.wav", other, {.chunk = 4}), "'rate' of type int");
}

TEST_F(FilesForScripts, LoadResetsTheState) {
  Module m("M");
  m.register_attribute("training", c10::BoolType::get(), true);
  m.register_attribute("sum", c10::TensorType::get(), torch::full({1}, 5.0));
  m.define(
      "def reset_states(self):\n  self.sum = torch.zeros([1])\ndef forward(self, x):\n  self.sum = self.sum + x\n  "
      "return self.sum\n");
  m.save((folder / "m.pt").string());
  Context context{.device = "cpu"};
  Module loaded = load_script(folder / "m.pt", context);
  EXPECT_EQ(loaded.forward({torch::ones({1})}).toTensor().item<float>(), 1.0f);
  EXPECT_FALSE(loaded.is_training());
  std::ofstream(folder / "text.pt") << "not a zip";
  EXPECT_ERROR(io::Error, load_script(folder / "text.pt", context), "not a TorchScript file");
  EXPECT_ERROR(io::Error, load_script(folder / "none.pt", context), "none.pt");
}

TEST_F(FilesForScripts, DeviceConstantsOfATraceFollowTheModel) {
  with_forward("def forward(self, x):\n  return x + torch.ones([1], device=torch.device('cuda:0'))\n")
      .save((folder / "m.pt").string());
  Module loaded = load_script(folder / "m.pt", {.device = "cpu"});
  EXPECT_TRUE(torch::equal(call_forward(loaded, {torch::ones({2})}, "m.pt").toTensor(), torch::full({2}, 2.0f)));
}

TEST_F(FilesForScripts, AFailureOfForwardIsOneLine) {
  Module model = with_forward("def forward(self, x):\n  return torch.matmul(x, x)\n");
  const auto message = error_of<io::Error>([&] { call_forward(model, {torch::ones({2, 3})}, "m.pt"); });
  EXPECT_THAT(message, HasSubstr("m.pt: forward failed: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(OutputTensors, TuplesListsAndDicts) {
  const at::Tensor a = torch::zeros({1}), b = torch::ones({2});
  c10::Dict<std::string, at::Tensor> dict;
  dict.insert("k", b);
  const c10::IValue nested =
      c10::ivalue::Tuple::create({a, c10::ivalue::Tuple::create({c10::List<at::Tensor>({a, b}), dict}), c10::IValue()});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : output_tensors(nested)) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("output.0", "output.1.0.0", "output.1.0.1", "output.1.1.k"));
  EXPECT_EQ(output_tensors(a)[0].first, "output");
  EXPECT_ERROR(io::Error, output_tensors(c10::IValue(3)), "output is Int");
}

// WAV files: values against the formulas of the formats, and everything that is refused.

template <class T>
std::string bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string chunk(const std::string& id, const std::string& data) {
  return id + bytes(static_cast<std::uint32_t>(data.size())) + data +
         (data.size() % 2 == 1 ? std::string(1, '\0') : "");
}

struct Header {
  std::uint16_t format = 1, channels = 1;
  std::uint32_t rate = 16000;
  std::uint16_t bits = 16;
  int frame_bytes = -1;

  std::string text() const {
    const auto frame = static_cast<std::uint16_t>(frame_bytes >= 0 ? frame_bytes : channels * (bits / 8));
    return bytes(format) + bytes(channels) + bytes(rate) + bytes(rate * frame) + bytes(frame) + bytes(bits);
  }
};

std::string wav(const Header& header, const std::string& data, const std::string& before = "") {
  const std::string body = "WAVE" + chunk("fmt ", header.text()) + before + chunk("data", data);
  return "RIFF" + bytes(static_cast<std::uint32_t>(body.size())) + body;
}

std::string wav_error(const std::string& file) {
  try {
    parse_wav(file, "a.wav");
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), StartsWith("a.wav: "));
    return error.what();
  }
  return "accepted";
}

TEST(Wav, SixteenBitSamplesAreMultiplesOfTwoToTheMinus15) {
  const auto file = wav(
      {}, bytes<std::int16_t>(0) + bytes<std::int16_t>(-32768) + bytes<std::int16_t>(32767) + bytes<std::int16_t>(-1));
  const Wav sound = parse_wav(file, "a.wav");
  EXPECT_EQ(sound.sample_rate, 16000);
  EXPECT_EQ(sound.channels, 1);
  EXPECT_THAT(sound.samples, ElementsAre(0.0f, -1.0f, 32767.0f / 32768.0f, -1.0f / 32768.0f));
}

TEST(Wav, OtherWidths) {
  EXPECT_THAT(parse_wav(wav({.bits = 8}, std::string("\x00\x80\xFF\x81", 4)), "").samples,
              ElementsAre(-1.0f, 0.0f, 127.0f / 128, 1.0f / 128));
  // 24 bits, low byte first: 0x000001, 0xFFFFFF = -1, 0x800000 = -2^23, 0x7FFFFF
  const std::string three("\x01\x00\x00\xFF\xFF\xFF\x00\x00\x80\xFF\xFF\x7F", 12);
  EXPECT_THAT(parse_wav(wav({.bits = 24}, three), "").samples,
              ElementsAre(0x1p-23f, -0x1p-23f, -1.0f, 8388607.0f / 8388608.0f));
  const auto four = bytes<std::int32_t>(1 << 30) + bytes<std::int32_t>(std::numeric_limits<std::int32_t>::min());
  EXPECT_THAT(parse_wav(wav({.bits = 32}, four), "").samples, ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(parse_wav(wav({.format = 3, .bits = 32}, bytes(0.1f) + bytes(-3.5f)), "").samples,
              ElementsAre(0.1f, -3.5f));
}

TEST(Wav, ChannelsAreAveraged) {
  std::string data;
  for (const int value : {100, 300, -7, -8}) data += bytes(static_cast<std::int16_t>(value));
  const Wav sound = parse_wav(wav({.channels = 2, .rate = 8000}, data), "");
  EXPECT_EQ(sound.channels, 2);
  EXPECT_EQ(sound.sample_rate, 8000);
  EXPECT_THAT(sound.samples, ElementsAre(200.0f / 32768, -7.5f / 32768));
}

TEST(Wav, ExtensibleFormatNamesItsRealOne) {
  std::string guid =
      bytes<std::uint16_t>(1) + std::string("\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71", 14);
  const std::string format = Header{.format = 0xFFFE}.text() + bytes<std::uint16_t>(22) + bytes<std::uint16_t>(16) +
                             bytes<std::uint32_t>(4) + guid;
  const auto file = [](const std::string& f) {
    return "RIFF" + bytes(0u) + "WAVE" + chunk("fmt ", f) + chunk("data", bytes<std::int16_t>(16384));
  };
  EXPECT_THAT(parse_wav(file(format), "").samples, ElementsAre(0.5f));
  EXPECT_THAT(wav_error(file(format.substr(0, 26))), HasSubstr("extensible"));
}

TEST(Wav, OtherChunksArePassedOverWithTheirPadByte) {
  EXPECT_THAT(parse_wav(wav({}, bytes<std::int16_t>(16384), chunk("LIST", "abc") + chunk("junk", "")), "").samples,
              ElementsAre(0.5f));
}

TEST(Wav, WhatIsRefused) {
  const std::string two = bytes<std::int16_t>(1);
  EXPECT_THAT(wav_error(""), HasSubstr("no RIFF/WAVE header"));
  EXPECT_THAT(wav_error("RIFX0000WAVEfmt "), HasSubstr("no RIFF/WAVE header"));
  EXPECT_THAT(wav_error(wav({.format = 2}, two)), HasSubstr("found format 2"));
  EXPECT_THAT(wav_error(wav({.bits = 12}, two)), HasSubstr("of 12 bits"));
  EXPECT_THAT(wav_error(wav({.format = 3, .bits = 16}, two)), HasSubstr("found format 3 of 16 bits"));
  EXPECT_THAT(wav_error(wav({.channels = 0}, two)), HasSubstr("0 channels"));
  EXPECT_THAT(wav_error(wav({.channels = 65}, two)), HasSubstr("65 channels"));
  EXPECT_THAT(wav_error(wav({.rate = 0}, two)), HasSubstr("sampling rate of 0"));
  EXPECT_THAT(wav_error(wav({.frame_bytes = 4}, two + two)), HasSubstr("4 bytes per frame"));
  EXPECT_THAT(wav_error(wav({}, two + "x")), HasSubstr("a multiple of the frame's 2"));
  EXPECT_THAT(wav_error(wav({}, "")), HasSubstr("no samples"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("data", two)), HasSubstr("before 'fmt '"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("fmt ", "0123456789")), HasSubstr("found 10 bytes"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("fmt ", Header().text())), HasSubstr("no chunk 'data'"));
  EXPECT_THAT(wav_error(wav({.format = 3, .bits = 32}, bytes(std::numeric_limits<float>::quiet_NaN()))),
              HasSubstr("frame 0: found NaN"));
}

TEST(Wav, AFileCutAnywhereIsRefused) {
  const std::string whole = wav({}, std::string(64, 'a'), chunk("LIST", "ab"));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(wav_error(whole.substr(0, length)), "accepted") << length;
}

TEST(Wav, AHeaderThatPromisesMoreThanTheFileHolds) {
  std::string file = wav({}, std::string(8, 'a'));
  const std::uint32_t huge = 0xFFFFFFF0u;
  std::memcpy(file.data() + file.size() - 12, &huge, 4);
  EXPECT_THAT(wav_error(file), HasSubstr("its header says 4294967280"));
}

// How much is measured by default, against 6e13 operations at 2 a parameter and token, by hand.

TEST(CalibrationSize, SamplesOfAModelOfSoManyParameters) {
  EXPECT_EQ(default_samples(0, 2048), 512);
  EXPECT_EQ(default_samples(1'700'000, 2048), 512);
  EXPECT_EQ(default_samples(100'000'000, 2048), 146);    // 300 000 tokens
  EXPECT_EQ(default_samples(1'100'000'000, 2048), 16);   // 27 272, less than the 32 768 that there always are
  EXPECT_EQ(default_samples(70'000'000'000, 4096), 8);   // the same
  EXPECT_EQ(default_samples(70'000'000'000, 65536), 1);  // one chunk at least
}

TEST(CalibrationSize, ABatchIsAsManyAs2048Tokens) {
  EXPECT_EQ(default_batch(2048), 1);
  EXPECT_EQ(default_batch(256), 8);
  EXPECT_EQ(default_batch(16), 8);
  EXPECT_EQ(default_batch(32768), 1);
}

TEST(CalibrationSize, OfTheDemoModelAndSaid) {
  MeasureOptions options;
  options.model = test::demo_data() / "kjv-byte-1.7M";
  options.samples = options.seq_len = options.batch = 0;
  const auto sized_here = sized(options);
  EXPECT_EQ(sized_here.samples, 512);
  EXPECT_EQ(sized_here.seq_len, 512);  // its context
  EXPECT_EQ(sized_here.batch, 4);
  EXPECT_EQ(size_note(sized_here), " of 512 tokens");
  options.samples = 7, options.seq_len = 64;
  const auto given = sized(options);
  EXPECT_EQ(given.samples, 7);
  EXPECT_EQ(given.batch, 8);
  EXPECT_EQ(size_note(given), " of 64 tokens");
  auto large = given;
  large.samples = 16, large.sized_here = true;
  EXPECT_THAT(size_note(large), HasSubstr("(at most 16 by default for a model of this size; --samples 512 for more)"));
}

constexpr std::int64_t kWide = 16, kWidest = 24, kBlocks = 2, kWords = 32, kOfThem = 4;

std::shared_ptr<models::CausalLM> model_of(const io::Json& more) {
  io::Json config = {{"vocab_size", kWords},          {"hidden_size", kWide},        {"intermediate_size", kWidest},
                     {"num_hidden_layers", kBlocks},  {"num_attention_heads", 4},    {"num_key_value_heads", 2},
                     {"max_position_embeddings", 64}, {"tie_word_embeddings", false}};
  config.update(more);
  return models::parse_config(config, "config.json").make();
}

constexpr std::int64_t kHeadWeights = 2 * kWide * kWide + 2 * (kWide / 2) * kWide, kMlpWeights = 3 * kWidest * kWide;

TEST(Forecast, EachWeightThatMultipliesATokenCounts) {
  EXPECT_EQ(multiplied_weights(*model_of({{"model_type", "llama"}})),
            kBlocks * (kHeadWeights + kMlpWeights) + kWords * kWide);
  // A token is sent to two of four experts; the router sees each.
  const auto mixture =
      model_of({{"model_type", "mixtral"}, {"num_local_experts", kOfThem}, {"num_experts_per_tok", 2}});
  EXPECT_EQ(multiplied_weights(*mixture),
            kBlocks * (kHeadWeights + 2 * kMlpWeights + kOfThem * kWide) + kWords * kWide);
}

TEST(Forecast, OperationsAreThoseOfProductsAndAttention) {
  const auto model = model_of({{"model_type", "llama"}});
  const auto work = forward_work("measure", *model, /*tokens=*/1000, /*columns=*/50, /*bytes=*/7);
  // Two for each weight; a token has 25 before it at the mean, whose keys and values are H wide in each layer.
  EXPECT_DOUBLE_EQ(work.operations, 1000.0 * (2.0 * multiplied_weights(*model) + 2 * 2 * 25 * kWide * kBlocks));
}

TEST(Forecast, IsSaidOfRunsOfMoreThanAMinute) {
  const Work work{"measure", 8'030'000'000, 131'072, 120e9, 17'100'000'000};
  EXPECT_EQ(forecast_text(work, 2.1e9), "");
  EXPECT_EQ(forecast_text(work, 1e9),
            "measure: about 2 min and 17.1 GB of memory: 131,072 tokens x 8.03 G weights, reckoned at 1 GFLOP/s as "
            "tried on this machine");
}

}  // namespace
}  // namespace fp8::commands
