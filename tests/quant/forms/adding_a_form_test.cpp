// SPDX-License-Identifier: Apache-2.0
// What a form of one's own takes: the class below and a registration. Then it is chosen by name, written, recognized by
// its config and read, like those built in.
//
//   X.weight      F8_E4M3 [N, K]
//   X.row_scale   F32 [N]          activations are dynamic per token
//   config.json   quantization_config {"quant_method": "sample", "kept": [names of modules in high precision]}

#include "fp8/quant/checkpoint/reader_check.h"
#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/model/convert.h"
#include "fp8/quant/model/save.h"
#include "quant/checkpoint/small_checkpoint.h"
#include "quant/forms/form_checkpoint.h"
#include "support/models_for_tests.h"
#include "support/threads.h"

namespace fp8::quant {
namespace {

struct SampleForm : CheckpointForm {
  const char* name() const override { return "sample"; }
  const char* help() const override { return "for this test"; }
  const char* quant_method() const override { return "sample"; }

  std::vector<const char*> ignore_keys() const override { return {"/kept"}; }
  NameTest ignored_by(const std::string&) const override { return {}; }

  std::string scheme_problem(const Scheme& s) const override {
    const bool held = s.format == recipes::Format::E4M3 && s.weights == Granularity::channel &&
                      s.activations == ActivationScaling::dynamic_token;
    return held ? "" : "sample holds E4M3 channel weights with dynamic token activations, found " + s.describe();
  }
  std::string weight_problem(const WeightSpec&) const override { return ""; }

  std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& w, const ConfigSpec&) const override {
    return {{w.module + ".weight", io::DType::F8_E4M3, {w.rows, w.cols}},
            {w.module + ".row_scale", io::DType::F32, {w.rows}}};
  }
  void write_scales(TensorSink& sink, const WeightSpec& w, const ConfigSpec&,
                    const std::vector<float>& scale_inv) const override {
    sink.write(w.module + ".row_scale", scale_inv.data(), 0, scale_inv.size() * sizeof(float));
  }

  std::string kv_problem(const KvScales&) const override { return "sample has no scales of key-value caches"; }
  std::vector<io::SafetensorsWriter::Entry> kv_entries(const KvScales&, const ConfigSpec&) const override { return {}; }
  void write_kv(TensorSink&, const KvScales&, const ConfigSpec&) const override {}

  io::Json config(const ConfigSpec& spec) const override {
    return {{"quant_method", quant_method()}, {"kept", ignore_entries(*this, spec)}};
  }

  StoredCheckpoint read(const io::Checkpoint& checkpoint, const io::Json&, const io::Json&) const override {
    StoredCheckpoint out;
    for (const auto& tensor : checkpoint.names()) {
      const auto& info = checkpoint.info(tensor);
      if (info.dtype != io::DType::F8_E4M3) continue;
      StoredWeight w{.spec = {tensor.substr(0, tensor.rfind(".weight")), info.shape.at(0), info.shape.at(1), Scheme()},
                     .weight = tensor};
      w.scale = w.spec.module + ".row_scale";
      w.tensors = {w.weight, w.scale};
      out.weights.push_back(std::move(w));
    }
    return out;
  }
};

TEST(AddingAForm, FoldersAreWrittenReadAndConvertedByItsName) {
  const FormRegistration sample(std::make_unique<SampleForm>());
  const test::TempDir dir;
  test::write_llama(dir / "in", test::small_llama(at::kBFloat16));
  CheckpointOptions options;
  quantize_checkpoint(dir / "in", dir / "plain", options);
  options.form = "sample";
  quantize_checkpoint(dir / "in", dir / "sample", options);

  const auto config = io::read_json(dir / "sample/config.json")["quantization_config"];
  EXPECT_EQ(config["quant_method"], "sample");
  EXPECT_THAT(config["kept"].get<std::vector<std::string>>(), ::testing::Contains("lm_head"));
  EXPECT_TRUE(check_readers(dir / "sample").empty()) << "no program with known rules reads it";

  const auto weights = read_stored(io::Checkpoint(dir / "sample")).weights;
  EXPECT_EQ(weights.size(), 7u);
  ConvertOptions to_plain;
  const auto report = convert_checkpoint(dir / "sample", dir / "back", to_plain);
  EXPECT_TRUE(report.from.starts_with("sample: E4M3 channel weights")) << report.from;
  EXPECT_EQ(report.modules.size(), weights.size());
  for (const auto& w : weights) {
    const std::string scale = w.spec.module + ".weight_scale";
    const at::Tensor codes = test::read_tensor(dir / "plain", w.weight),
                     scales = test::read_tensor(dir / "plain", scale);
    EXPECT_TRUE(test::same_bits(test::read_tensor(dir / "sample", w.weight), codes)) << w.weight;
    EXPECT_TRUE(test::same_bits(test::read_tensor(dir / "sample", w.scale), scales.squeeze(1))) << w.scale;
    EXPECT_TRUE(test::same_bits(test::read_tensor(dir / "back", w.weight), codes)) << w.weight;
    EXPECT_TRUE(test::same_bits(test::read_tensor(dir / "back", scale), scales)) << scale;
  }
}

TEST(AddingAForm, ModelsInMemoryAreSavedByItsName) {
  const FormRegistration sample(std::make_unique<SampleForm>());
  const test::TempDir dir;
  auto model = test::tiny_lm();
  convert(*model, {});
  save(*model, dir / "out", "sample");
  EXPECT_FALSE(read_stored(io::Checkpoint(dir / "out")).weights.empty());
  EXPECT_TRUE(test::same_bits(test::read_tensor(dir / "out", "layer_0.q_proj.weight"),
                              test::code_bytes(model->layers[0]->q_proj->weight)));
  PlanOptions tensor;
  tensor.weights = Granularity::tensor;
  auto other = test::tiny_lm();
  convert(*other, tensor);
  EXPECT_REFUSED(save(*other, dir / "other", "sample"), "sample holds E4M3 channel weights",
                 "found E4M3 tensor weights");
}

TEST(AddingAForm, IsInForceWhileItsRegistrationLives) {
  const io::Json config = {{"quant_method", "sample"}};
  {
    const FormRegistration sample(std::make_unique<SampleForm>());
    EXPECT_EQ(form_names().back(), "sample");
    EXPECT_EQ(&form_of_config(config, "here"), &form_named("sample"));
    EXPECT_REFUSED(form_named("gguf"), "form: found 'gguf'",
                   "compressed-tensors, inc, inc-vllm, fp8, modelopt, quark, sample");
    EXPECT_REFUSED(form_of_config({{"quant_method", "gptq"}}, "here"),
                   "built are: \"compressed-tensors\", \"fp8\", \"modelopt\", \"quark\", \"sample\"");
    const test::HandCheckpoint unexplained(nullptr, {test::codes("m", 4, 4)});
    EXPECT_REFUSED(read_assumed(unexplained.open(), form_named("sample")), "assume = sample",
                   "allowed: compressed-tensors, inc, fp8, modelopt;");
  }
  EXPECT_THAT(form_names(), ElementsAre("compressed-tensors", "inc", "inc-vllm", "fp8", "modelopt", "quark"));
  EXPECT_REFUSED(form_named("sample"), "form: found 'sample'");
  EXPECT_REFUSED(form_of_config(config, "here"), "here: key 'quant_method'", "sample");
}

struct NamedForm final : SampleForm {
  explicit NamedForm(std::string own) : name_(std::move(own)) {}
  const char* name() const override { return name_.c_str(); }

 private:
  std::string name_;
};

TEST(AddingAForm, NamesThatCannotStandAreRefused) {
  const FormRegistration sample(std::make_unique<SampleForm>());
  const auto add = [](const std::string& name) { const FormRegistration form(std::make_unique<NamedForm>(name)); };
  for (const char* name : {"", "Sample", "a b", "a_b", "a,b"})
    EXPECT_REFUSED(add(name), "form: found the name", "allowed: lower case letters") << name;
  for (const char* name : {"sample", "inc", "compressed-tensors"})
    EXPECT_REFUSED(add(name), "the name is taken") << name;
  EXPECT_THROW(const FormRegistration none(nullptr), std::invalid_argument);
}

TEST(AddingAForm, RegistrationIsThreadSafe) {
  test::on_threads(8, [](int i) {
    const std::string name = "mine-" + std::to_string(i);
    for (int k = 0; k < 100; ++k) {
      const FormRegistration mine(std::make_unique<NamedForm>(name));
      EXPECT_EQ(form_named(name).name(), name);
    }
  });
  EXPECT_EQ(form_names().size(), 6u);
}

}  // namespace
}  // namespace fp8::quant
