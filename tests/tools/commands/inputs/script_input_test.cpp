// SPDX-License-Identifier: Apache-2.0
// Arguments of a TorchScript model from files, and the tensors in what it returns.
#include "fp8/tools/commands/inputs/script_input.h"

#include <torch/script.h>
#include <torch/torch.h>

#include <fstream>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/commands/inputs/model_input.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
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

TEST(ScriptInputs, TensorsAreNamedAsTheArguments) {
  const test::TempDir folder;
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

TEST(ScriptInputs, ADefaultBeforeAGivenArgumentIsPassed) {
  const test::TempDir folder;
  const auto model = with_forward("def forward(self, x, n: int=7, y: Optional[Tensor]=None):\n  return x\n");
  const auto file = write(folder, {{"x", torch::zeros({2})}, {"y", torch::ones({2})}});
  const auto arguments = ScriptInputs(file, model, {}).arguments(0, 1, at::kCPU, std::nullopt);
  ASSERT_EQ(arguments.size(), 3u);
  EXPECT_EQ(arguments[1].toInt(), 7);
  EXPECT_TRUE(torch::equal(arguments[2].toTensor(), torch::ones({1})));
}

TEST(ScriptInputs, SamplesAndSkipSelectAndBatchFollowsTheState) {
  const test::TempDir folder;
  const at::Tensor x = torch::arange(6, at::kFloat);
  const auto file = write(folder, {{"x", x}});
  const auto model = with_forward("def forward(self, x):\n  return x\n");
  const ScriptInputs some(file, model, {.samples = 3, .skip = 2, .batch = 2});
  EXPECT_EQ(some.samples(), 3);
  EXPECT_EQ(some.batch(), 2);
  EXPECT_TRUE(torch::equal(some.arguments(2, 1, at::kCPU, std::nullopt)[0].toTensor(), torch::tensor({4.0f})));
  EXPECT_EQ(ScriptInputs(file, model, {.samples = 30, .skip = 2}).samples(), 4);
  EXPECT_THAT(error_of<io::Error>([&] { ScriptInputs(file, model, {.skip = 6}); }),
              HasSubstr("--skip passes over all of them"));

  Module keeps("Keeps");
  keeps.register_attribute("training", c10::BoolType::get(), false);
  keeps.register_attribute("sum", c10::TensorType::get(), torch::zeros({1}));
  keeps.define("def forward(self, x):\n  self.sum = self.sum + x\n  return self.sum\n");
  EXPECT_TRUE(keeps_state(keeps));
  EXPECT_FALSE(keeps_state(model));
  EXPECT_EQ(ScriptInputs(file, keeps, {}).batch(), 1);
  EXPECT_EQ(ScriptInputs(file, keeps, {.batch = 3}).batch(), 3);
}

TEST(ScriptInputs, WhatIsRefused) {
  const test::TempDir folder;
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
  EXPECT_THAT(error_of<io::Error>([&] { ScriptInputs(folder / "x.txt", model, {}); }),
              HasSubstr("from a .safetensors or .wav file"));
  const auto lists = with_forward("def forward(self, x: List[int]):\n  return x\n");
  EXPECT_THAT(
      error_of<io::Error>([&] { ScriptInputs(write(folder, {{"x", torch::zeros({2}, at::kLong)}}), lists, {}); }),
      HasSubstr("allowed: Tensor, int, float, bool"));
}

TEST(ScriptInputs, SoundComesInChunksWithItsRate) {
  const test::TempDir folder;
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
  EXPECT_THAT(error_of<io::Error>([&] { ScriptInputs(folder / "a.wav", model, {.chunk = 11}); }),
              HasSubstr("found 10 frames"));
  const auto other = with_forward("def forward(self, x, rate: int):\n  return x\n");
  EXPECT_THAT(error_of<io::Error>([&] { ScriptInputs(folder / "a.wav", other, {.chunk = 4}); }),
              HasSubstr("'rate' of type int"));
}

TEST(ScriptInputs, LoadResetsTheState) {
  const test::TempDir folder;
  Module m("M");
  m.register_attribute("training", c10::BoolType::get(), true);
  m.register_attribute("sum", c10::TensorType::get(), torch::full({1}, 5.0));
  m.define(
      "def reset_states(self):\n  self.sum = torch.zeros([1])\ndef forward(self, x):\n  self.sum = self.sum + x\n  "
      "return self.sum\n");
  m.save((folder / "m.pt").string());
  Context context;
  context.device = "cpu";
  Module loaded = load_script(folder / "m.pt", context);
  EXPECT_EQ(loaded.forward({torch::ones({1})}).toTensor().item<float>(), 1.0f);
  EXPECT_FALSE(loaded.is_training());
  std::ofstream(folder / "text.pt") << "not a zip";
  EXPECT_THAT(error_of<io::Error>([&] { load_script(folder / "text.pt", context); }),
              HasSubstr("not a TorchScript file"));
  EXPECT_THAT(error_of<io::Error>([&] { load_script(folder / "none.pt", context); }), HasSubstr("none.pt"));
}

TEST(ScriptInputs, DeviceConstantsOfATraceFollowTheModel) {
  const test::TempDir folder;
  with_forward("def forward(self, x):\n  return x + torch.ones([1], device=torch.device('cuda:0'))\n")
      .save((folder / "m.pt").string());
  Context context;
  context.device = "cpu";
  Module loaded = load_script(folder / "m.pt", context);
  EXPECT_TRUE(torch::equal(call_forward(loaded, {torch::ones({2})}, "m.pt").toTensor(), torch::full({2}, 2.0f)));
}

TEST(ScriptInputs, AFailureOfForwardIsOneLine) {
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
  EXPECT_THAT(error_of<io::Error>([] { output_tensors(c10::IValue(3)); }), HasSubstr("output is Int"));
}

}  // namespace
}  // namespace fp8::commands
