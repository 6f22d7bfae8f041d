// SPDX-License-Identifier: Apache-2.0
// Every form and scheme into every other, into high precision and back. Expected values are LibTorch's products of the
// codes and scales that the test itself put into the source, compared bit for bit.
#include "fp8/quant/checkpoint/reform.h"

#include "quant/checkpoint/fp8_source.h"
#include "support/enum_names.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using recipes::FloatType;
using test::Fp8Source;
using test::make_scheme;
using test::to;

constexpr const char* kForms[] = {"compressed-tensors", "fp8", "modelopt", "inc", "inc-vllm"};

std::string conversion_error(const fs::path& model, const fs::path& out, const ConvertOptions& o) {
  const std::string error = test::error_of([&] { convert_checkpoint(model, out, o); });
  EXPECT_EQ(fs::exists(out), error.empty()) << "something stands under the final name";
  return error;
}

/// The weights of a high precision folder are round(code * scale) of the source.
void expect_decoded(const fs::path& folder, const Fp8Source& source, at::ScalarType type, const std::string& what) {
  for (const auto& [name, w] : source.weights)
    EXPECT_TRUE(holds(folder, name + ".weight", w.values().to(type))) << what << " " << name;
}

void expect_kept(const fs::path& folder, const Fp8Source& source) {
  const io::Checkpoint checkpoint(folder);
  for (const auto& [name, t] : source.kept) {
    EXPECT_EQ(checkpoint.info(name).dtype, test::file_type(t.scalar_type())) << name;
    EXPECT_TRUE(holds(folder, name, t));
  }
}

struct Row {
  const char* name;
  Scheme scheme;
  std::int64_t unit;
  bool kv;
  const char* outcome[5];  ///< per form: the change of every module, or a part of the error
};

std::vector<Row> rows() {
  using W = Granularity;
  using A = ActivationScaling;
  const auto scheme = [](auto... of) { return make_scheme(of...); };
  const char *same = "unchanged", *no_static = "needs static input scales",
             *coarser = "'weights' tensor, channel or block requantizes";
  return {
      {"static tensor", scheme(W::tensor, A::static_tensor), 16, true, {same, same, same, same, same}},
      {"tensor, token", scheme(W::tensor, A::dynamic_token), 16, true, {same, same, "scales spread", same, no_static}},
      {"channel, token", scheme(W::channel, A::dynamic_token), 16, true, {same, coarser, same, same, coarser}},
      {"channel, static", scheme(W::channel, A::static_tensor), 16, false, {same, coarser, same, same, coarser}},
      {"channel, weights only", scheme(W::channel, A::none), 16, false, {same, coarser, same, same, coarser}},
      {"block 16", scheme(W::block, A::dynamic_group, 16), 16, true, {same, same, coarser, coarser, coarser}},
      {"block 128", scheme(W::block, A::dynamic_group), 128, false, {same, same, same, coarser, coarser}},
      {"E8M0", scheme(W::block, A::dynamic_group, 16, true), 16, false, {same, same, coarser, coarser, coarser}}};
}

using CheckpointConvert = InFolder;

TEST_F(CheckpointConvert, ChangesHaveNames) { test::check_names<Change>(); }

TEST_F(CheckpointConvert, EveryFormIntoEveryOtherAndBack) {
  for (const auto& row : rows()) {
    TempDir tmp;
    const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit, row.kv);
    for (std::size_t i = 0; i < std::size(kForms); ++i) {
      const std::string what = std::string(row.name) + " -> " + kForms[i];
      SCOPED_TRACE(what);
      const fs::path out = tmp / ("out" + std::to_string(i)), values = tmp / ("values" + std::to_string(i)),
                     back = tmp / ("back" + std::to_string(i));
      const std::string wanted = row.outcome[i];
      if (wanted != "unchanged" && wanted != "scales spread") {
        EXPECT_THAT(conversion_error(tmp / "in", out, to(kForms[i])), HasSubstr(wanted));
        continue;
      }
      const auto report = convert_checkpoint(tmp / "in", out, to(kForms[i]));
      ASSERT_EQ(report.modules.size(), source.weights.size());
      for (const auto& m : report.modules) {
        EXPECT_EQ(name_of(m.change), wanted) << m.name;
        EXPECT_TRUE(m.exact);
      }
      expect_kept(out, source);
      EXPECT_TRUE(fs::exists(out / "tokenizer.json"));
      EXPECT_TRUE(verify_conversion(tmp / "in", out, to(kForms[i])).changed.empty());
      convert_checkpoint(out, values, to(FloatType::F32));
      expect_decoded(values, source, at::kFloat, what);
      const auto kv = read_stored(io::Checkpoint(out)).kv;
      ASSERT_EQ(kv.size(), source.kv.size());
      for (const auto& one : kv) {
        EXPECT_EQ(one.k, std::vector<float>{source.kv.at(one.attention).first});
        EXPECT_EQ(one.v, std::vector<float>{source.kv.at(one.attention).second});
      }
      auto home = to(row.scheme.power_of_two ? "fp8" : "compressed-tensors");
      if (row.scheme.power_of_two) home.power_of_two = true;  // compressed-tensors has them in F32 and does not say so
      for (const auto& m : convert_checkpoint(out, back, home).modules) EXPECT_EQ(m.change, Change::unchanged);
      if (wanted != "unchanged") continue;
      for (const auto& [name, w] : source.weights) {  // spelt as it was, to the byte
        for (const char* end : {".weight", ".weight_scale", ".weight_scale_inv", ".input_scale"}) {
          if (!io::Checkpoint(tmp / "in").contains(name + end)) continue;
          if (std::string(end) == ".input_scale" && report.to.find("static") == std::string::npos)
            continue;  // dropped, and said so
          EXPECT_TRUE(holds(tmp / "in", name + end, read_tensor(back, name + end))) << name << end;
        }
      }
    }
  }
}

TEST_F(CheckpointConvert, BlocksOfPowersOfTwoBecomeMxAndStayIt) {
  const auto source = test::write_fp8_source(
      folder / "in", make_scheme(Granularity::block, ActivationScaling::dynamic_group, 64, true), 64);
  const auto expect_change = [&](const char* from, const char* out, const ConvertOptions& o, Change change) {
    for (const auto& m : convert_checkpoint(folder / from, folder / out, o).modules) {
      EXPECT_EQ(m.change, change) << out << " " << m.name;
      EXPECT_TRUE(m.exact);
    }
    EXPECT_TRUE(verify_conversion(folder / from, folder / out, o).changed.empty()) << out;
  };
  auto mx = to("compressed-tensors");
  set_weights(mx, WeightWord::mx);
  expect_change("in", "ct", mx, Change::spread);
  for (const auto& [name, w] : source.weights) {
    EXPECT_TRUE(holds(folder / "ct", name + ".weight", w.codes.view(at::kByte)));
    const at::Tensor exponents = read_tensor(folder / "ct", name + ".weight_scale").to(at::kFloat) - 127;
    EXPECT_TRUE(torch::equal(torch::exp2(exponents).repeat_interleave(32, 1), w.spread)) << name;
  }
  expect_change("ct", "mo", to("modelopt"), Change::unchanged);
  expect_change("mo", "back", to("compressed-tensors"), Change::unchanged);
  EXPECT_EQ(read_file(folder / "back/model.safetensors"), read_file(folder / "ct/model.safetensors"));
  expect_change("back", "bf16", to(FloatType::BF16), Change::decoded);
  expect_decoded(folder / "bf16", source, at::kBFloat16, "bf16");
  CheckpointOptions again;
  set_weights(again.plan, WeightWord::mx);
  quantize_checkpoint(folder / "bf16", folder / "again", again);
  convert_checkpoint(folder / "again", folder / "f32", to(FloatType::F32));
  expect_decoded(folder / "f32", source, at::kFloat, "once in bf16");
  test::write_fp8_source(folder / "narrow", make_scheme(Granularity::block, ActivationScaling::dynamic_group, 16, true),
                         24);
  EXPECT_THAT(conversion_error(folder / "narrow", folder / "out", mx), HasSubstr("72 inputs are no multiple of 32"));
}

TEST_F(CheckpointConvert, HighPrecisionIsTheProductRoundedOnce) {
  for (const auto& row : rows()) {
    TempDir tmp;
    const auto source = test::write_fp8_source(tmp / "in", row.scheme, row.unit, row.kv);
    for (const auto& [type, torch_type] :
         {std::pair{FloatType::BF16, at::kBFloat16}, std::pair{FloatType::F16, at::kHalf},
          std::pair{FloatType::F32, at::kFloat}}) {
      const fs::path out = tmp / kernels::name_of(type);
      const auto report = convert_checkpoint(tmp / "in", out, to(type));
      expect_decoded(out, source, torch_type, row.name);
      expect_kept(out, source);
      EXPECT_EQ(io::Checkpoint(out).names().size(), source.weights.size() + source.kept.size());
      EXPECT_TRUE(verify_conversion(tmp / "in", out, to(type)).changed.empty());
      const auto noted = [&](const char* what) {
        return io::Json(report.notes).dump().find(what) != std::string::npos;
      };
      EXPECT_EQ(noted("key-value cache scales of 1 attention modules dropped"), row.kv);
      EXPECT_EQ(noted("input scales of 7 modules dropped"), row.scheme.activations == ActivationScaling::static_tensor);
    }
  }
}

TEST_F(CheckpointConvert, ScalesInBf16AndF16AreReadAsTheyAre) {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    TempDir tmp;
    auto source = test::write_fp8_source(tmp / "in", make_scheme(Granularity::channel, ActivationScaling::none), 16);
    test::NamedTensors all = source.kept;
    for (auto& [name, w] : source.weights) {
      const auto stored = w.scale.to(type);
      w.spread = stored.to(at::kFloat).expand_as(w.codes).contiguous();
      all.emplace_back(name + ".weight", w.codes);
      all.emplace_back(name + ".weight_scale", stored);
    }
    test::write_tensors(tmp / "in", all);
    convert_checkpoint(tmp / "in", tmp / "out", to(FloatType::BF16));
    expect_decoded(tmp / "out", source, at::kBFloat16, "16-bit scales");
  }
}

TEST_F(CheckpointConvert, ConfigKeepsItsBytes) {
  test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::dynamic_token, 128), 16);
  const std::string rest = "  \"last\": 1.50\n}\n";
  for (const char* stale : {"hf_quant_config.json", "quantization_config.json"})
    test::write_text(folder / "in" / stale, "{}");
  convert_checkpoint(folder / "in", folder / "bf16", to(FloatType::BF16));
  EXPECT_EQ(read_file(folder / "bf16" / "config.json"), test::kConfigHead + rest);
  for (const char* gone : {"hf_quant_config.json", "quantization_config.json"})
    EXPECT_FALSE(fs::exists(folder / "bf16" / gone)) << gone;
  const auto note = io::read_json(folder / "bf16" / "fp8.json");
  EXPECT_EQ(note["converted"], (io::Json{{"from", "compressed-tensors"}, {"exact", true}}));
  EXPECT_FALSE(note.contains("dialect"));  // of codes that it has no longer
  convert_checkpoint(folder / "in", folder / "f32", to(FloatType::F32));
  std::string head = test::kConfigHead;
  head.replace(head.find("bfloat16"), 8, "float32");
  EXPECT_EQ(read_file(folder / "f32" / "config.json"), head + rest);
  convert_checkpoint(folder / "in", folder / "inc", to("inc"));
  const auto config = io::read_json(folder / "inc" / "config.json");
  EXPECT_EQ(config["quantization_config"], io::read_json(folder / "inc" / "quantization_config.json"));
  EXPECT_EQ(config.begin().key(), "model_type");
  EXPECT_EQ(io::read_json(folder / "inc" / "fp8.json")["converted"],
            (io::Json{{"from", "compressed-tensors"}, {"exact", true}}));
}

TEST_F(CheckpointConvert, HighPrecisionIsCast) {
  const auto tensors = test::small_llama(at::kBFloat16);
  test::write_llama(folder / "in", tensors);
  EXPECT_EQ(convert_checkpoint(folder / "in", folder / "f32", to(FloatType::F32)).from, "high precision");
  convert_checkpoint(folder / "f32", folder / "back", to(FloatType::BF16));
  for (const auto& [name, t] : tensors) {
    EXPECT_TRUE(holds(folder / "f32", name, t.is_floating_point() ? t.to(at::kFloat) : t));
    EXPECT_TRUE(holds(folder / "back", name, t));
  }
  EXPECT_EQ(io::read_json(folder / "f32" / "config.json")["torch_dtype"], "float32");
  EXPECT_TRUE(verify_conversion(folder / "in", folder / "f32", to(FloatType::F32)).changed.empty());
  EXPECT_THAT(conversion_error(folder / "in", folder / "no", to("fp8")),
              HasSubstr("quantize_checkpoint() makes one of it"));
  test::write_tensors(folder / "big", {{"a.weight", torch::full({2, 2}, 1e6).to(at::kBFloat16)}});
  test::write_text(folder / "big" / "config.json", "{}");
  EXPECT_THAT(conversion_error(folder / "big", folder / "no", to(FloatType::F16)),
              HasSubstr("a.weight: holds values that leave the range of f16"));
}

TEST_F(CheckpointConvert, CastAllCastsWhatIsNotInFp8) {
  const auto source =
      test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::none), 16);
  ConvertOptions o{.type = FloatType::BF16, .cast_all = true};
  convert_checkpoint(folder / "in", folder / "out", o);
  for (const auto& [name, t] : source.kept)
    EXPECT_TRUE(holds(folder / "out", name, t.is_floating_point() ? t.to(at::kBFloat16) : t));
  EXPECT_TRUE(verify_conversion(folder / "in", folder / "out", o).changed.empty());
}

TEST_F(CheckpointConvert, RefusesByName) {
  const std::string q = "model.layers.0.self_attn.q_proj";
  const auto write = [&](const auto& change) {
    auto source = test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::none), 16);
    change(source.weights.at(q));
    test::NamedTensors all = source.kept;
    for (auto& [name, w] : source.weights) {
      all.emplace_back(name + ".weight", w.codes);
      all.emplace_back(name + ".weight_scale", w.scale);
    }
    test::write_tensors(folder / "in", all);
  };
  const auto expect_error = [&](const ConvertOptions& o, const std::string& part) {
    EXPECT_THAT(conversion_error(folder / "in", folder / "out", o), AllOf(HasSubstr(part), HasSubstr(q)));
  };
  write([](test::SourceWeight& w) { w.codes.view(at::kByte)[3][4].fill_(0xFF); });
  expect_error(to(FloatType::BF16), "NaN codes");
  expect_error(to("inc"), "NaN codes");
  write([](test::SourceWeight& w) { w.scale[3][0] = 0; });
  expect_error(to(FloatType::BF16), "expected finite scales > 0");
  write([](test::SourceWeight& w) {
    w.scale[3][0] = 1000;
    w.codes.view(at::kByte)[3][0].fill_(0x7E);
  });
  expect_error(to(FloatType::F16), "leave the range of f16");
  convert_checkpoint(folder / "in", folder / "fits", to(FloatType::BF16));
  EXPECT_NE(conversion_error(folder / "in", folder / "in" / "inside", to(FloatType::BF16)), "");
  EXPECT_THAT(conversion_error(folder / "nowhere", folder / "out", to(FloatType::BF16)),
              HasSubstr("expected a model folder, found nothing"));
}

TEST_F(CheckpointConvert, VerifyFindsADamagedByte) {
  test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::none), 16);
  for (const auto& o : {to(FloatType::BF16), to("inc")}) {
    ConvertOptions overwrite = o;
    overwrite.stream.overwrite = true;
    convert_checkpoint(folder / "in", folder / "out", overwrite);
    ASSERT_TRUE(verify_conversion(folder / "in", folder / "out", o).changed.empty());
    auto bytes = read_file(folder / "out" / "model.safetensors");
    const io::SafetensorsFile file(folder / "out" / "model.safetensors");
    const auto* t = file.find("model.layers.0.mlp.up_proj.weight");
    const auto* steps = file.find("model.steps");
    const std::size_t data = bytes.size() - [&] {
      std::uint64_t all = 0;
      for (const auto& info : file.tensors()) all += info.bytes();
      return all;
    }();
    bytes[data + t->begin + 6] = static_cast<char>(bytes[data + t->begin + 6] ^ 1);
    bytes[data + steps->begin] = static_cast<char>(bytes[data + steps->begin] ^ 1);
    test::write_text(folder / "out" / "model.safetensors", bytes);
    EXPECT_EQ(verify_conversion(folder / "in", folder / "out", o).changed,
              (std::vector<std::string>{"model.layers.0.mlp.up_proj", "model.steps"}));
  }
}

TEST_F(CheckpointConvert, RanksAndResumeGiveTheSameBytes) {
  test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::dynamic_token), 32, true);
  for (const auto& base : {to(FloatType::BF16), to("modelopt")}) {
    auto o = base;
    o.stream.shard_bytes = 6000;
    o.stream.overwrite = true;
    convert_checkpoint(folder / "in", folder / "whole", o);
    const auto expected = folder_bytes(folder / "whole");
    EXPECT_GT(expected.size(), 4u) << "several files";
    o.stream.overwrite = false;
    fs::remove_all(folder / "ranks");
    for (o.stream.rank = 0, o.stream.world_size = 3; o.stream.rank < 3; ++o.stream.rank) {
      convert_checkpoint(folder / "in", folder / "ranks", o);
      EXPECT_FALSE(fs::exists(folder / "ranks"));
    }
    o.stream.rank = 0;
    o.join = true;
    convert_checkpoint(folder / "in", folder / "ranks", o);
    EXPECT_EQ(folder_bytes(folder / "ranks"), expected);
    o.join = false;
    o.stream.world_size = 1;
    o.stream.resume = true;
    fs::remove_all(folder / "cut");
    for (int allowed = 1;; allowed *= 2) {  // cut short again and again, later each time
      int asked = 0;
      o.stream.stop = [&] { return ++asked > allowed; };
      if (conversion_error(folder / "in", folder / "cut", o).empty()) break;
    }
    EXPECT_EQ(folder_bytes(folder / "cut"), expected);
  }
}

TEST_F(CheckpointConvert, ResumeOfAFinishedOutputSaysSo) {
  test::write_fp8_source(folder / "in", make_scheme(Granularity::channel, ActivationScaling::dynamic_token), 16);
  for (const auto& base : {to(FloatType::BF16), to("modelopt")}) {
    auto o = base;
    o.stream.resume = true;
    fs::remove_all(folder / "out");
    EXPECT_FALSE(convert_checkpoint(folder / "in", folder / "out", o).finished_before);
    const auto before = folder_bytes(folder / "out");
    EXPECT_TRUE(convert_checkpoint(folder / "in", folder / "out", o).finished_before);
    EXPECT_EQ(folder_bytes(folder / "out"), before);
    const auto weights = folder / "in" / "model.safetensors";
    fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(5));
    EXPECT_ERROR(io::Error, convert_checkpoint(folder / "in", folder / "out", o), "not what this run would write");
    EXPECT_EQ(folder_bytes(folder / "out"), before);
  }
}

}  // namespace
}  // namespace fp8::quant
