// SPDX-License-Identifier: Apache-2.0
// Quantization by operators, as Python and TorchScript call them: codes and scales against the formula, what goes into
// a checkpoint and comes out of it, and what is refused.
#include "fp8/quant/model/operators.h"

#include "fp8/quant/model/rows_of_model.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

using Written = std::pair<Tensors, Words>;

/// code = RNE(w * f32(1 / scale_inv)), of weights within the range: PyTorch's cast rounds the same there.
at::Tensor codes_of(const at::Tensor& w, const at::Tensor& scale_inv) {
  return (w * (1 / scale_inv)).clamp(-448, 448).to(at::kFloat8_e4m3fn);
}

struct Model {
  at::Tensor a = at::randn({32, 16}, on_hpu()), b = at::randn({16, 32}, on_hpu());
  at::Tensor a_values = a.cpu(), b_values = b.cpu();
  Words names = {"layers.0.fc1", "fc2"}, types = {"Linear", "Linear"};
  at::Tensor forward(const at::Tensor& x) const { return at::linear(at::relu(at::linear(x, a)), b); }
  Tensors weights() const { return {a, b}; }
  io::Json convert(const std::string& options = "{}") const {
    return json_of(call_fp8("convert", {weights(), names, types, options}));
  }
};

TEST(Convert, PutsCodesInTheWeightsPlace) {
  const Model m;
  const auto* impl = m.a.unsafeGetTensorImpl();
  const io::Json report = m.convert(R"({"weights": "channel", "activations": "none", "dialect": "ocp"})");
  EXPECT_EQ(report["converted"].size(), 2u);
  EXPECT_EQ(report["converted"][0]["name"], "layers.0.fc1");
  EXPECT_EQ(report["converted"][0]["bytes_after"], 32 * 16);
  EXPECT_EQ(m.a.unsafeGetTensorImpl(), impl);
  const at::Tensor scale_inv = m.a_values.abs().amax(1, true) / 448;
  EXPECT_TRUE(same_bits(call_fp8("scale_inv", {m.a}).toTensor(), scale_inv.flatten()));
  EXPECT_TRUE(same_bits(m.a, codes_of(m.a_values, scale_inv)));
  const at::Tensor values = codes_of(m.a_values, scale_inv).to(at::kFloat) * scale_inv;
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {m.a}).toTensor(), values));
  const runtime::autocast::AutocastGuard region;
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {m.a}).toTensor(), values)) << "an autocast region changed the dtype";
}

TEST(Convert, GradientsPassThroughWhatInferenceModeConverted) {
  torch::manual_seed(4);
  const Model there;
  torch::manual_seed(4);
  const Model here;
  here.convert();
  test::within(c10::InferenceMode(), [&] { there.convert(); });
  const at::Tensor x = at::randn({4, 16}, on_hpu()), a = x.clone().requires_grad_(true),
                   b = x.clone().requires_grad_(true);
  there.forward(a).sum().backward();
  here.forward(b).sum().backward();
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
}

TEST(Convert, ReadsAMeasurement) {
  const Model m;
  const TempDir dir;
  const at::Tensor x = at::randn({8, 16}, on_hpu()), y = m.forward(x);
  const auto s =
      call_fp8("measure_begin", {m.weights(), m.names, m.types, c10::IValue(), (dir / "p").string()}).toInt();
  m.forward(x);
  call_fp8("measure_end", {s});
  m.convert(R"({"measurements": ")" + dir.path().string() + "\"}");
  const io::Json scheme = json_of(call_fp8("scheme_of", {m.a}));
  EXPECT_EQ(scheme["activations"], "static_tensor");
  EXPECT_EQ(scheme["input_scale_inv"].get<float>(), x.cpu().abs().max().item<float>() / 448);
  EXPECT_LT((m.forward(x) - y).norm().item<float>(), 0.1 * y.norm().item<float>());
  EXPECT_FALSE(same_bits(m.forward(x), y));
}

TEST(Convert, TakesAQuantConfig) {
  const Model m;
  m.convert(R"({"quant_config": {"mode": "QUANTIZE", "scale_method": "unit_scale", )"
            R"("allowlist": {"types": [], "names": ["fc1"]}}})");
  EXPECT_EQ(call_fp8("scale_inv", {m.a}).toTensor().item<float>(), 1.0f);
  EXPECT_EQ(json_of(call_fp8("scheme_of", {m.a}))["convention"], "inc");
  EXPECT_EQ(m.b.scalar_type(), at::kFloat);
  EXPECT_REFUSED(m.convert(R"({"quant_config": "f.json", "weights": "tensor"})"), "quant_config", "alone");
}

TEST(Convert, NamesWhatIsWrongAndChangesNothing) {
  const Model m;
  EXPECT_REFUSED(m.convert(R"({"weight": "channel"})"), "fp8::convert", "unknown key 'weight'", "'weights'");
  EXPECT_REFUSED(m.convert(R"({"weights": "rows"})"), "fp8::convert", "'weights'", "\"rows\"",
                 "tensor, channel, block, mx");
  EXPECT_REFUSED(m.convert(R"({"weights": "mx", "block": [1, 16]})"), "fp8::convert", "'block'", "\"mx\"");
  EXPECT_REFUSED(m.convert(R"({"weights": "block", "block": [0, 4]})"), "fp8::convert", "'block'", "[0,4]");
  EXPECT_REFUSED(m.convert(R"({"fuse_scales": 1})"), "fp8::convert", "'fuse_scales'", "true, false");
  EXPECT_REFUSED(m.convert("[1]"), "fp8::convert", "object");
  EXPECT_REFUSED(m.convert(R"({"measurements": "/nowhere"})"), "nowhere");
  EXPECT_REFUSED(call_fp8("convert", {m.weights(), Words{"a"}, m.types}), "fp8::convert", "modules", "found 1",
                 "expected 2");
  EXPECT_TRUE(same_bits(m.a, m.a_values));
  EXPECT_REFUSED(call_fp8("convert", {Tensors{m.a, at::ones({2, 2})}, Words{"a", "cpu_one"}, m.types}), "cpu_one",
                 "cpu");
  EXPECT_TRUE(same_bits(m.a, m.a_values));
}

TEST(Convert, RefusesPythonsRecurrentModulesUnlessAskedFor) {
  const at::Tensor w = at::randn({32, 16}, on_hpu()), values = w.cpu();
  const Tensors weights = {w};
  const auto convert = [&](const std::string& type, const std::string& options) {
    return json_of(call_fp8("convert", {weights, Words{"rnn.weight_ih_l0"}, Words{type}, options}));
  };
  const std::string config = R"("quant_config": {"mode": "QUANTIZE", "scale_method": "unit_scale", )"
                             R"("allowlist": {"types": [], "names": ["rnn"]}})";
  for (const char* type : {"LSTM", "GRU", "RNN"}) {
    for (const std::string& options : {std::string("{}"), "{" + config + "}"})
      EXPECT_REFUSED(convert(type, options), "'rnn.weight_ih_l0'", type, "another dtype", "\"recurrent\": true");
    EXPECT_EQ(convert(type, R"({"exclude": ["rnn"]})")["converted"].size(), 0u) << "left out by a pattern";
    EXPECT_TRUE(same_bits(w, values));
  }
  EXPECT_EQ(convert("LSTM", R"({"recurrent": true})")["converted"].size(), 1u);
  EXPECT_EQ(w.scalar_type(), at::kFloat8_e4m3fn);
}

/// The weight of another process: bytes, scales and scheme through files, then tagged.
void expect_like(const at::Tensor& weight, const at::Tensor& x) {
  const at::Tensor copy = weight.view(at::kByte).cpu().view(weight.scalar_type()).to(kHpu),
                   scale_inv = call_fp8("scale_inv", {weight}).toTensor().cpu();
  const std::string scheme = call_fp8("scheme_of", {weight}).toStringRef();
  EXPECT_EQ(call_fp8("tag_of", {copy}).toStringRef(), "null");
  call_fp8("tag", {copy, std::string("other"), scale_inv, scheme});
  EXPECT_EQ(call_fp8("scheme_of", {copy}).toStringRef(), scheme);
  EXPECT_TRUE(same_bits(call_fp8("dequantize", {copy}).toTensor(), call_fp8("dequantize", {weight}).toTensor()));
  EXPECT_TRUE(same_bits(at::linear(x, copy), at::linear(x, weight))) << scheme;
}

TEST(Tag, MakesTheLikeOfEveryScheme) {
  for (const char* options :
       {R"({"weights": "tensor", "activations": "none"})", R"({"weights": "channel", "activations": "dynamic_token"})",
        R"({"weights": "tensor", "activations": "dynamic_tensor", "dialect": "gaudi2"})",
        R"({"weights": "block", "block": [8, 16], "activations": "dynamic_group"})",
        R"({"weights": "block", "block": [8, 12], "activations": "none", "power_of_two": true})",
        R"({"weights": "mx"})", R"({"weights": "mx", "activations": "none"})",
        R"({"quant_config": {"mode": "QUANTIZE", "scale_method": "unit_scale"}})"}) {
    const Model m;
    m.convert(options);
    expect_like(m.b, at::randn({3, 32}, on_hpu()));
  }
}

TEST(Tag, ComputesWithCodesThatComeFromElsewhere) {
  const at::Tensor values = at::randn({6, 8}), scale_inv = at::full({1}, 0.5);
  const at::Tensor codes = values.to(at::kFloat8_e5m2), on = codes.to(kHpu), x = at::randn({2, 8});
  call_fp8("tag", {on, std::string("fc"), scale_inv, std::string(R"({"dtype": "f32"})")});
  EXPECT_TRUE(at::allclose(at::linear(x.to(kHpu), on).cpu(), at::linear(x, codes.to(at::kFloat) * 0.5), 1e-6, 1e-6));
}

TEST(Tag, NamesWhatIsWrong) {
  const at::Tensor codes = at::randn({6, 8}).to(at::kFloat8_e4m3fn).to(kHpu), one = at::ones({1});
  const auto tag = [&](const at::Tensor& c, const at::Tensor& s, const std::string& scheme) {
    call_fp8("tag", {c, std::string("m"), s, scheme});
  };
  EXPECT_REFUSED(tag(at::ones({6, 8}, on_hpu()), one, "{}"), "fp8::tag", "codes", "Float ");
  EXPECT_REFUSED(tag(codes.cpu(), one, "{}"), "fp8::tag", "codes", "cpu");
  EXPECT_REFUSED(tag(codes.t(), one, "{}"), "fp8::tag", "codes", "strides");
  EXPECT_REFUSED(tag(codes, one.to(at::kBFloat16), "{}"), "fp8::tag", "scale_inv", "BFloat16");
  EXPECT_REFUSED(tag(codes, at::ones({5}), "{}"), "fp8::tag", "scale_inv", "expected 6", "found 5");
  const auto two_by_two = [&] { tag(codes, at::ones({2, 2}), "{}"); };
  EXPECT_TRUE(throws_with({"fp8::tag", "scale_inv", "6 x 8", "128 x 128", "[2, 2]"}, two_by_two) ||
              throws_with({"fp8::tag", "scale_inv", "1 x 1", "128 x 128", "[2, 2]"}, two_by_two));
  for (const double bad : {0.0, -1.0, HUGE_VAL, std::nan("")})
    EXPECT_REFUSED(tag(codes, at::full({1}, bad), "{}"), "fp8::tag", "scale_inv", "positive");
  EXPECT_REFUSED(tag(codes, one, R"({"activations": "static_tensor"})"), "fp8::tag", "input_scale_inv");
  EXPECT_REFUSED(tag(codes, one, R"({"activations": "static_tensor", "input_scale_inv": 0})"), "fp8::tag",
                 "input_scale_inv", "positive");
  EXPECT_REFUSED(tag(codes, one, R"({"activations": "dynamic_token", "convention": "inc"})"), "fp8::tag", "convention");
  EXPECT_REFUSED(tag(codes, one, R"({"dialect": "gaudi1"})"), "fp8::tag", "'dialect'", "gaudi2, gaudi3, ocp");
  EXPECT_EQ(call_fp8("tag_of", {codes}).toStringRef(), "null");
  EXPECT_REFUSED(call_fp8("scale_inv", {codes}), "fp8::scale_inv", "untagged");
  EXPECT_REFUSED(call_fp8("scheme_of", {codes}), "fp8::scheme_of", "untagged");
}

TEST(Packed, WeightsAndValues) {
  const auto carried = [](const at::Tensor& t) { return call_fp8("unpacked", {call_fp8("packed", {t})}).toTensor(); };
  const Model m;
  m.convert(R"({"weights": "channel", "dialect": "ocp"})");
  EXPECT_EQ(call_fp8("describe", {carried(m.a)}).toStringRef(), call_fp8("describe", {m.a}).toStringRef());
  EXPECT_TRUE(same_bits(carried(m.a), m.a));
  for (const at::Tensor& t :
       {at::randn({3, 4}, on_hpu()).t(), at::arange(5), at::ones({}, at::kBool), at::empty({0, 2}),
        at::ones({2}, at::kComplexFloat).conj(), at::ones({2}, at::kFloat8_e5m2)}) {
    const at::Tensor found = carried(t);
    EXPECT_TRUE(found.is_cpu() && found.scalar_type() == t.scalar_type() && same_bits(found, t.cpu().resolve_conj()));
  }
  EXPECT_REFUSED(call_fp8("packed", {m.a.narrow(0, 0, 4)}), "layers.0.fc1", "a part of it");
  const auto unpack = [](std::string text) {
    return call_fp8("unpacked", {at::from_blob(text.data(), {static_cast<std::int64_t>(text.size())}, at::kByte)});
  };
  EXPECT_REFUSED(unpack("{}"), "expected what fp8::packed gives");
  EXPECT_REFUSED(unpack("{}\n"), "expected what fp8::packed gives");
  for (const char* dtype : {"-1", "1000", "\"float\"", "null"})
    EXPECT_REFUSED(unpack("{\"dtype\": " + std::string(dtype) + ", \"sizes\": []}\n"), "key 'dtype': found", dtype);
  EXPECT_REFUSED(unpack("{\"dtype\": 6, \"sizes\": [2]}\n1234567"), "Float: expected 8 bytes", "found 7");
  EXPECT_REFUSED(unpack("{\"dtype\": 6, \"sizes\": [-2]}\n"), "key 'sizes': found -2");
}

TEST(ScoreLogits, SumsOfAllChunks) {
  const at::Tensor logits = at::randn({2, 5, 7}), other = at::randn({2, 5, 7}),
                   ids = at::randint(0, 7, {2, 5}, at::kLong);
  const auto sums = call_fp8("score_logits", {logits, ids, other}).toDoubleVector();
  const at::Tensor log_q = at::log_softmax(logits.to(at::kDouble), -1),
                   log_p = at::log_softmax(other.to(at::kDouble), -1);
  const auto nll = [&](const at::Tensor& log) {
    return -log.narrow(1, 0, 4).gather(2, ids.narrow(1, 1, 4).unsqueeze(2)).sum().item<double>();
  };
  EXPECT_NEAR(sums[0], nll(log_q), 1e-5);
  EXPECT_NEAR(sums[1], nll(log_p), 1e-5);
  EXPECT_NEAR(sums[2], (log_p.exp() * (log_p - log_q)).sum().item<double>(), 1e-10);
  EXPECT_EQ(sums[3], logits.argmax(-1).eq(other.argmax(-1)).sum().item<double>());
  EXPECT_EQ(call_fp8("score_logits", {logits, ids}).toDoubleVector(), (std::vector<double>{sums[0], 0, 0, 0}));
  EXPECT_REFUSED(call_fp8("score_logits", {logits[0], ids}), "score_logits", "logits", "[5, 7]");
  EXPECT_REFUSED(call_fp8("score_logits", {logits, ids[0]}), "score_logits", "ids", "Long [2, 5]");
  EXPECT_REFUSED(call_fp8("score_logits", {logits, ids, other[0]}), "score_logits", "reference");
}

TEST(RequireLinears, AreWhatTheListOfWhatStaysSays) {
  const auto require = [](const Words& entries, const Words& in_fp8, const Words& stored) {
    call_fp8("require_linears", {entries, Words{"up", "m.head", "head"}, in_fp8, stored});
  };
  const Words in_file = {"up.weight", "head.weight"};
  EXPECT_NO_THROW(require({"m.head", "re:hea"}, {"up"}, in_file));
  EXPECT_REFUSED(require({"m.head"}, {"up"}, in_file), "save: head: is in high precision", "blocklist");
  EXPECT_REFUSED(require({"re:.*head"}, {"up", "head"}, in_file), "save: head: is in fp8");
  EXPECT_REFUSED(require({"re:.*head"}, {"up"}, {}), "save: up: is in fp8", "shares its weight");
}

using SaveAndLoad = InFolder;

TEST_F(SaveAndLoad, CarryAModelOver) {
  const Model m;
  m.convert(R"({"weights": "channel", "dialect": "ocp"})");
  const at::Tensor x = at::randn({4, 16}, on_hpu()), y = m.forward(x), norm = at::randn({16}, on_hpu(at::kBFloat16));
  const Tensors tensors = {m.a, m.b, norm, norm};
  const Words names = {"layers.0.fc1.weight", "fc2.weight", "norm.weight", "tied.weight"},
              types = {"Linear", "Linear", "RMSNorm", "RMSNorm"};
  call_fp8("save", {tensors, names, types, (folder / "out").string()});
  const io::Checkpoint checkpoint(folder / "out");
  EXPECT_TRUE(checkpoint.contains("norm.weight"));
  EXPECT_FALSE(checkpoint.contains("tied.weight"));
  EXPECT_TRUE(checkpoint.contains("fc2.weight_scale"));
  {  // on another device, only for who says whose codes they are
    const runtime::DeviceKindScope gaudi2(runtime::DeviceKind::gaudi2);
    const Model there;
    const std::string out = (folder / "out").string();
    EXPECT_REFUSED(call_fp8("load", {there.weights(), there.names, there.types, out}), "dialect ocp",
                   "FP8_HPU_DEVICE=gaudi2", "the option dialect");
    EXPECT_REFUSED(call_fp8("load", {there.weights(), there.names, there.types, out, c10::IValue(), std::string("oc")}),
                   "[fp8::load] dialect", "allowed: gaudi2, gaudi3, ocp");
    call_fp8("load", {there.weights(), there.names, there.types, out, c10::IValue(), std::string("ocp")});
  }
  const Model other;
  const auto taken =
      call_fp8("load", {other.weights(), other.names, other.types, (folder / "out").string()}).toListRef().vec();
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_TRUE(same_bits(other.forward(x), y));
  EXPECT_REFUSED(call_fp8("save", {tensors, names, types, (folder / "out").string()}), "out");
  call_fp8("save",
           {tensors, names, types, (folder / "out").string(), std::string("compressed-tensors"), std::string(), true});
}

// A class that nobody knows, or none at all, may be a Linear to whoever reads the file.
TEST_F(SaveAndLoad, WhatStaysIsInTheListOfWhatStays) {
  const Model m;
  m.convert(R"({"weights": "channel", "dialect": "ocp"})");
  const auto matrix = [] { return at::randn({16, 16}, on_hpu(at::kBFloat16)); };
  const at::Tensor head = matrix();
  call_fp8("save", {Tensors{m.a, m.b, head, head, matrix(), matrix(), at::ones({16}, on_hpu())},
                    Words{"layers.0.fc1.weight", "fc2.weight", "lm_head.weight", "tied.weight", "own.weight",
                          "embed.weight", "norm.weight"},
                    Words{"Linear", "Linear", "", "", "MyLinear", "Embedding", ""}, (folder / "out").string()});
  const io::Json ignore = io::read_json(folder / "out" / "config.json")["quantization_config"]["ignore"];
  std::vector<std::string> names;
  for (const std::string entry : ignore) {
    if (!entry.starts_with("re:")) names.push_back(entry);  // the others are these, below any prefix
  }
  EXPECT_EQ(names, Words({"lm_head", "tied", "own"}));
}

TEST_F(SaveAndLoad, NameWhatIsWrong) {
  const Model m;
  const std::string out = (folder / "out").string();
  const Words names = {"a.weight", "b.weight"};
  EXPECT_REFUSED(call_fp8("save", {m.weights(), names, m.types, out, std::string("gguf")}), "fp8::save", "format",
                 "\"gguf\"", "compressed-tensors, inc, inc-vllm, fp8, modelopt");
  EXPECT_REFUSED(call_fp8("save", {m.weights(), Words{"a"}, m.types, out}), "fp8::save", "names", "found 1",
                 "expected 2");
  EXPECT_REFUSED(call_fp8("save", {m.weights(), Words{"a", "a"}, m.types, out}), "fp8::save", "names", "twice");
  EXPECT_REFUSED(call_fp8("save", {m.weights(), names, m.types, std::string()}), "fp8::save", "folder");
  EXPECT_REFUSED(call_fp8("save", {Tensors{m.a, at::ones({2, 2}).to_sparse()}, names, m.types, out}), "fp8::save",
                 "tensors", "b.weight", "dense", "Sparse");
  EXPECT_REFUSED(call_fp8("convert", {Tensors{m.a, at::ones({2, 2}, at::kMeta)}, m.names, m.types}), "fp8::convert",
                 "weights", "fc2", "dense", "meta");
  EXPECT_REFUSED(call_fp8("save", {m.weights(), names, m.types, out}), "converted model");
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_REFUSED(call_fp8("load", {m.weights(), m.names, m.types, out, static_cast<std::int64_t>(at::kInt)}),
                 "fp8::load", "compute", "Int");
  EXPECT_REFUSED(call_fp8("load", {Tensors{}, Words{}, Words{}, out}), "fp8::load", "weights", "none");
  EXPECT_REFUSED(call_fp8("load", {Tensors{at::ones({2, 2})}, Words{"a"}, Words{"Linear"}, out}), "fp8::load", "cpu");
  EXPECT_REFUSED(call_fp8("load", {m.weights(), m.names, m.types, out}), "out");
}

TEST(TorchScript, ConvertsAndRunsInOneFunction) {
  torch::jit::CompilationUnit unit;
  auto& f = compile(unit, R"(
def f(w : Tensor, x : Tensor):
    before = torch.linear(x, w)
    report = fp8.convert([w], ["fc"], ["Linear"])
    after = torch.linear(x, w)
    return (before, after, fp8.scale_inv(w))
)");
  for (int run = 0; run < 3; ++run) {
    const at::Tensor w = at::randn({4, 8}, on_hpu()), x = at::randn({2, 8}, on_hpu()), values = w.cpu();
    const auto result = f({w, x}).toTuple();
    const auto& y = result->elements();
    EXPECT_TRUE(at::allclose(y[0].toTensor().cpu(), at::linear(x.cpu(), values), 1e-5, 1e-5));
    EXPECT_TRUE(same_bits(y[1].toTensor(), at::linear(x, w)));
    EXPECT_FALSE(same_bits(y[1].toTensor(), y[0].toTensor()));
    EXPECT_TRUE(same_bits(y[2].toTensor(), values.abs().amax(1) / 448));
  }
}

// Checkpoints of models that have their weights cut and joined otherwise, as Python calls the operators.

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
