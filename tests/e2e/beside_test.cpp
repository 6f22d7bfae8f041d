// SPDX-License-Identifier: Apache-2.0
// What lies beside the weights of a model: carried, read or named.
#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

using ::testing::HasSubstr;

TEST(Beside, TheOutputEmbedsAsItsSource) {
  const Model model;
  std::filesystem::create_directories(model.path() / "1_Pooling");
  model.write("modules.json",
              R"([{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                  {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                  {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  model.write("1_Pooling/config.json", R"({"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false})");
  const test::TempDir out;
  quantize(model.name(), out / "fp8", {"--dynamic"});
  write_file(out / "text.txt", "In the beginning");
  const auto embed = [&](const std::string& folder) {
    return json_of(fp8({"embed", "--json", "--model", folder, "--data", (out / "text.txt").string(), "--out",
                        (out / "vectors.safetensors").string()}));
  };
  const auto of_source = embed(model.name()), of_output = embed((out / "fp8").string());
  EXPECT_EQ(of_source["pooling"], of_output["pooling"]);
  EXPECT_EQ(of_output["pooling"], "last");
  EXPECT_EQ(of_output["normalized"], true);
}

TEST(Beside, UnboundedNumbersOfPythonInEveryConfig) {
  const Model model;
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json"}) {
    std::string text = std::filesystem::exists(model.path() / name) ? test::read_file(model.path() / name) : "{}";
    text.insert(text.find('{') + 1, text == "{}" ? "\"limits\": [0.0, Infinity, -Infinity, NaN]"
                                                 : "\"limits\": [0.0, Infinity, -Infinity, NaN],");
    model.write(name, text);
  }
  const test::TempDir out;
  quantize(model.name(), out / "fp8", {"--dynamic"});
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_THAT(test::read_file(out / "fp8" / name), HasSubstr("\"limits\": [0.0, Infinity, -Infinity, NaN]")) << name;
  for (const std::string& folder : {model.name(), (out / "fp8").string()})
    expect_success(fp8({"generate", "--model", folder, "--prompt", "In the", "--tokens", "2"}));
}

TEST(Beside, AnAdapterAndALeftoverConfigAreNamedByEveryCommand) {
  const Model model;
  model.write("adapter_config.json", R"({"peft_type": "LORA", "base_model_name_or_path": "a/b"})");
  auto config = io::read_json(model.path() / "config.json");
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  model.write("config.json", config.dump());
  const test::TempDir out;
  const std::string data = heldout_text();
  for (const Arguments& command :
       {Arguments{"quantize", "--dynamic", "--out", (out / "fp8").string()},
        {"convert", "--to", "f32", "--out", (out / "f32").string(), "--json"},
        {"evaluate", "--data", data, "--samples", "1", "--seq-len", "32"},
        {"measure", "--data", data, "--samples", "1", "--seq-len", "32", "--out", (out / "stats").string()}}) {
    Arguments arguments = command;
    arguments.insert(arguments.end(), {"--model", model.name()});
    const auto run = fp8(arguments);
    EXPECT_EQ(run.code, 0) << run.err;
    for (const char* said : {"an adapter (adapter_config.json)", "quantization_config (bitsandbytes) is a leftover"})
      EXPECT_THAT(run.err + run.out, HasSubstr(said)) << command[0];
  }
  EXPECT_FALSE(io::read_json(out / "f32/config.json").contains("quantization_config"));
  EXPECT_FALSE(std::filesystem::exists(out / "fp8/adapter_config.json"));
}

TEST(Beside, LayersOutsideOfTheClassAreNamedInFp8AsInBf16) {
  const test::TempDir out;
  quantize(demo_model(), out / "fp8", {"--dynamic"});
  double perplexity[2] = {};
  for (const bool quantized : {false, true}) {
    const Model model(quantized ? out / "fp8" : std::filesystem::path(demo_model()));
    auto config = io::read_json(model.path() / "config.json");
    config["num_hidden_layers"] = 3;  // the fourth is then as a layer that drafts tokens: beyond those of the class
    model.write("config.json", config.dump());
    const auto run = fp8({"evaluate", "--json", "--model", model.name(), "--data", heldout_text(), "--samples", "2",
                          "--seq-len", "128"});
    EXPECT_THAT(run.err, HasSubstr("tensors are not used, the first is 'model.layers.3."));
    perplexity[quantized ? 1 : 0] = json_of(run)["perplexity"].get<double>();
  }
  EXPECT_NEAR(perplexity[1] / perplexity[0], 1, 0.05);
  const Model model(out / "fp8");  // a module that a block of the class has not: another class's checkpoint
  std::string bytes = test::read_file(model.path() / "model.safetensors");
  for (std::size_t at; (at = bytes.find("layers.0.self_attn.q_proj.weight")) != std::string::npos;)
    bytes[at + 19] = 'x';
  model.write("model.safetensors", bytes);
  expect_refused(fp8({"generate", "--model", model.name(), "--prompt", "In", "--tokens", "1"}),
                 {"layers.0.self_attn.x_proj", "the model has no such module"});
}

}  // namespace
}  // namespace fp8::e2e
