// SPDX-License-Identifier: Apache-2.0
// Types told from names, files carried, shards cut.
#include "fp8/quant/formats/checkpoint_folder.h"

#include "fp8/runtime/io/error.h"
#include "quant/small_checkpoint.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using Entry = io::SafetensorsWriter::Entry;

TEST(CheckpointFolder, TypesFromNamesAndShapes) {
  EXPECT_EQ(type_of_weight("model.embed_tokens", {50, 8}), "Embedding");
  EXPECT_EQ(type_of_weight("transformer.wte", {50, 8}), "Embedding");
  EXPECT_EQ(type_of_weight("bert.embeddings.word_embeddings", {50, 8}), "Embedding");
  EXPECT_EQ(type_of_weight("lm_head", {50, 8}), "Linear");
  EXPECT_EQ(type_of_weight("proj", {8, 8}), "Linear");
  EXPECT_EQ(type_of_weight("mix", {8, 8, 3}), "Conv1d");
  EXPECT_EQ(type_of_weight("patch", {8, 3, 4, 4}), "Conv2d");
}

TEST(CheckpointFolder, AConfigMustBeAnObjectOfAHighPrecisionModel) {
  const test::TempDir dir;
  test::write_text(dir / "config.json", R"({"b": 1, "quantization_config": null, "a": 2.50})");
  const auto config = read_model_config(dir.path());
  EXPECT_EQ(config.dump(), R"({"b":1,"a":2.5})");
}

/// Tensors a (6 bytes), b (6), c (20), d (2), written whole.
std::map<std::string, std::string> shards(std::uint64_t shard_bytes) {
  const test::TempDir dir;
  const std::vector<Entry> entries = {{"a", io::DType::U8, {6}}, {"b", io::DType::U8, {2, 3}}, {"c", io::DType::U8, {20}}, {"d", io::DType::F16, {}}};
  io::OutputDirectory out(dir / "out", false);
  ShardedWriter writer(out, entries, shard_bytes);
  const std::string bytes(20, 'x');
  for (const auto& e : entries) writer.write(e.name, bytes.data(), 0, e.name == "c" ? 20 : e.name == "d" ? 2 : 6);
  writer.commit();
  out.commit();
  const io::Checkpoint read(dir / "out");
  EXPECT_EQ(read.names().size(), 4u);
  EXPECT_EQ(read.total_bytes(), 34u);
  return test::folder_bytes(dir / "out");
}

TEST(CheckpointFolder, OneFileWhenItFits) {
  const auto files = shards(34);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files.begin()->first, "model.safetensors");
}

TEST(CheckpointFolder, ShardsAreCutBetweenTensors) {
  const auto files = shards(12);  // a b | c (larger than a shard) | d
  EXPECT_EQ(files.size(), 4u);
  const auto index = io::parse_json(files.at("model.safetensors.index.json"), "index");
  EXPECT_EQ(index["metadata"]["total_size"], 34);
  EXPECT_EQ(index["weight_map"]["a"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["b"], "model-00001-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["c"], "model-00002-of-00003.safetensors");
  EXPECT_EQ(index["weight_map"]["d"], "model-00003-of-00003.safetensors");
  EXPECT_EQ(shards(1).size(), 5u);  // each its own
}

TEST(CheckpointFolder, CarriesTheFilesReadersWant) {
  const test::TempDir dir;
  fs::create_directories(dir / "in/vocab.json");  // a folder of that name is no file to carry
  for (const char* name : {"README.md", "merges.txt", "spiece.model", "x.tiktoken", "config.json", "model.safetensors", "model.safetensors.index.json", "a.bin", "model"})
    test::write_text(dir / "in" / name, name);
  OutputFolder out(dir / "out", false);
  out.carry_through(dir / "in");
  out.write_json("config.json", io::Json{{"a", 1.0}});
  out.commit();
  const auto files = test::folder_bytes(dir / "out");
  EXPECT_EQ(files.size(), 5u);
  for (const char* name : {"README.md", "merges.txt", "spiece.model", "x.tiktoken"}) EXPECT_EQ(files.at(name), name);
  EXPECT_EQ(files.at("config.json"), "{\n  \"a\": 1.0\n}\n");
}

}  // namespace
}  // namespace fp8::quant
