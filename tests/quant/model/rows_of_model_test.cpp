// SPDX-License-Identifier: Apache-2.0
// Checkpoints of models that have their weights cut and joined otherwise, as Python calls the operators.
#include "fp8/quant/model/rows_of_model.h"

#include "support/hpu_test.h"
#include "support/operator_call.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

using Written = std::pair<Tensors, Words>;

/// A folder with a checkpoint of two converted matrices [8, 16], "gate_proj" and "up_proj", and a norm.
struct RowsOfModel : InFolder {
  at::Tensor gate = at::randn({8, 16}, on_hpu()), up = at::randn({8, 16}, on_hpu()), norm = at::randn({16}, on_hpu());
  std::string out = (folder / "out").string();

  RowsOfModel() {
    call_fp8("convert", {Tensors{gate, up}, Words{"gate_proj", "up_proj"}, Words{"Linear", "Linear"},
                         std::string(R"({"weights": "channel", "dialect": "ocp"})")});
    call_fp8("save", {Tensors{gate, up, norm}, Words{"gate_proj.weight", "up_proj.weight", "norm.weight"},
                      Words{"Linear", "Linear", ""}, out});
  }

  static Tensors numbers_of(const Tensors& weights) { return call_fp8("number_rows", {weights}).toTensorVector(); }

  static Written written(const Tensors& state, const Words& names, const Words& transposed, const Tensors& given,
                         const Tensors& numbers, const Words& keys, const Words& types, const Tensors& values) {
    torch::jit::Stack stack{state, names, transposed, given, numbers, keys, types, values};
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fp8::written_by_rows", "");
    op.callBoxed(stack);
    return {stack[0].toTensorVector(), stack[1].to<Words>()};
  }

  Words load(const Tensors& state, const Words& names, const Words& transposed, const Tensors& given,
             const Tensors& numbers, const Words& keys) const {
    const c10::IValue done = call_fp8("load_by_rows", {state, names, transposed, given, numbers, keys, out});
    return done.to<Words>();
  }
};

at::Tensor bytes_of(const at::Tensor& codes) { return codes.detach().cpu().view(at::kByte); }
at::Tensor values(const at::Tensor& weight) { return call_fp8("dequantize", {weight}).toTensor(); }

TEST_F(RowsOfModel, AWeightThatTheCheckpointCuts) {
  at::Tensor both = at::zeros({16, 16}, on_hpu()).requires_grad_();
  const Tensors given = numbers_of({both});
  const Words done =
      load({both}, {"gate_up_proj.weight"}, {}, given, given[0].chunk(2), {"gate_proj.weight", "up_proj.weight"});
  EXPECT_THAT(done,
              IsSupersetOf({"gate_proj.weight", "up_proj.weight", "gate_proj.weight_scale", "up_proj.weight_scale"}));
  EXPECT_TRUE(same_bits(values(both), at::cat({values(gate), values(up)})));
  EXPECT_FALSE(both.requires_grad());
}

TEST_F(RowsOfModel, AWeightThatIsTurnedAndOnesAsTheyAre) {
  const at::Tensor turned = at::zeros({16, 8}, on_hpu()), whole = at::zeros({8, 16}, on_hpu());
  const Tensors upright = numbers_of({turned.t(), whole});
  const Tensors given = {upright[0].t(), upright[1]};
  load({turned, whole}, {"a", "up_proj.weight"}, {"a"}, given, {given[0].t(), given[1]},
       {"gate_proj.weight", "up_proj.weight"});
  EXPECT_TRUE(same_bits(values(turned), values(gate).t()));
  EXPECT_TRUE(same_bits(values(whole), values(up)));
}

// gate and up become one tensor of the checkpoint, and norm stays what it is.
TEST_F(RowsOfModel, WrittenAsTheCheckpointHasThem) {
  const Tensors state = {gate, up, norm}, given = numbers_of(state);
  const Words names = {"a", "b", "norm"}, keys = {"both.weight", "norm"}, types = {"MoeMatmul", "MoeMatmul", ""};
  const Tensors numbers = {at::cat({given[0], given[1]}), given[2]};
  EXPECT_EQ(call_fp8("cut_weights", {state, names, Words{}, given, numbers, keys}).to<Words>(), Words({"a", "b"}));
  EXPECT_TRUE(call_fp8("cut_weights", {state, names, Words{}, given, given, names}).to<Words>().empty());
  const at::Tensor both = at::cat({bytes_of(gate), bytes_of(up)});
  const auto [tensors, kinds] = written(state, names, {}, given, numbers, keys, types, {both, norm});
  EXPECT_TRUE(same_bits(values(tensors[0]), at::cat({values(gate), values(up)})));
  EXPECT_TRUE(tensors[1].is_same(norm));
  EXPECT_EQ(kinds, Words({"Linear", ""}));
  const Tensors as_they_are = {gate, up, norm};
  EXPECT_REFUSED(written(state, names, {}, given, given, names, types, as_they_are),
                 "save: a: stacked experts are one tensor in this model's checkpoints");
  EXPECT_REFUSED(written(state, names, {"a"}, given, given, names, {"Linear", "Linear", ""}, as_they_are),
                 "save: a: its weight is [inputs, outputs]");
  EXPECT_REFUSED(written(state, names, {}, given, numbers, keys, types, {both + 1, norm}), "both.weight is of",
                 "in other rows than those that have scales");
}

TEST_F(RowsOfModel, ReportedAsByConvert) {
  const io::Json report = json_of(
      call_fp8("report_of", {Tensors{gate, norm.view({4, 4})}, Words{"gate_proj", "own"}, Words{"Linear", "Linear"}}));
  EXPECT_EQ(report["converted"].size(), 1u);
  EXPECT_EQ(report["converted"][0]["bytes_before"], 8 * 16 * 4);
  EXPECT_EQ(report["converted"][0]["bytes_after"], 8 * 16);
  EXPECT_EQ(report["skipped"][0]["name"], "own");
}

TEST_F(RowsOfModel, NamesWhatIsWrong) {
  const Tensors state = {at::zeros({8, 16}, on_hpu()), at::zeros({8, 16}, on_hpu())}, given = numbers_of(state);
  const Words names = {"gate_proj.weight", "up_proj.weight"};
  EXPECT_REFUSED(load(state, names, {}, given, given, {"gate_proj.weight", "down.weight"}), "load: " + out,
                 "tensor 'up_proj.weight': the model has none of this name");
  EXPECT_REFUSED(load(state, names, {}, given, {given[0], given[1].reshape({16, 8}).t().contiguous()}, names),
                 "'up_proj.weight': its rows are not rows of up_proj.weight, where scales would go");
  EXPECT_THROW(load({state[0].cpu(), state[1]}, names, {}, given, given, names), c10::ValueError);
  EXPECT_REFUSED(load(state, {"a"}, {}, given, given, names), "load_by_rows", "names", "found 1", "expected 2");
}

TEST_F(RowsOfModel, AllThatIsNotInFp8) {
  const at::Tensor to = at::zeros({16}, on_hpu(at::kBFloat16));
  const Words done = {"gate_proj.weight", "up_proj.weight", "gate_proj.weight_scale", "up_proj.weight_scale"};
  const auto load = [&](const Tensors& state, const Words& names) {
    call_fp8("load_others", {state, names, out, done});
  };
  load({to, to, gate}, {"norm.weight", "tied.weight", "gate_proj.weight"});
  EXPECT_TRUE(same_bits(to, norm.to(at::kBFloat16)));
  EXPECT_REFUSED(load({to}, {"norm"}), "load: " + out, "tensor 'norm.weight': the model has none of this name");
  EXPECT_REFUSED(load({to, at::zeros({2})}, {"norm.weight", "bias"}), "load: " + out + ": has no tensor 'bias'");
  EXPECT_REFUSED(load({at::zeros({1, 16})}, {"norm.weight"}), "norm.weight", "[16]", "[1, 16]");
}

}  // namespace
}  // namespace fp8::test
