// SPDX-License-Identifier: Apache-2.0
// A family that combines known parts, as one is added: a reader, a row and a fixture. "arcee", which is not built in,
// has Llama's frame and Nemotron's MLP: down(relu(up(x))^2).
#include <ATen/Functions.h>

#include "fp8/tools/models/families/families.h"
#include "fp8/tools/models/families/keys.h"
#include "support/in_process.h"
#include "tools/models/fixture.h"

namespace fp8::models {
namespace {

void read_arcee(const ConfigReader& reader, DecoderConfig& config) {
  families::read_llama_like(reader, config, {.sizes = {.default_context = 4096}, .eps = 1e-5, .activation = "relu2"});
  config.mlp.gated = false;
}

class AddingARow : public ::testing::Test {
 protected:
  void SetUp() override { fixture.write(folder / "model"); }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  static io::Json json_of(const std::vector<std::string>& arguments) {
    return test::json_of(test::fp8_in_process("{} --json --quiet", arguments));
  }

  const at::NoGradGuard no_grad;
  const ModelRegistration row{model_family(DecoderFamily{"arcee", "Arcee", read_arcee})};
  const testing::Fixture fixture{"arcee-added"};
  const test::TempDir folder;
};

TEST_F(AddingARow, LogitsAreThoseOfTransformers) {
  for (const auto attention : {AttentionKind::fused, AttentionKind::eager}) {
    const auto loaded = load_model(folder / "model", {.dtype = at::kFloat, .attention = attention});
    EXPECT_EQ(loaded.unused, std::vector<std::string>());
    for (const auto& run : fixture.runs) {
      const auto cache = loaded.model->make_cache(run.ids.size(1));
      const auto half = run.ids.size(1) / 2;
      const auto whole = loaded.model->forward(run.ids);
      const auto logits = whole.index_select(1, at::tensor(run.positions, at::kLong));
      EXPECT_LE((logits - run.logits).abs().max().item<float>(), 3e-4f);
      loaded.model->forward(run.ids.narrow(1, 0, half), cache.get());
      const auto rest = loaded.model->forward(run.ids.narrow(1, half, run.ids.size(1) - half), cache.get());
      EXPECT_LE((rest - whole.narrow(1, half, rest.size(1))).abs().max().item<float>(), 3e-4f);
    }
  }
}

TEST_F(AddingARow, CommandsTakeIt) {
  const auto ids = (at::arange(8 * 24, at::kLong).square() * 17 + 5).remainder(45).view({8, 24}) + 3;
  io::SafetensorsWriter writer(folder / "ids.safetensors", {{"input_ids", io::DType::I64, {8, 24}}});
  writer.write("input_ids", ids.contiguous().const_data_ptr());
  writer.commit();
  const auto measured = json_of(args("measure --model {} --data {} --seq-len 24 --block-wise --out {}", path("model"),
                                     path("ids.safetensors"), path("stats")));
  ASSERT_TRUE(measured.is_object());
  EXPECT_EQ(measured["modules"], 3 * 6 + 1);  // layers of q, k, v, o, up and down; the head
  json_of(
      args("quantize --model {} --measurements {} --kv-cache fp8 --out {}", path("model"), path("stats"), path("fp8")));
  const auto json = json_of(args("evaluate --model {} --reference {} --data {} --seq-len 24", path("fp8"),
                                 path("model"), path("ids.safetensors")));
  ASSERT_TRUE(json.is_object());
  EXPECT_GT(json["kl"].get<double>(), 0);
  EXPECT_LE(json["kl"].get<double>(), 0.1);
}

}  // namespace
}  // namespace fp8::models
