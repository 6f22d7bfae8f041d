// SPDX-License-Identifier: Apache-2.0
// Mixtral's experts: a parameter of ours is one tensor of the checkpoint, two, or a matrix of a stacked one.
#include "fp8/quant/names/expert_weights.h"

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using ::testing::ElementsAre;

const std::string kLayer = "model.layers.3", kOurs = kLayer + ".block_sparse_moe.experts.moe_op.";

/// A checkpoint that has these names and no config.json.
class Named {
 public:
  explicit Named(const std::vector<std::string>& names) {
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& name : names) entries.push_back({name, io::DType::U8, {1}});
    io::SafetensorsWriter writer(folder_.path() / "model.safetensors", entries);
    for (const auto& name : names) writer.write(name, "x");
    writer.commit();
  }
  io::Checkpoint checkpoint() const { return io::Checkpoint(folder_.path()); }

 private:
  test::TempDir folder_;
};

/// What "tensor" or "tensor[index]" the parameter is made of, in a checkpoint that has these names.
std::vector<std::string> pieces(const std::string& parameter, const std::vector<std::string>& names) {
  const Named named(names);
  std::vector<std::string> result;
  for (const auto& piece : pieces_of(parameter, named.checkpoint()))
    result.push_back(piece.tensor + (piece.index ? "[" + std::to_string(*piece.index) + "]" : ""));
  return result;
}

TEST(ExpertWeights, AreWhereTheCheckpointKeepsThem) {
  for (const std::string block : {".block_sparse_moe.", ".mlp.", ".feed_forward."}) {
    const std::string experts = kLayer + block + "experts.";
    const std::vector<std::string> stacked = {experts + "gate_up_proj", experts + "down_proj"};
    const std::vector<std::string> linear = {kLayer + block + "input_linear.weight",
                                             kLayer + block + "output_linear.weight"};
    for (const auto& [gate, up, down] : {std::array{"w1", "w3", "w2"}, {"gate_proj", "up_proj", "down_proj"}}) {
      std::vector<std::string> each;
      for (const char* projection : {gate, up, down}) each.push_back(experts + "7." + projection + ".weight");
      EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", each), ElementsAre(each[0], each[1]));
      EXPECT_THAT(pieces(kOurs + "w2_list.7.weight", each), ElementsAre(each[2]));
    }
    for (const auto& both : {stacked, linear}) {
      EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", both), ElementsAre(both[0] + "[7]"));
      EXPECT_THAT(pieces(kOurs + "w2_list.11.weight", both), ElementsAre(both[1] + "[11]"));
    }
    const std::string gate = kLayer + block + "gate.weight";
    EXPECT_THAT(pieces(kLayer + ".block_sparse_moe.gate.weight", {gate}), ElementsAre(gate));
  }
}

TEST(ExpertWeights, OtherParametersAreTheirOwnPiece) {
  for (const std::string& name : {std::string("lm_head.weight"), kLayer + ".mlp.experts.0.w1.weight",
                                  kOurs + "w13_list.x.weight", kOurs + "w4_list.1.weight", kOurs + "w2_list.1"})
    EXPECT_THAT(pieces(name, {name}), ElementsAre(name));
}

TEST(ExpertWeights, AnErrorNamesThePerExpertForm) {
  const std::string experts = kLayer + ".block_sparse_moe.experts.";
  EXPECT_THAT(pieces(kOurs + "w13_list.2.weight", {"lm_head.weight"}),
              ElementsAre(experts + "2.gate_proj.weight", experts + "2.up_proj.weight"));
}

TEST(ExpertWeights, MeasurementsGetTheNamesOfTheCheckpoint) {
  const std::string experts = kLayer + ".block_sparse_moe.experts.";
  measure::MeasurementFile file;
  file.modules = {{"lm_head", {{2.0f}}, std::nullopt, std::nullopt},
                  {experts + "moe_op", {{3.0f}}, std::vector<measure::Amax>{{9.0f}, {4.0f}, {5.0f}}, std::nullopt},
                  {experts + "moe_op.w13_list.0", {{1.0f}}, std::nullopt, std::nullopt}};
  file.selected = {"lm_head", experts + "moe_op", experts + "moe_op.w13_list.0"};
  std::vector<std::string> names;
  for (const char* expert : {"0", "1"})
    for (const char* projection : {".w1.weight", ".w2.weight", ".w3.weight"})
      names.push_back(experts + expert + projection);
  const Named named(names);
  std::vector<std::string> warnings;
  const auto out = in_names_of_checkpoint(file, named.checkpoint(), warnings);
  EXPECT_TRUE(warnings.empty());
  std::vector<std::pair<std::string, float>> found;
  for (const auto& m : out.modules) found.emplace_back(m.module, m.inputs.at(0).at(0));
  // The mixture's outputs: its result, then each expert's activation, which w2 takes.
  EXPECT_THAT(found, ElementsAre(std::pair("lm_head", 2.0f), std::pair(experts + "0.w1", 3.0f),
                                 std::pair(experts + "0.w3", 3.0f), std::pair(experts + "0.w2", 4.0f),
                                 std::pair(experts + "1.w1", 3.0f), std::pair(experts + "1.w3", 3.0f),
                                 std::pair(experts + "1.w2", 5.0f)));
  EXPECT_THAT(out.selected, ElementsAre("lm_head", experts + "0.w1", experts + "0.w3", experts + "0.w2",
                                        experts + "1.w1", experts + "1.w3", experts + "1.w2"));
  file.modules[1].outputs->back() = {0.0f};
  const auto idle = in_names_of_checkpoint(file, named.checkpoint(), warnings);
  EXPECT_EQ(idle.modules.back().inputs.at(0).at(0), 4.0f) << "no token came to expert 1: the largest of the others";
  EXPECT_THAT(warnings, ElementsAre(::testing::HasSubstr("no token to expert 1")));
  file.modules.push_back({"vocab_projector", {{2.0f}}, std::nullopt, std::nullopt});
  names.emplace_back("vocab_projector.bias");
  EXPECT_EQ(in_names_of_checkpoint(file, Named(names).checkpoint(), warnings).modules.size(), out.modules.size())
      << "a head that is tied to the word table";
  file.modules.resize(1);
  EXPECT_EQ(in_names_of_checkpoint(file, named.checkpoint(), warnings).selected, file.selected)
      << "no mixture: as it was";
}

}  // namespace
}  // namespace fp8::quant
