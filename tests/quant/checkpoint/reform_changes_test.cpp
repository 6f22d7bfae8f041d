// SPDX-License-Identifier: Apache-2.0
// Conversions that change scales or codes: finer and coarser grids, Gaudi2's range, modules that a form's readers would
// misread. Expected codes are computed here, in f64 or by LibTorch's own cast.

#include "quant/checkpoint/fp8_source.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using test::make_scheme;
using test::to;

using CheckpointConvert = InFolder;

TEST_F(CheckpointConvert, FinerGridsKeepEveryCode) {
  using W = Granularity;
  const auto block32 =
      test::write_fp8_source(folder / "block32", make_scheme(W::block, ActivationScaling::dynamic_group, 32), 32);
  ConvertOptions o{.form = "fp8", .weights = W::block, .block = Block{16, 16}};
  auto report = convert_checkpoint(folder / "block32", folder / "block16", o);
  for (const auto& m : report.modules) EXPECT_EQ(m.change, Change::spread) << m.name;
  for (const auto& [name, w] : block32.weights) {
    EXPECT_TRUE(holds(folder / "block16", name + ".weight", w.codes.view(at::kByte)));
    EXPECT_TRUE(torch::equal(test::spread_grid(read_tensor(folder / "block16", name + ".weight_scale_inv"), {16, 16},
                                               w.codes.size(0), w.codes.size(1)),
                             w.spread));
  }
  const auto tensor =
      test::write_fp8_source(folder / "tensor", make_scheme(W::tensor, ActivationScaling::static_tensor), 16);
  o = to("compressed-tensors");
  o.weights = W::channel;
  report = convert_checkpoint(folder / "tensor", folder / "channel", o);
  for (const auto& [name, w] : tensor.weights) {
    EXPECT_TRUE(holds(folder / "channel", name + ".weight_scale", w.scale.expand({w.codes.size(0)}).unsqueeze(1)));
    EXPECT_TRUE(holds(folder / "channel", name + ".input_scale", torch::tensor({w.input})));
  }
}

/// Our own convention in f64 and f32 as DESIGN says: scale_inv = f32(amax / 448), scale = f32(1 / scale_inv), code =
/// RNE(w * scale).
at::Tensor requantized(const at::Tensor& w, const at::Tensor& amax, at::Tensor* scale_inv) {
  *scale_inv = (amax.to(at::kDouble) / 448.0).to(at::kFloat);
  const at::Tensor scale = (1.0 / scale_inv->to(at::kDouble)).to(at::kFloat);
  return (w * scale).clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);
}

TEST_F(CheckpointConvert, CoarserGridsAreRequantizedWithGroupsOfOneScale) {
  const auto source =
      test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::dynamic_token), 16);
  ConvertOptions o{.form = "fp8", .weights = Granularity::tensor};
  const auto report = convert_checkpoint(folder / "in", folder / "out", o);
  const std::string at = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  for (const auto& group : std::vector<std::vector<std::string>>{{at + "q_proj", at + "k_proj", at + "v_proj"},
                                                                 {at + "o_proj"},
                                                                 {mlp + "gate_proj", mlp + "up_proj"},
                                                                 {mlp + "down_proj"}}) {
    at::Tensor amax = torch::zeros({});
    for (const auto& name : group) amax = torch::maximum(amax, source.weights.at(name).values().abs().max());
    for (const auto& name : group) {
      at::Tensor scale_inv;
      const auto codes = requantized(source.weights.at(name).values(), amax, &scale_inv);
      EXPECT_TRUE(holds(folder / "out", name + ".weight", codes));
      EXPECT_TRUE(holds(folder / "out", name + ".weight_scale", scale_inv));
      for (const auto& m : report.modules) {
        if (m.name != name) continue;
        EXPECT_EQ(m.change, Change::requantized);
        EXPECT_FALSE(m.exact);
        const auto w = source.weights.at(name).values().to(at::kDouble),
                   got = (codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scale_inv).to(at::kDouble);
        EXPECT_EQ(m.max_error.value(), ((w - got).abs().max() / w.abs().max()).item<double>()) << name;
        EXPECT_GT(*m.max_error, 0);
      }
    }
  }
  const auto v = verify_conversion(folder / "in", folder / "out", o);
  EXPECT_TRUE(v.changed.empty()) << "nothing was promised";
  EXPECT_FALSE(v.modules[0].equal);
  EXPECT_GE(v.modules[0].rms_error, v.modules[1].rms_error);
}

TEST_F(CheckpointConvert, OtherBlocksAndChannelsAreRequantized) {
  const auto source =
      test::write_fp8_source(folder / "in", make_scheme(Granularity::block, ActivationScaling::dynamic_group, 16), 32);
  const auto check = [&](const fs::path& out, const Block& block) {
    for (const auto& [name, w] : source.weights) {
      const auto values = w.values();
      const std::int64_t rows = values.size(0), cols = values.size(1);
      const Block b{std::min(block.rows, rows), std::min(block.cols, cols)};
      at::Tensor amax = torch::zeros({(rows + b.rows - 1) / b.rows, (cols + b.cols - 1) / b.cols}), scale_inv;
      for (std::int64_t r = 0; r < amax.size(0); ++r)
        for (std::int64_t c = 0; c < amax.size(1); ++c)
          amax[r][c] = values.slice(0, r * b.rows, (r + 1) * b.rows).slice(1, c * b.cols, (c + 1) * b.cols).abs().max();
      const auto codes = requantized(values, test::spread_grid(amax, b, rows, cols), &scale_inv);
      EXPECT_TRUE(holds(out, name + ".weight", codes));
      EXPECT_TRUE(torch::equal(test::spread_grid(read_tensor(out, name + ".weight_scale"), b, rows, cols), scale_inv))
          << name;
    }
  };
  ConvertOptions o{.form = "compressed-tensors", .weights = Granularity::channel};
  convert_checkpoint(folder / "in", folder / "channel", o);
  check(folder / "channel", {1, 1 << 20});
  o.weights = Granularity::block;
  o.block = Block{8, 8};
  EXPECT_EQ(convert_checkpoint(folder / "in", folder / "finer", o).modules[0].change, Change::spread);
  o.block = Block{32, 32};
  for (const auto& m : convert_checkpoint(folder / "in", folder / "coarser", o).modules)
    EXPECT_EQ(m.change, Change::requantized) << m.name;
  check(folder / "coarser", {32, 32});
  o.block = Block{16, 16};
  o.power_of_two = true;  // scales that are no powers of two
  EXPECT_EQ(convert_checkpoint(folder / "in", folder / "powers", o).modules[0].change, Change::requantized);
}

TEST_F(CheckpointConvert, Gaudi2AndBack) {
  const auto source = test::write_fp8_source(
      folder / "ocp", make_scheme(Granularity::tensor, ActivationScaling::static_tensor), 16, true);
  ConvertOptions o{.form = "compressed-tensors", .dialect = recipes::Dialect::gaudi2};
  const auto report = convert_checkpoint(folder / "ocp", folder / "gaudi2", o);
  for (const auto& [name, w] : source.weights) {  // the vendor's conversion, as its scripts write it in PyTorch
    EXPECT_TRUE(holds(folder / "gaudi2", name + ".weight",
                      (w.codes.to(at::kFloat) * 240.0 / 448.0).to(at::kFloat8_e4m3fn).view(at::kByte)));
    EXPECT_TRUE(holds(folder / "gaudi2", name + ".weight_scale", w.scale * 448.0 / 240.0));
    EXPECT_TRUE(holds(folder / "gaudi2", name + ".input_scale", torch::tensor({w.input}) * 448.0 / 240.0));
  }
  EXPECT_TRUE(holds(folder / "gaudi2", "model.layers.0.self_attn.k_scale", torch::tensor({0.0375f}) * 448.0 / 240.0));
  EXPECT_EQ(io::read_json(folder / "gaudi2" / "fp8.json")["dialect"], "gaudi2");
  for (const auto& m : report.modules) {
    EXPECT_EQ(m.change, Change::rescaled);
    EXPECT_FALSE(m.exact);
    EXPECT_GT(m.max_error.value(), 0);
    EXPECT_LT(*m.max_error, 1.0 / 16) << "half a step of the largest number's binade";
  }
  o.dialect = recipes::Dialect::ocp;  // every code of gaudi2 is one of ocp
  EXPECT_EQ(convert_checkpoint(folder / "gaudi2", folder / "back", o).modules[0].change, Change::unchanged);
  for (const auto& [name, w] : source.weights) {
    for (const char* end : {".weight", ".weight_scale"})
      EXPECT_TRUE(holds(folder / "gaudi2", name + end, read_tensor(folder / "back", name + end)));
  }
  EXPECT_EQ(io::read_json(folder / "back" / "fp8.json")["dialect"], "ocp");
  o.rescale = Rescale::range;  // or by choice into the wider range
  convert_checkpoint(folder / "gaudi2", folder / "wide", o);
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const auto codes = read_tensor(folder / "gaudi2", q).view(at::kFloat8_e4m3fn).to(at::kFloat);
  EXPECT_TRUE(holds(folder / "wide", q, (codes * 448.0 / 240.0).to(at::kFloat8_e4m3fn).view(at::kByte)));
  o.dialect = recipes::Dialect::gaudi2;
  o.rescale = Rescale::two;
  convert_checkpoint(folder / "ocp", folder / "two", o);
  for (const auto& [name, w] : source.weights) {
    EXPECT_TRUE(
        holds(folder / "two", name + ".weight", (w.codes.to(at::kFloat) * 0.5).to(at::kFloat8_e4m3fn).view(at::kByte)));
    EXPECT_TRUE(holds(folder / "two", name + ".weight_scale", w.scale * 2));
  }
}

TEST_F(CheckpointConvert, PowersOfTwoGoToGaudi2ByTwo) {
  const auto source = test::write_fp8_source(
      folder / "in", make_scheme(Granularity::block, ActivationScaling::dynamic_group, 16, true), 16);
  ConvertOptions o{.form = "fp8", .dialect = recipes::Dialect::gaudi2};
  convert_checkpoint(folder / "in", folder / "out", o);
  for (const auto& [name, w] : source.weights) {
    EXPECT_TRUE(torch::equal(read_tensor(folder / "out", name + ".weight_scale_inv").to(at::kFloat),
                             torch::log2(w.scale) + 128))
        << name;  // E8M0 of twice the scale
  }
  o.rescale = Rescale::range;
  EXPECT_EQ(test::error_of<std::invalid_argument>([&] { convert_checkpoint(folder / "in", folder / "no", o); }),
            "Rescale::range: its scales are no powers of two, expected no 'power_of_two'");
}

TEST_F(CheckpointConvert, ModulesThatReadersWouldMisreadStayInHighPrecisionWithTheirGroup) {
  const auto source =
      test::write_fp8_source(folder / "in", make_scheme(Granularity::block, ActivationScaling::dynamic_group, 32),
                             48);  // 96 x 96, k and v 48 x 96
  const auto report = convert_checkpoint(folder / "in", folder / "out", to("fp8"));
  const io::Checkpoint out(folder / "out");
  const auto kept = io::read_json(folder / "out" / "config.json")["quantization_config"]["modules_to_not_convert"];
  std::size_t decoded = 0;
  for (const auto& m : report.modules) {
    const bool attention = m.name.find("q_proj") != std::string::npos || m.name.find("k_proj") != std::string::npos ||
                           m.name.find("v_proj") != std::string::npos;
    const bool fits = source.weights.at(m.name).codes.size(0) % 32 == 0 &&
                      source.weights.at(m.name).codes.size(1) % 32 == 0 && !attention;
    EXPECT_EQ(m.change == Change::unchanged, fits) << m.name;
    EXPECT_EQ(m.reason.empty(), fits) << m.name;
    EXPECT_EQ(std::find(kept.begin(), kept.end(), m.name) != kept.end(), !fits) << m.name;
    if (fits) continue;
    ++decoded;
    EXPECT_TRUE(holds(folder / "out", m.name + ".weight", source.weights.at(m.name).values().to(at::kBFloat16)));
    EXPECT_FALSE(out.contains(m.name + ".weight_scale_inv"));
  }
  EXPECT_GE(decoded, 3u);
  EXPECT_LT(decoded, report.modules.size());
  EXPECT_TRUE(verify_conversion(folder / "in", folder / "out", to("fp8")).changed.empty());
}

}  // namespace
}  // namespace fp8::quant
