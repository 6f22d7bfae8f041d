// SPDX-License-Identifier: Apache-2.0
// Files beside the weights of a model are carried, read or named.
#include <sys/inotify.h>

#include "e2e/e2e.h"

namespace fp8::e2e {
namespace {

namespace fs = std::filesystem;

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
    return json_of(
        fp8("embed --json --model {} --data {} --out {}", folder, out / "text.txt", out / "vectors.safetensors"));
  };
  const auto of_source = embed(model.name()), of_output = embed((out / "fp8").string());
  EXPECT_EQ(of_source["pooling"], of_output["pooling"]);
  EXPECT_EQ(of_output["pooling"], "last");
  EXPECT_EQ(of_output["normalized"], true);
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
       {args("quantize --dynamic --out {}", out / "fp8"), args("convert --to f32 --out {} --json", out / "f32"),
        args("evaluate --data {} --samples 1 --seq-len 32", data),
        args("measure --data {} --samples 1 --seq-len 32 --out {}", data, out / "stats")}) {
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
      if (run.err.find(name + ": ") != std::string::npos) named = true;
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
                             {args("convert --model {} --to bf16 --overwrite --out {}", model.name(), out),
                              {"inspect", model.name()},
                              args("evaluate --model {} --data $HELDOUT --seq-len 8 --samples 1", model.name())});
}

}  // namespace
}  // namespace fp8::e2e
