// SPDX-License-Identifier: Apache-2.0
// Types told from names, files carried, shards cut.
#include "fp8/quant/forms/folder.h"

#include "fp8/quant/checkpoint/stream/stream.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using Entry = io::SafetensorsWriter::Entry;

using CheckpointFolder = InFolder;

TEST_F(CheckpointFolder, AConfigMustBeAnObjectOfAHighPrecisionModel) {
  test::write_text(folder / "config.json", R"({"b": 1, "quantization_config": null, "a": 2.50})");
  EXPECT_EQ(read_model_config(folder.path()).dump(), R"({"b":1,"a":2.5})");
}

/// Tensors a (6 bytes), b (6), c (20), d (2), written whole.
std::map<std::string, std::string> shards(std::uint64_t shard_bytes) {
  const test::TempDir dir;
  const std::vector<Entry> entries = {
      {"a", io::DType::U8, {6}}, {"b", io::DType::U8, {2, 3}}, {"c", io::DType::U8, {20}}, {"d", io::DType::F16, {}}};
  std::vector<Unit> units;
  for (const auto& e : entries)
    units.push_back({e.name,
                     {e},
                     bytes_of(e),
                     [e](UnitContext& context) {
                       const std::string bytes(bytes_of(e), 'x');
                       context.write(e.name, bytes.data(), 0, bytes.size());
                     },
                     {}});
  write_checkpoint(dir / "out", units, {.shard_bytes = shard_bytes}, [](OutputFolder&) {});
  const io::Checkpoint read(dir / "out");
  EXPECT_EQ(read.names().size(), 4u);
  EXPECT_EQ(read.total_bytes(), 34u);
  return folder_bytes(dir / "out");
}

TEST_F(CheckpointFolder, OneFileWhenItFits) {
  const auto files = shards(34);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files.begin()->first, "model.safetensors");
}

TEST_F(CheckpointFolder, ShardsAreCutBetweenTensors) {
  const auto files = shards(12);  // a b | c (larger than a shard) | d
  EXPECT_EQ(files.size(), 4u);
  const auto index = io::parse_json(files.at("model.safetensors.index.json"), "index");
  EXPECT_EQ(index["metadata"]["total_size"], 34);
  EXPECT_EQ(index["weight_map"], io::Json::parse(R"({
      "a": "model-00001-of-00003.safetensors", "b": "model-00001-of-00003.safetensors",
      "c": "model-00002-of-00003.safetensors", "d": "model-00003-of-00003.safetensors"})"));
  EXPECT_EQ(shards(1).size(), 5u);  // each its own
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

TEST_F(CheckpointFolder, CarriesEverythingButWeights) {
  const fs::path in = folder / "in";
  const auto write = [&](const std::string& name, const std::string& text) {
    fs::create_directories((in / name).parent_path());
    test::write_text(in / name, text);
  };
  // What readers ask for by name, and what only its owner knows; weights that are no copy of the model's.
  const auto wanted = words(R"(
      README.md LICENSE merges.txt spiece.model x.tiktoken generation_config.json tokenizer.json chat_template.jinja
      additional_chat_templates/rag.jinja video_preprocessor_config.json config_sentence_transformers.json
      sentence_bert_config.json 1_Pooling/config.json 2_Dense/config.json 2_Dense/model.safetensors
      2_Dense/pytorch_model.bin 3_Router/query/model.safetensors assets/voice.wav assets/vocos.pt code.py table.npy
      quantizer_levels.json spk_dict.pt trainer_state.json model)");
  for (const auto& name : wanted) write(name, '"' + std::string(name) + '"');
  write("code.py", "VOICE, WEIGHTS = 'assets/vocos.pt', 'pytorch_model.bin'");
  write("modules.json", R"([{"path": "", "type": "Transformer"}, {"path": "1_Pooling"}, {"path": "2_Dense"},
                           {"path": "3_Router"}])");
  for (const auto& name : words(R"(
      .cache/a .gitattributes README.bin a/model.h5 a/other.safetensors checkpoint-500/README.md model.gguf
      onnx/model.onnx optimizer.pt original/params.json pytorch_model.bin rng_state.pth model.safetensors
      model.safetensors.index.json pytorch_model.bin.index.json hf_quant_config.json quantization_config.json
      quant_model_description.json fp8.json recipe.yaml inc_output_hooks_maxabs.json adapter_config.json made/fp8.json
      made/tokenizer.json config.json)"))
    write(name, "{}");
  OutputFolder out(folder / "out", false, in);
  EXPECT_THAT(
      out.carry_through(in),
      ElementsAre(in.string() + ": left behind (other weights, states of training, hidden files): .cache/, "
                                ".gitattributes, README.bin, a/model.h5, a/other.safetensors, checkpoint-500/, "
                                "made/, model.gguf, onnx/model.onnx, optimizer.pt, original/, pytorch_model.bin "
                                "and 1 more"));
  out.write_json("config.json", io::Json{{"a", 1.0}});
  out.commit();
  auto files = folder_bytes(folder / "out");
  EXPECT_EQ(files.at("config.json"), "{\n  \"a\": 1.0\n}\n");
  files.erase("config.json");
  for (const auto& [name, bytes] : files) EXPECT_EQ(bytes, read_file(in / name));
  files.erase("modules.json");
  for (const auto& name : wanted) EXPECT_EQ(files.erase(name), 1u) << name;
  EXPECT_TRUE(files.empty()) << files.begin()->first;
}

std::set<std::string> carried(const fs::path& source, const fs::path& to,
                              std::vector<std::string>* warnings = nullptr) {
  OutputFolder out(to, true, source);
  auto found = out.carry_through(source);
  if (warnings != nullptr) *warnings = std::move(found);
  out.write_json("config.json", io::Json::object());
  out.commit();
  std::set<std::string> names;
  for (const auto& [name, bytes] : folder_bytes(to)) names.insert(name);
  names.erase("config.json");
  return names;
}

TEST_F(CheckpointFolder, LinksOfAHubsCacheBecomeFiles) {
  const test::TempDir dir;
  const fs::path hub = dir / "models--org--name", in = hub / "snapshots/1";
  for (const fs::path& folder : {hub / "blobs", in / "chat_templates"}) fs::create_directories(folder);
  test::write_text(hub / "blobs/abc", "the tokenizer");
  fs::create_symlink("../../blobs/abc", in / "tokenizer.json");
  fs::create_symlink("../../../blobs/abc", in / "chat_templates/a.jinja");
  fs::create_symlink("../../blobs/gone", in / "merges.txt");
  fs::create_symlink("vocab.txt", in / "vocab.txt");
  ASSERT_EQ(mkfifo((in / "README.md").c_str(), 0600), 0);
  std::vector<std::string> warnings;
  EXPECT_EQ(carried(in, dir / "out", &warnings), (std::set<std::string>{"chat_templates/a.jinja", "tokenizer.json"}));
  EXPECT_EQ(read_file(dir / "out/chat_templates/a.jinja"), "the tokenizer");
  EXPECT_FALSE(fs::is_symlink(dir / "out/tokenizer.json"));
  EXPECT_THAT(warnings, ElementsAre((in / "README.md").string() + ": not a regular file, not carried through",
                                    (in / "merges.txt").string() + ": a link that leads nowhere, not carried through",
                                    (in / "vocab.txt").string() + ": a link that leads nowhere, not carried through"));
}

TEST_F(CheckpointFolder, LinksOutOfTheFolderStayBehind) {
  const test::TempDir dir;
  const fs::path in = dir / "in", home = dir / "home";
  for (const fs::path& folder : {in, home}) fs::create_directories(folder);
  test::write_text(home / "id_rsa", "private");
  test::write_text(in / "README.md", "of the model");
  fs::create_symlink("README.md", in / "LICENSE");
  fs::create_symlink("../home/id_rsa", in / "NOTICE");
  fs::create_symlink("../home", in / "chat_templates");
  fs::create_symlink("/dev/zero", in / "README.txt");
  std::vector<std::string> warnings;
  EXPECT_EQ(carried(in, dir / "out", &warnings), (std::set<std::string>{"LICENSE", "README.md"}));
  const auto left = [&](const char* name, const std::string& why) {
    return (in / name).string() + ": a link to " + why + ", not carried through";
  };
  const std::string elsewhere = ", which is no file of the model's folder", key = (home / "id_rsa").string();
  EXPECT_THAT(warnings, ElementsAre(left("NOTICE", key + elsewhere), left("README.txt", "/dev/zero" + elsewhere),
                                    left("chat_templates", home.string() + ", a folder")));
}

TEST_F(CheckpointFolder, ATokenizerThatLiesElsewhereIsRefusedAtOnce) {
  for (const char* name :
       {"tokenizer.json", "vocab.txt", "tokenizer.model", "chat_template.jinja", "chat_templates/a.jinja"}) {
    const test::TempDir dir;
    fs::create_directories(dir / "in/chat_templates");
    test::write_text(dir / "private", "private");
    fs::create_symlink(dir / "private", dir / "in" / name);
    const std::string refused =
        (dir / "in" / name).string() + ": is a link to " + (dir / "private").string() +
        ", allowed: a file of the model's folder itself, or a link to one; copy it there if you "
        "trust it";
    EXPECT_EQ(test::error_of([&] { carried_identity_of(dir / "in"); }), refused);
    EXPECT_EQ(test::error_of([&] { carried(dir / "in", dir / "out"); }), refused);
  }
}

TEST_F(CheckpointFolder, AModuleThatLiesElsewhereIsRefused) {
  const test::TempDir dir;
  for (const fs::path& folder : {dir / "in", dir / "home"}) fs::create_directories(folder);
  fs::create_directory_symlink(dir / "home", dir / "in/1_Pooling");
  EXPECT_EQ(carried(dir / "in", dir / "out"), std::set<std::string>{});
  test::write_text(dir / "in/modules.json", R"([{"path": "1_Pooling"}])");
  EXPECT_REFUSED(carried(dir / "in", dir / "out"), "1_Pooling: is a link to");
}

TEST_F(CheckpointFolder, ALogMayGrowWhileTheRunLasts) {
  for (const char* name : {"quantize.log", "tokenizer.json"}) test::write_text(folder / name, "{}");
  const io::Json before = carried_identity_of(folder.path());
  test::write_text(folder / "quantize.log", "{}, longer");
  EXPECT_NO_THROW(require_carried_unchanged(folder.path(), before));
  test::write_text(folder / "tokenizer.json", "{}, longer");
  EXPECT_THROW(require_carried_unchanged(folder.path(), before), io::Error);
}

TEST_F(CheckpointFolder, TheOutputIsAsPrivateAsItsSource) {
  const test::TempDir dir;
  const fs::path in = dir / "in", out = dir / "out";
  fs::create_directories(in / "chat_templates");
  for (const char* name : {"LICENSE", "model-00001-of-00002.safetensors", "config.json", "chat_templates/a.jinja"})
    test::write_text(in / name, "{}");
  const auto mode = [](const fs::path& path) { return static_cast<unsigned>(fs::status(path).permissions()); };
  const auto restrict = [&](const char* name, unsigned to) { fs::permissions(in / name, fs::perms{to}); };
  restrict("model-00001-of-00002.safetensors", 0640);
  restrict("chat_templates/a.jinja", 0600);
  fs::permissions(in, fs::perms{0750});
  const mode_t umask_before = ::umask(022);
  {
    OutputFolder folder(out, false, in);
    EXPECT_EQ(mode(folder.path().temporary()), 0700u);  // while it is made
    folder.carry_through(in);
    folder.write_json("config.json", io::Json::object());
    folder.write_json("model.safetensors", io::Json::object());
    folder.commit();
  }
  OutputFolder free(dir / "free", false, {});
  free.write_json("config.json", io::Json::object());
  free.commit();
  ::umask(umask_before);
  EXPECT_EQ(mode(out), 0750u);
  EXPECT_EQ(mode(out / "LICENSE"), 0644u);
  EXPECT_EQ(mode(out / "config.json"), 0644u);
  EXPECT_EQ(mode(out / "model.safetensors"), 0640u) << "what every file of the source allows";
  EXPECT_EQ(mode(out / "chat_templates/a.jinja"), 0600u);
  EXPECT_EQ(mode(out / "chat_templates"), 0750u);
  EXPECT_EQ(mode(dir / "free"), 0755u);
  EXPECT_EQ(mode(dir / "free/config.json"), 0644u);
}

TEST_F(CheckpointFolder, ConfigKeepsItsText) {
  test::write_text(folder / "config.json", R"({
    "rms_norm_eps": 1e-05,
    "quantization_config": {"old": 1},
    "rope_theta": 10000.0
}
)");
  OutputFolder out(folder / "out", false, {}), bare(folder / "bare", false, {});
  out.write_config(folder / "config.json",
                   {{"quantization_config", {{"new", 0.5}}}, {"tie_word_embeddings", false}, {"none", nullptr}});
  bare.write_config("", {{"quantization_config", {{"new", 0.5}}}});
  out.commit();
  bare.commit();
  EXPECT_EQ(read_file(folder / "out/config.json"),
            R"({
    "rms_norm_eps": 1e-05,
    "quantization_config": {
        "new": 0.5
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": false
}
)");
  EXPECT_EQ(read_file(folder / "bare/config.json"), "{\n  \"quantization_config\": {\n    \"new\": 0.5\n  }\n}\n");
}

}  // namespace
}  // namespace fp8::quant
