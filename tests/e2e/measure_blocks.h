// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of fp8 measure with blocks: its commands, and the comparison of its files with the whole model's
// run.
#pragma once

#include <random>

#include "e2e/e2e.h"
#include "tools/models/tiny_checkpoint.h"

namespace fp8::e2e {

/// input_ids [chunks, length] that reach every row of a small vocabulary.
inline void write_ids(const std::filesystem::path& path, std::int64_t chunks, std::int64_t length,
                      std::int64_t vocabulary) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(chunks * length));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int64_t>((i * i + 5 * i + i / 7) % static_cast<std::size_t>(vocabulary));
  io::SafetensorsWriter writer(path, {{"input_ids", io::DType::I64, {chunks, length}}});
  writer.write("input_ids", ids.data());
  writer.commit();
}

/// Every file below `folder`, but for backups of earlier ones.
inline std::map<std::string, std::string> all_files(const std::filesystem::path& folder) {
  auto files = folder_bytes(folder);
  std::erase_if(files, [](const auto& file) { return file.first.starts_with("backup_"); });
  return files;
}

/// A Llama of H 512, F 1408 in f32, 11.8 MB a layer. Returns the bytes of its weights.
inline std::uint64_t write_layers(const std::filesystem::path& folder, std::int64_t layers, std::int64_t vocabulary) {
  constexpr std::int64_t kHidden = 512, kInner = 1408;
  auto config = models::testing::TinyCheckpoint().config;
  config["hidden_size"] = kHidden, config["intermediate_size"] = kInner, config["num_hidden_layers"] = layers;
  config["vocab_size"] = vocabulary;
  std::vector<io::SafetensorsWriter::Entry> entries;
  std::int64_t most = 0;
  std::uint64_t bytes = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> sizes) {
    std::int64_t elements = 1;
    for (const auto n : sizes) elements *= n;
    most = std::max(most, elements);
    bytes += static_cast<std::uint64_t>(elements) * sizeof(float);
    entries.push_back({name + ".weight", io::DType::F32, std::move(sizes)});
  };
  add("model.embed_tokens", {vocabulary, kHidden}), add("lm_head", {vocabulary, kHidden}), add("model.norm", {kHidden});
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto p = "model.layers." + std::to_string(i) + ".";
    add(p + "self_attn.q_proj", {kHidden, kHidden}), add(p + "self_attn.o_proj", {kHidden, kHidden});
    add(p + "self_attn.k_proj", {kHidden / 2, kHidden}), add(p + "self_attn.v_proj", {kHidden / 2, kHidden});
    add(p + "mlp.gate_proj", {kInner, kHidden}), add(p + "mlp.up_proj", {kInner, kHidden});
    add(p + "mlp.down_proj", {kHidden, kInner});
    add(p + "input_layernorm", {kHidden}), add(p + "post_attention_layernorm", {kHidden});
  }
  std::filesystem::create_directory(folder);
  write_file(folder / "config.json", config.dump());
  std::minstd_rand random(1);
  std::vector<float> values(static_cast<std::size_t>(most));
  for (auto& v : values) v = static_cast<float>(random() % 2001) / 10000.0f - 0.1f;
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (const auto& e : entries) writer.write(e.name, values.data());
  writer.commit();
  return bytes;
}

/// Models in a folder, measured whole and in blocks.
struct Blocks : ::testing::Test {
  void SetUp() override { write_ids(folder / "ids.safetensors", 5, 24, 32); }

  Arguments command(const std::filesystem::path& model, const std::string& out) const {
    return args("measure --json --model {} --data {} --batch 2 --out {}", model, folder / "ids.safetensors",
                folder / out);
  }
  /// Both runs; the files must be equal, and there must be some.
  void expect_same(const std::filesystem::path& model, const Arguments& more,
                   const Arguments& blocks = {"--block-wise"}) {
    SCOPED_TRACE(model.filename().string() + " " + (more.empty() ? "" : more.back()));
    const auto whole = json_of(fp8("{} --whole {}", command(model, "whole"), more));
    const auto parts = json_of(fp8("{} {} {}", command(model, "blocks"), blocks, more));
    EXPECT_EQ(whole.value("mode", ""), "whole");
    EXPECT_EQ(parts.value("mode", ""), "block-wise");
    for (const char* key : {"modules", "tensors", "samples", "non_finite"}) EXPECT_EQ(whole[key], parts[key]) << key;
    const auto expected = all_files(folder / "whole"), found = all_files(folder / "blocks");
    EXPECT_GE(expected.size(), 4u);
    EXPECT_EQ(expected.size(), found.size());
    for (const auto& [name, bytes] : expected) EXPECT_TRUE(found.count(name) == 1 && found.at(name) == bytes) << name;
    std::filesystem::remove_all(folder / "whole");
    std::filesystem::remove_all(folder / "blocks");
  }
  /// The least --memory-limit of this command, as its refusal names it: "203MB".
  static std::string least(const Arguments& command) {
    const auto run = start_fp8(args("{} --memory-limit 1kB", command)).wait();
    expect_refused(run, {"--memory-limit: found '1kB', but the program itself takes "}, 2);
    const std::string allowed = "allowed: ";
    const auto at = run.err.find(allowed);
    return at == std::string::npos
               ? ""
               : run.err.substr(at + allowed.size(), run.err.find(" or more", at) - at - allowed.size());
  }
  /// A QUANT_CONFIG that measures everything there is, embeddings too.
  Arguments everything(const std::string& observer) const {
    const auto keys = R"("mode": "MEASURE", "measure_exclude": "NONE", "observer": ")" + observer + "\"";
    return {"--config", write_config(folder / (observer + ".json"), keys, "s")};
  }
  test::TempDir folder;
};

}  // namespace fp8::e2e
