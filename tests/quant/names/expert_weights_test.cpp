// SPDX-License-Identifier: Apache-2.0
// Mixtral's experts: a parameter of ours is one tensor of the checkpoint, two, or a matrix of a stacked one.
#include "fp8/quant/names/expert_weights.h"

#include <gmock/gmock.h>

#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

using ::testing::ElementsAre;

const std::string kLayer = "model.layers.3", kOurs = kLayer + ".block_sparse_moe.experts.moe_op.";

/// What "tensor" or "tensor[index]" the parameter is made of, in a checkpoint that has these names.
std::vector<std::string> pieces(const std::string& parameter, const std::vector<std::string>& names) {
  const test::TempDir folder;
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& name : names) entries.push_back({name, io::DType::U8, {1}});
  io::SafetensorsWriter writer(folder / "model.safetensors", entries);
  for (const auto& name : names) writer.write(name, "x");
  writer.commit();
  std::vector<std::string> result;
  for (const auto& piece : pieces_of(parameter, io::Checkpoint(folder.path())))
    result.push_back(piece.tensor + (piece.index ? "[" + std::to_string(*piece.index) + "]" : ""));
  return result;
}

TEST(ExpertWeights, AreWhereTheCheckpointKeepsThem) {
  for (const std::string block : {".block_sparse_moe.", ".mlp."}) {
    const std::string experts = kLayer + block + "experts.";
    const std::vector<std::string> each = {experts + "7.w1.weight", experts + "7.w2.weight", experts + "7.w3.weight"},
                                   stacked = {experts + "gate_up_proj", experts + "down_proj"};
    EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", each), ElementsAre(each[0], each[2]));
    EXPECT_THAT(pieces(kOurs + "w2_list.7.weight", each), ElementsAre(each[1]));
    EXPECT_THAT(pieces(kOurs + "w13_list.7.weight", stacked), ElementsAre(stacked[0] + "[7]"));
    EXPECT_THAT(pieces(kOurs + "w2_list.11.weight", stacked), ElementsAre(stacked[1] + "[11]"));
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
              ElementsAre(experts + "2.w1.weight", experts + "2.w3.weight"));
}

TEST(ExpertWeights, MeasurementsGetTheNamesOfTheCheckpoint) {
  const std::string experts = kLayer + ".block_sparse_moe.experts.";
  measure::MeasurementFile file;
  file.modules = {{"lm_head", {{2.0f}}, std::nullopt, std::nullopt},
                  {experts + "moe_op", {{3.0f}}, std::vector<measure::Amax>{{9.0f}, {4.0f}, {5.0f}}, std::nullopt},
                  {experts + "moe_op.w13_list.0", {{1.0f}}, std::nullopt, std::nullopt}};
  file.selected = {"lm_head", experts + "moe_op", experts + "moe_op.w13_list.0"};
  const auto out = in_names_of_checkpoint(file);
  std::vector<std::pair<std::string, float>> found;
  for (const auto& m : out.modules) found.emplace_back(m.module, m.inputs.at(0).at(0));
  // The mixture's outputs: its result, then each expert's activation, which w2 takes.
  EXPECT_THAT(found, ElementsAre(std::pair("lm_head", 2.0f), std::pair(experts + "0.w1", 3.0f),
                                 std::pair(experts + "0.w2", 4.0f), std::pair(experts + "0.w3", 3.0f),
                                 std::pair(experts + "1.w1", 3.0f), std::pair(experts + "1.w2", 5.0f),
                                 std::pair(experts + "1.w3", 3.0f)));
  EXPECT_THAT(out.selected, ElementsAre("lm_head", experts + "0.w1", experts + "0.w2", experts + "0.w3",
                                        experts + "1.w1", experts + "1.w2", experts + "1.w3"));
  file.modules.resize(1);
  EXPECT_EQ(in_names_of_checkpoint(file).selected, file.selected) << "no mixture: as it was";
}

}  // namespace
}  // namespace fp8::quant
