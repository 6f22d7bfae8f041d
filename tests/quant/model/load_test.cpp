// SPDX-License-Identifier: Apache-2.0
// What save() wrote comes back bit for bit; checkpoints that do not fit the model are refused by name.
#include "fp8/quant/model/load.h"

#include <fstream>

#include "fp8/configs/name_patterns.h"
#include "fp8/measure/calibration/session.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/save.h"
#include "fp8/runtime/io/base/file.h"
#include "support/fp8_reference.h"
#include "support/models_for_tests.h"
#include "support/temp_dir.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::hpu;
using test::same_bits;
using test::throws_with;

/// The folder's fp8 modules into `model`; its other parameters too.
std::set<std::string> load(test::TinyLm& model, const fs::path& folder, at::ScalarType dtype) {
  const io::Checkpoint checkpoint(folder);
  const auto taken = load_fp8(measure::weight_modules(*model), measure::op_nodes(*model), checkpoint, dtype);
  for (auto& item : model->named_parameters()) {
    if (taken.count(item.key()) != 0) continue;
    at::Tensor value = torch::empty(item.value().sizes(), item.value().scalar_type());
    checkpoint.read(item.key(), value.data_ptr());
    item.value().data().copy_(value);
  }
  return taken;
}

TEST(Load, GivesBackTheVeryModel) {
  const at::Tensor ids = test::token_ids();
  const torch::NoGradGuard no_grad;
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    for (auto dialect : {recipes::Dialect::ocp, recipes::Dialect::gaudi2}) {
      for (auto activations :
           {ActivationScaling::none, ActivationScaling::static_tensor, ActivationScaling::dynamic_token}) {
        for (const bool inc : {false, true}) {
          if (inc && activations != ActivationScaling::static_tensor) continue;
          const test::TempDir dir;
          auto model = test::tiny_lm(1, dtype);
          PlanOptions o;
          o.activations = activations;
          o.dialect = dialect;
          if (inc)
            o.config = configs::parse_quant_config(
                io::Json{{"scale_method", "maxabs_arbitrary"}, {"blocklist", {{"names", {"lm_head"}}}}}, "q");
          if (activations == ActivationScaling::static_tensor) {
            const auto session = measure::CalibrationSession::attach(*model, {});
            model(ids);
            session->finalize();
            o.measurements = session->result();
          }
          convert(*model, o);
          save(*model, dir / "out", "compressed-tensors");
          auto other = test::tiny_lm(2, dtype);
          const auto taken = load(other, dir / "out", dtype);
          EXPECT_EQ(taken.size(), activations == ActivationScaling::static_tensor ? 42u : 28u);
          EXPECT_TRUE(same_bits(other(ids), model(ids)))
              << dtype << " " << recipes::name_of(dialect) << " " << name_of(activations) << " inc " << inc;
        }
      }
    }
  }
}

struct Saved {
  test::TempDir dir;
  test::TinyLm model = test::tiny_lm();
  Saved() {
    convert(*model, {});
    save(*model, dir / "out", "compressed-tensors");
  }
  /// Rewrites the file with `change` applied to each tensor.
  void rewrite(const std::function<void(io::SafetensorsWriter::Entry&, std::vector<std::uint8_t>&)>& change) {
    std::vector<io::SafetensorsWriter::Entry> entries;
    std::vector<std::vector<std::uint8_t>> data;
    {
      const io::SafetensorsFile file(dir / "out/model.safetensors");
      for (const auto& t : file.tensors()) {
        entries.push_back({t.name, t.dtype, t.shape});
        data.emplace_back(t.bytes());
        file.read(t, data.back().data());
        change(entries.back(), data.back());
      }
    }
    io::SafetensorsWriter writer(dir / "out/model.safetensors", entries);
    for (std::size_t i = 0; i < entries.size(); ++i) writer.write(entries[i].name, data[i].data(), 0, data[i].size());
    writer.commit();
  }
};

TEST(Load, WhatDoesNotFitIsNamed) {
  const auto fails = [](Saved& s, const std::vector<std::string>& words) {
    auto target = test::tiny_lm(2);
    EXPECT_TRUE(throws_with(words, [&] { load(target, s.dir / "out", at::kFloat); }));
  };
  {
    Saved s;
    s.rewrite([](auto& e, auto&) {
      if (e.name == "layer_0.k_proj.weight") e.shape = {32, 16};
      if (e.name == "layer_0.k_proj.weight_scale") e.shape = {16, 1};
    });
    fails(s, {"layer_0.k_proj.weight_scale"});  // 16 scales for 32 rows
  }
  {
    Saved s;
    s.rewrite([](auto& e, auto& data) {
      if (e.name == "layer_0.down_proj.weight") e.shape = {40, 32};
      if (e.name == "layer_0.down_proj.weight_scale") {
        e.shape = {40, 1};
        data.resize(160, 0x38);  // eight scales more
      }
    });
    fails(s, {"layer_0.down_proj.weight", "[40, 32]", "[32, 40]"});
  }
  {
    Saved s;
    s.rewrite([](auto& e, auto& data) {
      if (e.name == "layer_1.q_proj.weight") data[7] = 0x7F;
    });
    fails(s, {"layer_1.q_proj.weight", "NaN codes"});
  }
  {
    Saved s;
    s.rewrite([](auto& e, auto&) {
      if (e.name.rfind("layer_1.q_proj", 0) == 0) e.name.replace(0, 7, "layer_5");
    });
    fails(s, {"layer_5.q_proj.weight", "no such module"});
  }
}

TEST(Load, RefusedOnTheFirstGeneration) {
  Saved s;
  auto target = test::tiny_lm(2);
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi);
  EXPECT_TRUE(throws_with({"[load_fp8]", "GAUDI"}, [&] { load(target, s.dir / "out", at::kFloat); }));
}

TEST(Load, Gaudi2CodesMustBeGaudi2s) {
  Saved s;
  auto sidecar = io::read_json(s.dir / "out/fp8.json");
  sidecar["dialect"] = "gaudi2";  // 448 is NaN there
  io::write_json(s.dir / "out/fp8.json", sidecar);
  auto target = test::tiny_lm(2);
  EXPECT_TRUE(throws_with({"weight", "dialect gaudi2", "NaN codes"}, [&] { load(target, s.dir / "out", at::kFloat); }));
}

TEST(Load, OcpCodesAreRefusedOnGaudi2UnlessTheCallerSaysSo) {
  Saved s;
  const io::Checkpoint checkpoint(s.dir / "out");
  const runtime::DeviceKindScope kind(runtime::DeviceKind::gaudi2);
  auto target = test::tiny_lm(2);
  const auto load_as = [&](const LoadFp8Options& options) {
    return load_fp8(measure::weight_modules(*target), measure::op_nodes(*target), checkpoint, at::kFloat, options);
  };
  EXPECT_TRUE(throws_with({(s.dir / "out").string(), "dialect ocp", "FP8_HPU_DEVICE=gaudi2",
                           "convert_checkpoint() with dialect gaudi2", "the option dialect = ocp"},
                          [&] { load_as({}); }));
  {
    const configs::CommandLineNames names;
    EXPECT_TRUE(throws_with({"fp8 convert --dialect gaudi2", "--dialect ocp"}, [&] { load_as({}); }));
  }
  EXPECT_TRUE(throws_with({"fp8.json", "found ocp", "asked for is gaudi2"},
                          [&] { load_as({recipes::Dialect::gaudi2, false, nullptr}); }));
  EXPECT_FALSE(load_as({recipes::Dialect::ocp, false, nullptr}).empty());
  fs::remove(s.dir / "out/fp8.json");  // ocp is what codes are, then
  auto other = test::tiny_lm(2);
  EXPECT_TRUE(throws_with({"dialect ocp"}, [&] {
    load_fp8(measure::weight_modules(*other), measure::op_nodes(*other), checkpoint, at::kFloat);
  }));
  // Taken for gaudi2's, the largest are NaN.
  EXPECT_TRUE(throws_with({"dialect gaudi2", "NaN codes"}, [&] {
    load_fp8(measure::weight_modules(*other), measure::op_nodes(*other), checkpoint, at::kFloat,
             {recipes::Dialect::gaudi2, false, nullptr});
  }));
}

TEST(Load, NaNCodesAreTakenWhereTheyAreAllowed) {
  Saved s;
  s.rewrite([](auto& e, auto& data) {
    if (e.name == "layer_1.q_proj.weight") data[7] = 0x7F;
  });
  const io::Checkpoint checkpoint(s.dir / "out");
  auto target = test::tiny_lm(2);
  const auto load_as = [&](bool allow) {
    return load_fp8(measure::weight_modules(*target), measure::op_nodes(*target), checkpoint, at::kFloat,
                    {std::nullopt, allow, nullptr});
  };
  EXPECT_TRUE(throws_with({"layer_1.q_proj.weight", "NaN codes", "NaN in 1 of"}, [&] { load_as(false); }));
  EXPECT_FALSE(load_as(true).empty());
}

}  // namespace
}  // namespace fp8::quant
