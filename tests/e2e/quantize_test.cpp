// SPDX-License-Identifier: Apache-2.0
// The checkpoints of `fp8 quantize`, checked in the file with formulas written here: scale_inv = f32(amax /
// 448), the largest of q, k, v and of gate, up where scales are shared; rows of zeros have scale 1 and codes 0.
#include <sys/inotify.h>

#include "e2e/e2e.h"
#include "support/values.h"

namespace fp8::e2e {
namespace {

std::vector<float> bf16_values(const std::string& bytes) {
  std::vector<float> values(bytes.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half;
    std::memcpy(&half, &bytes[2 * i], 2);
    const std::uint32_t wide = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(&values[i], &wide, 4);
  }
  return values;
}

std::vector<float> f32_values(const std::string& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

float amax_of(const std::vector<float>& values) {
  float largest = 0;
  for (const float v : values) largest = std::max(largest, std::fabs(v));
  return largest;
}

Tensors source() { return Tensors::read(std::filesystem::path(demo_model()) / "model.safetensors"); }
float amax_of(const Tensors& file, const std::string& module) {
  return amax_of(bf16_values(file.bytes_of(module + ".weight")));
}
float scale_of(const Tensors& file, const std::string& module) {
  return f32_values(file.bytes_of(module + ".weight_scale")).at(0);
}

class Quantize : public test::InFolder {};

TEST_F(Quantize, ScalesAreSharedUnlessToldOtherwise) {
  quantize(demo_model(), folder / "shared", args("--weights-only --scheme tensor"));
  quantize(demo_model(), folder / "own", args("--weights-only --scheme tensor:unfused"));
  const Tensors from = source(), shared = Tensors::read(folder / "shared/model.safetensors"),
                own = Tensors::read(folder / "own/model.safetensors");
  int different = 0;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    for (const std::vector<std::string>& group :
         {std::vector<std::string>{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
          {"self_attn.o_proj"},
          {"mlp.gate_proj", "mlp.up_proj"},
          {"mlp.down_proj"}}) {
      float largest = 0;
      for (const auto& name : group) largest = std::max(largest, amax_of(from, at + name));
      for (const auto& name : group) {
        EXPECT_EQ(scale_of(shared, at + name), largest / 448.0f) << name;
        EXPECT_EQ(scale_of(own, at + name), amax_of(from, at + name) / 448.0f) << name;
        different += scale_of(shared, at + name) != scale_of(own, at + name) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(different, 0);
}

/// 2^(byte - 127) is the least power of two under which 32 neighbours of a row fit into 448.
TEST_F(Quantize, MxHasAnExponentForEach32) {
  const auto json = json_of(fp8("quantize --json --model $DEMO --dynamic --scheme mx --out {} --check", folder / "mx"));
  for (const auto& reader : json["readers"]) EXPECT_EQ(reader["loads"], true) << reader;
  const Tensors from = source(), file = Tensors::read(folder / "mx/model.safetensors");
  const std::string module = "model.layers.1.mlp.down_proj";
  const auto w = bf16_values(from.bytes_of(module + ".weight"));
  const std::string codes = file.bytes_of(module + ".weight"), exponents = file.bytes_of(module + ".weight_scale");
  EXPECT_EQ(file.header[module + ".weight_scale"]["dtype"], "U8");
  ASSERT_EQ(exponents.size() * 32, w.size());
  for (std::size_t i = 0; i < exponents.size(); ++i) {
    const auto first = w.begin() + static_cast<std::ptrdiff_t>(32 * i);
    const int e = static_cast<std::uint8_t>(exponents[i]) - 127;
    EXPECT_EQ(e, std::ceil(std::log2(static_cast<double>(amax_of({first, first + 32})) / 448))) << i;
  }
  const auto kl = [&](const char* name) {
    return json_of(fp8("evaluate --json --model {} --reference $DEMO --data $HELDOUT --samples 4 --seq-len 256",
                       folder / name))["kl"]
        .get<double>();
  };
  quantize(demo_model(), folder / "channel", {"--dynamic"});
  EXPECT_LT(kl("mx"), 1.5 * kl("channel"));
  const auto lazily = json_of(fp8(args("evaluate --json --model {} --reference $DEMO --data $HELDOUT --samples 4 "
                                       "--seq-len 256",
                                       folder / "channel"),
                                  {{"PT_HPU_LAZY_MODE", "1"}}));
  EXPECT_EQ(lazily["kl"], kl("channel")) << "commands read addresses, so that they do not follow the variable";
  json_of(fp8("convert --json --model {} --format modelopt --out {} --verify", folder / "mx", folder / "mo"));
  json_of(
      fp8("convert --json --model {} --format compressed-tensors --out {} --verify", folder / "mo", folder / "back"));
  EXPECT_EQ(read_file(folder / "back/model.safetensors"), read_file(folder / "mx/model.safetensors"));
  EXPECT_EQ(io::read_json(folder / "back/config.json"), io::read_json(folder / "mx/config.json"));
  json_of(fp8("convert --json --model {} --format bf16 --out {} --verify", folder / "mx", folder / "bf16"));
  quantize(folder / "bf16", folder / "again", args("--dynamic --scheme mx"));
  EXPECT_EQ(kl("again"), kl("mx")) << "every value is one of bf16";
  expect_quantize_refused(demo_model(), args("--dynamic --scheme mx --block 32"), {"--scheme block"}, 2);
  expect_quantize_refused(demo_model(), args("--dynamic --scheme mx --scale-format f32"), {"--scheme block"}, 2);
  measure(demo_model(), calibration_text(), folder / "stats", "1");
  expect_quantize_refused(demo_model(), args("--measurements {} --scheme mx", folder / "stats"), {"--dynamic"}, 2);
}

TEST_F(Quantize, ADryRunCountsWhatTheRunWrites) {
  measure(demo_model(), calibration_text(), folder / "stats", "1");
  for (const Arguments& way : {Arguments{"--measurements", (folder / "stats").string()}, Arguments{"--dynamic"},
                               args("--weights-only --scheme tensor"), args("--dynamic --include lm_head"),
                               args("--dynamic --exclude layers\\.[01]\\.")}) {
    const test::TempDir out;
    Arguments arguments = args("quantize --json --model $DEMO --out {} {}", out / "out", way);
    const auto real = json_of(fp8(arguments));
    const Tensors file = Tensors::read(out / "out/model.safetensors");
    std::filesystem::remove_all(out / "out");
    arguments.push_back("--dry-run");
    const auto dry = json_of(fp8(arguments));
    EXPECT_THAT(names_in(out.path()), IsEmpty());
    for (const char* key : {"modules_quantized", "modules_skipped", "scheme", "weights_bytes", "source_bytes"})
      EXPECT_EQ(dry[key], real[key]) << key;
    EXPECT_EQ(real["weights_bytes"], file.data.size());
    std::size_t codes = 0;
    for (const auto& [name, info] : file.header.items())
      codes += name != "__metadata__" && info["dtype"] == "F8_E4M3" ? 1 : 0;
    EXPECT_EQ(real["modules_quantized"], codes);
    EXPECT_EQ(dry["modules"].size(), codes);
  }
}

TEST_F(Quantize, IncludeAndExcludeChooseModules) {
  quantize(demo_model(), folder / "out",
           {"--dynamic", "--include", "lm_head", "--exclude", "layers\\.2\\.", "--exclude", "up_proj$"});
  const Tensors file = Tensors::read(folder / "out/model.safetensors");
  EXPECT_EQ(file.header["lm_head.weight"]["dtype"], "F8_E4M3");
  EXPECT_EQ(file.header["model.embed_tokens.weight"]["dtype"], "BF16");
  EXPECT_EQ(file.header["model.layers.2.mlp.down_proj.weight"]["dtype"], "BF16");
  EXPECT_EQ(file.header["model.layers.1.mlp.up_proj.weight"]["dtype"], "BF16");
  EXPECT_EQ(file.header["model.layers.1.mlp.gate_proj.weight"]["dtype"], "BF16")
      << "engines run it as one product with up_proj";
  EXPECT_EQ(file.header["model.layers.1.mlp.down_proj.weight"]["dtype"], "F8_E4M3");
  const auto config = io::read_json(folder / "out/config.json");
  EXPECT_THAT(config["quantization_config"]["ignore"].get<std::vector<std::string>>(),
              Contains("model.layers.2.mlp.down_proj"));
  EXPECT_EQ(file.bytes_of("model.layers.2.mlp.down_proj.weight"),
            source().bytes_of("model.layers.2.mlp.down_proj.weight"));
  const auto result =
      json_of(fp8("evaluate --json --model {} --reference $DEMO --data $HELDOUT --seq-len 256", folder / "out"));
  EXPECT_LT(result["kl"].get<double>(), 0.01);
  expect_quantize_refused(demo_model(), {"--dynamic", "--exclude", "("}, {"--exclude"}, 2);
}

TEST_F(Quantize, ATiedHeadGetsItsOwnWeight) {
  FP8_NEED_TEST_DATA(data);
  const std::string model = (data / "models/stories260K").string();
  quantize(model, folder / "kept", {"--dynamic"});
  quantize(model, folder / "head", args("--dynamic --include lm_head"));
  EXPECT_EQ(io::read_json(folder / "kept/config.json")["tie_word_embeddings"], true);
  EXPECT_EQ(io::read_json(folder / "head/config.json")["tie_word_embeddings"], false);
  const Tensors file = Tensors::read(folder / "head/model.safetensors");
  EXPECT_EQ(file.header["lm_head.weight"]["shape"], file.header["model.embed_tokens.weight"]["shape"]);
  for (const char* name : {"kept", "head"}) {
    const auto result = json_of(fp8("evaluate --json --model {} --reference {} --data {} --samples 16 --seq-len 256",
                                    folder / name, model, data / "text/ts_calib.txt"));
    EXPECT_GT(result["kl"].get<double>(), 0.0);
    EXPECT_LT(result["kl"].get<double>(), 0.05);
  }
}

TEST_F(Quantize, RowsOfZerosHaveScaleOneAndCodesZero) {
  const std::string some = "model.layers.0.mlp.up_proj", all = "model.layers.1.mlp.down_proj";
  Tensors zeros = source();
  zeros.poke(some + ".weight", std::string(3 * 192 * 2, '\0'));  // bf16 rows of 192
  zeros.poke(all + ".weight", std::string(zeros.bytes_of(all + ".weight").size(), '\0'));
  const Model model;
  model.write("model.safetensors", zeros.bytes());
  measure(model.name(), calibration_text(), folder / "stats", "2");
  quantize(model.name(), folder / "channel", {"--dynamic"});
  quantize(model.name(), folder / "tensor", {"--measurements", (folder / "stats").string()});
  const Tensors channel = Tensors::read(folder / "channel/model.safetensors"),
                tensor = Tensors::read(folder / "tensor/model.safetensors");
  const auto scales = f32_values(channel.bytes_of(some + ".weight_scale"));
  for (int row = 0; row < 3; ++row) EXPECT_EQ(scales[row], 1.0f);
  EXPECT_NE(scales[3], 1.0f);
  EXPECT_EQ(channel.bytes_of(some + ".weight").substr(0, 3 * 192), std::string(3 * 192, '\0'));
  EXPECT_EQ(scale_of(tensor, all), 1.0f);
  EXPECT_EQ(tensor.bytes_of(all + ".weight"), std::string(tensor.bytes_of(all + ".weight").size(), '\0'));
  for (const char* name : {"channel", "tensor"}) {
    const auto result =
        json_of(fp8("evaluate --json --model {} --reference {} --data $HELDOUT --samples 8 --seq-len 256",
                    folder / name, model.name()));
    EXPECT_LT(result["kl"].get<double>(), 0.05);
  }
}

TEST_F(Quantize, ShardsGiveTheSameCheckpointAndStrayFilesStayBehind) {
  const Tensors whole = source();
  const Model model;
  std::filesystem::remove(model.path() / "model.safetensors");
  Tensors shards[3];
  io::Json map = io::Json::object();
  int next = 0;
  for (const auto& [name, info] : whole.header.items()) {
    if (name == "__metadata__") continue;
    Tensors& shard = shards[next % 3];
    const std::string bytes = whole.bytes_of(name);
    shard.header[name] = info;
    shard.header[name]["data_offsets"] = {shard.data.size(), shard.data.size() + bytes.size()};
    shard.data += bytes;
    map[name] = "model-0000" + std::to_string(next++ % 3 + 1) + "-of-00003.safetensors";
  }
  for (int i = 0; i < 3; ++i)
    model.write("model-0000" + std::to_string(i + 1) + "-of-00003.safetensors", shards[i].bytes());
  model.write("model.safetensors.index.json",
              io::Json{{"metadata", {{"total_size", whole.data.size()}}}, {"weight_map", map}}.dump());
  model.write("stray.safetensors", "junk");
  model.write("pytorch_model.bin", "junk");
  model.write("hf_quant_config.json", "{}");
  model.write("generation_config.json", "{\"eos_token_id\": 0}");
  const auto run = succeeded(fp8("quantize --model {} --out {} --dynamic", model.name(), folder / "shards"));
  for (const char* named : {"stray.safetensors is not read", "hidden files): pytorch_model.bin"})
    EXPECT_THAT(run.err, HasSubstr(named));
  quantize(demo_model(), folder / "whole", {"--dynamic"});
  EXPECT_THAT(names_in(folder / "shards"), ElementsAre("README.md", "config.json", "fp8.json", "generation_config.json",
                                                       "model.safetensors", "tokenizer.json", "tokenizer_config.json"));
  auto files = results(folder / "shards"), whole_files = results(folder / "whole");
  EXPECT_EQ(files.at("generation_config.json"), "{\"eos_token_id\": 0}");
  files.erase("generation_config.json");
  EXPECT_THAT(whole_files.at("README.md"), HasSubstr("base_model: kjv-byte-1.7M\n"));
  for (auto* all : {&files, &whole_files}) all->erase("README.md");  // which names the source
  EXPECT_EQ(files, whole_files);
  std::filesystem::remove(model.path() / "stray.safetensors");  // which evaluate would name too
  EXPECT_TRUE(logits(model.name(), heldout_text(), "2") == logits(demo_model(), heldout_text(), "2"));
}

// Files beside the weights of a model are carried, read or named.

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
    return json_of(fp8("embed --json --model {} --data {} --overwrite --out {}", folder, out / "text.txt",
                       out / "vectors.safetensors"));
  };
  const auto of_source = embed(model.name()), of_output = embed((out / "fp8").string());
  EXPECT_EQ(of_source["pooling"], of_output["pooling"]);
  expect_values(of_output, {{"pooling", "last"}, {"normalized", true}});
}

TEST(Beside, UnboundedNumbersOfPythonInEveryConfig) {
  const Model model;
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json"}) {
    std::string text = std::filesystem::exists(model.path() / name) ? read_file(model.path() / name) : "{}";
    text.insert(text.find('{') + 1, text == "{}" ? "\"limits\": [0.0, Infinity, -Infinity, NaN]"
                                                 : "\"limits\": [0.0, Infinity, -Infinity, NaN],");
    model.write(name, text);
  }
  const test::TempDir out;
  quantize(model.name(), out / "fp8", {"--dynamic"});
  for (const char* name : {"config.json", "tokenizer_config.json", "generation_config.json"})
    EXPECT_THAT(read_file(out / "fp8" / name), HasSubstr("\"limits\": [0.0, Infinity, -Infinity, NaN]")) << name;
  for (const std::string& folder : {model.name(), (out / "fp8").string()})
    expect_success(fp8("generate --model {} --prompt 'In the' --tokens 2", folder));
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
       {args("quantize --dynamic --out {}", out / "fp8"), args("convert --format f32 --out {} --json", out / "f32"),
        args("evaluate --data {} --samples 1 --seq-len 32", data),
        args("measure --data {} --samples 1 --seq-len 32 --out {}", data, out / "stats")}) {
    Arguments arguments = command;
    arguments.insert(arguments.end(), {"--model", model.name()});
    const auto run = succeeded(fp8(arguments));
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
    const auto run = fp8("evaluate --json --model {} --data $HELDOUT --samples 2 --seq-len 128", model.name());
    EXPECT_THAT(run.err, HasSubstr("tensors are not used, the first is 'model.layers.3."));
    perplexity[quantized ? 1 : 0] = json_of(run)["perplexity"].get<double>();
  }
  EXPECT_NEAR(perplexity[1] / perplexity[0], 1, 0.05);
  const Model model(out / "fp8");  // a module that a block of the class has not: another class's checkpoint
  std::string bytes = read_file(model.path() / "model.safetensors");
  for (std::size_t at; (at = bytes.find("layers.0.self_attn.q_proj.weight")) != std::string::npos;)
    bytes[at + 19] = 'x';
  model.write("model.safetensors", bytes);
  expect_refused(fp8("generate --model {} --prompt In --tokens 1", model.name()),
                 {"layers.0.self_attn.x_proj", "the model has no such module"});
}

// Links of a model's folder to files of the user: no command opens what they lead to, whatever the file is called and
// whichever command reads it. Seen by the kernel's own word (inotify), not by what the program says.

/// Notices that a file was opened since the object was made.
class Watch {
 public:
  explicit Watch(const fs::path& file) : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(fd_, file.c_str(), IN_OPEN), 0);
  }
  ~Watch() { ::close(fd_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  bool opened() const {
    char events[256];
    return ::read(fd_, events, sizeof events) > 0;
  }

 private:
  int fd_;
};

/// Each file of `model` in turn lies elsewhere, and a link to it in its place. A command may fail by naming it, name it
/// and go on without it, or not need it; one of them at least has to do with each file.
void expect_no_link_is_followed(const Model& model, const std::vector<Arguments>& commands) {
  const test::TempDir home;
  for (const std::string& name : names_in(model.path())) {
    SCOPED_TRACE(name);
    const fs::path here = model.path() / name, elsewhere = home / name;
    fs::rename(here, elsewhere);
    fs::create_symlink(elsewhere, here);
    bool named = false;
    for (const Arguments& command : commands) {
      SCOPED_TRACE(command[0]);
      const Watch watch(elsewhere);
      const auto run = fp8(command);
      EXPECT_FALSE(watch.opened()) << run.err;
      if ((run.out + run.err).find(name + ": ") != std::string::npos) named = true;
      if (run.code != 0) expect_refused(run, {(here.string() + ": is a link to " + elsewhere.string()).c_str()});
    }
    EXPECT_TRUE(named);
    fs::remove(here);
    fs::rename(elsewhere, here);
  }
}

TEST(ForeignLinks, OfAModelAreNotFollowed) {
  const Model model;
  const test::TempDir folder;
  for (const char* name : {"generation_config.json", "special_tokens_map.json"}) model.write(name, "{}");
  model.write("chat_template.jinja", "{{ messages[0].content }}");
  for (const char* name : {"README.md", "NOTICE"}) model.write(name, "text");
  write_file(folder / "chat.jsonl", R"({"messages": [{"role": "user", "content": "In the beginning God created"}]})");
  const std::string chat = (folder / "chat.jsonl").string();
  const auto out = [&](const char* name) { return (folder / name).string(); };
  expect_no_link_is_followed(
      model, {args("quantize --model {} --dynamic --overwrite --out {}", model.name(), out("fp8")),
              {"inspect", model.name()},
              args("evaluate --model {} --data {} --seq-len 8", model.name(), chat),
              args("generate --model {} --prompt In --tokens 1", model.name()),
              args("measure --model {} --data {} --seq-len 8 --out {}", model.name(), chat, out("stats")),
              args("train --model {} --data {} --seq-len 8 --batch 1 --steps 1 --overwrite --out {}", model.name(),
                   chat, out("run"))});
}

TEST(ForeignLinks, OfAnFp8CheckpointAreNotFollowed) {
  const test::TempDir folder;
  quantize(demo_model(), folder / "fp8", args("--dynamic --shard-size 1000000"));
  const Model model(folder / "fp8");
  ASSERT_TRUE(fs::exists(model.path() / "model.safetensors.index.json"));
  const std::string out = (folder / "out").string();
  expect_no_link_is_followed(model,
                             {args("convert --model {} --format bf16 --overwrite --out {}", model.name(), out),
                              {"inspect", model.name()},
                              args("evaluate --model {} --data $HELDOUT --seq-len 8 --samples 1", model.name())});
}

}  // namespace
}  // namespace fp8::e2e
