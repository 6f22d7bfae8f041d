// SPDX-License-Identifier: Apache-2.0
// Training by operators, as Python and TorchScript call them: the same bits as the C++ regions give, states through
// files, and regions that are ended in the wrong order, on the wrong thread, or by an exception. Weights that do not
// train: training_operators_in_vain_test.
#include "transformer_engine/convert/training_operators.h"

#include "fp8/runtime/io/base/base64.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "runtime/io/tensors/safetensors_bytes.h"
#include "support/temp_dir.h"
#include "support/values.h"

namespace fp8::test {
namespace {

/// Three steps of plain gradient descent, in fp8 by `step`; all losses and the weights at the end.
template <class Step>
std::vector<at::Tensor> trained(const Model& m, Step step) {
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(10 + i);
    const at::Tensor x = at::randn({8, 16}, on_hpu()), loss = step(x);
    loss.backward();
    seen.push_back(loss.detach());
    const at::NoGradGuard no_grad;
    for (at::Tensor w : m.weights()) w.sub_(w.grad(), 1e-3), w.mutable_grad() = at::Tensor();
  }
  seen.push_back(m.a.detach());
  seen.push_back(m.b.detach());
  return seen;
}

TEST(TrainingOperators, TrainBitForBitAsTheLibraryDoes) {
  for (const char* recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"}) {
    const Model ours, library, plain;
    EXPECT_EQ(ours.attach(recipe)["converted"].size(), 2u);
    const auto got = trained(ours, [&](const at::Tensor& x) {
      const auto region = enter(recipe);
      const at::Tensor loss = ours.forward(x).pow(2).mean();
      leave(region);
      return loss;
    });
    te::convert_for_training({{"up", "Linear", library.a, std::nullopt}, {"down", "Linear", library.b, std::nullopt}},
                             {});
    const auto expected = trained(library, [&](const at::Tensor& x) {
      const te::fp8_autocast region(true, configs::recipe_preset(recipe)->recipe);
      return library.forward(x).pow(2).mean();
    });
    const auto f32 = trained(plain, [&](const at::Tensor& x) { return plain.forward(x).pow(2).mean(); });
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << recipe << " " << i;
    EXPECT_FALSE(same_bits(got[0], f32[0])) << recipe;
    EXPECT_NEAR(got[0].item<float>(), f32[0].item<float>(), 0.05 * f32[0].item<float>()) << recipe;
  }
}

TEST(TrainingOperators, SetTrainingStopsAndStartsTheScales) {
  const Model m;
  m.attach("habana");
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  const auto step = [&](bool training) {
    call_fp8("set_training", {m.weights(), training});
    const auto region = enter("habana");
    m.forward(x).sum().backward();
    leave(region);
    return state(m.a);
  };
  const io::Json first = step(true), evaluated = step(false);
  EXPECT_EQ(first["step"], 1);
  expect_values(evaluated, {{"forward", first["forward"]}, {"step", 1}});
  m.attach("habana");
  EXPECT_EQ(step(false)["step"], 1);
  EXPECT_EQ(step(true)["step"], 2);
  EXPECT_REFUSED(call_fp8("set_training", {Tensors{m.a, x}, false}), "fp8::set_training", "attach_training");
}

TEST(TrainingOperators, OutsideOfARegionAndDetachedNothingChanges) {
  const Model m;
  const at::Tensor x = at::randn({4, 16}, on_hpu()), y = m.forward(x);
  m.attach("current");
  EXPECT_TRUE(same_bits(m.forward(x), y));
  const auto off = enter("", false);
  EXPECT_TRUE(same_bits(m.forward(x), y));
  leave(off);
  const auto on = enter("current");
  EXPECT_FALSE(same_bits(m.forward(x), y));
  const auto hole = enter("", false);
  EXPECT_TRUE(same_bits(m.forward(x), y));
  leave(hole);
  EXPECT_FALSE(same_bits(m.forward(x), y));
  for (const at::Tensor& w : m.weights()) call_fp8("untag", {w});
  EXPECT_TRUE(same_bits(m.forward(x), y));
  leave(on);
}

TEST(TrainingOperators, RulesOfARecipeKeepModules) {
  const Model m;
  const io::Json report = m.attach(R"({"recipe": "current", "modules": [{"match": "down", "keep": "bf16"}]})");
  EXPECT_EQ(report["converted"].size(), 1u);
  EXPECT_EQ(report["skipped"][0]["name"], "down");
  EXPECT_EQ(call_fp8("tag_of", {m.b}).toStringRef(), "null");
  EXPECT_REFUSED(m.attach("nvidai"), "habana, habana-hybrid, nvidia, current, block, mxfp8", "'nvidia'");
  EXPECT_REFUSED(m.attach(R"({"margin": 99})"), "fp8::attach_training", "margin", "99");
  EXPECT_REFUSED(call_fp8("attach_training", {m.weights(), Words{"a"}, kTypes}), "fp8::attach_training", "modules",
                 "found 1");
  EXPECT_REFUSED(call_fp8("attach_training", {Tensors{at::ones({16, 16})}, Words{"a"}, Words{"Linear"}}), "'a'", "cpu");
}

TEST(TrainingOperators, RegionsEndInnermostFirstOnTheirThread) {
  settle();
  const auto outer = enter("current"), inner = enter();
  EXPECT_REFUSED(leave(outer), "fp8::exit_autocast", "region", std::to_string(outer), "innermost");
  std::string elsewhere;
  std::thread([&] { elsewhere = error_of([&] { leave(inner); }); }).join();
  EXPECT_THAT(elsewhere, HasSubstr("another thread"));
  leave(inner);
  EXPECT_REFUSED(leave(inner), "region", "found " + std::to_string(inner), "open are " + std::to_string(outer));
  leave(outer);
  EXPECT_FALSE(te::is_fp8_enabled());
  EXPECT_REFUSED(leave(outer), "region", "open are none");
  EXPECT_REFUSED(call_fp8("enter_autocast", {std::string(), true, false, c10::IValue(), -1}), "seed", "found -1");
  EXPECT_REFUSED(call_fp8("enter_autocast", {std::string(), true, false, c10::IValue(), 0, std::string("nobody")}),
                 "found 'nobody'", "group_name");
  EXPECT_REFUSED(enter("curent"), "'curent'", "'current'");
  EXPECT_FALSE(te::is_fp8_enabled());
}

TEST(TrainingOperators, WhatAnErrorSaysIsTheMessageAlone) {
  try {  // error_of would cut a backtrace off
    call_fp8("enter_autocast", {std::string("habana"), true, false, c10::IValue(), -1});
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_STREQ(error.what(), "[fp8::enter_autocast] seed: found -1, allowed: 0 to 2^63 - 1");
  }
}

TEST(TrainingOperators, CodesOfInferenceModeServeTrainingToo) {
  for (const char* recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"})
    for (const bool microbatches : {false, true}) {
      const Model m, plain;
      m.attach(recipe);
      plain.attach(recipe);
      const auto region = [&](bool first) {
        const c10::IValue is_first = microbatches ? c10::IValue(first) : c10::IValue();
        return call_fp8("enter_autocast", {std::string(recipe), true, false, is_first}).toInt();
      };
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = at::randn({32, 16}, on_hpu());
        const auto evaluate = [&](const Model& each) {
          const auto r = region(true);
          each.forward(x);
          leave(r);
        };
        test::within(c10::InferenceMode(), [&] { evaluate(m); });
        {
          const at::NoGradGuard no_grad;  // what it computes is the same
          evaluate(plain);
        }
        for (const Model* each : {&m, &plain}) {
          const auto r = region(false);
          const at::Tensor y = each->forward(x);
          leave(r);
          y.pow(2).mean().backward();
        }
        EXPECT_TRUE(same_bits(m.a.grad(), plain.a.grad())) << recipe << " " << microbatches << " " << step;
        EXPECT_TRUE(same_bits(m.b.grad(), plain.b.grad())) << recipe << " " << microbatches << " " << step;
      }
    }
}

TEST(TrainingOperators, WhatIsNoWholeParameterIsRefused) {
  const at::Tensor flat = at::randn({1024}, on_hpu()).requires_grad_(true);
  const auto attach = [](const at::Tensor& w) {
    call_fp8("attach_training", {Tensors{w}, Words{"up"}, Words{"Linear"}});
  };
  EXPECT_REFUSED(attach(at::empty({0}, on_hpu())), "'up'", "with elements", "[0]");
  EXPECT_REFUSED(attach(flat), "'up'", "two dimensions", "[1024]");
  EXPECT_REFUSED(attach(flat.slice(0, 0, 512).view({16, 32})), "'up'", "computed from others", "a view");
}

TEST(TrainingOperators, ForwardModeTangentsAreRefused) {
  const Model m, quantized;
  m.attach("current");
  call_fp8("convert", {quantized.weights(), kNames, kTypes, std::string("{}")});
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const at::Tensor x = at::ones({4, 16}, on_hpu());
    const at::Tensor dual = at::_make_dual(x, at::ones_like(x), static_cast<std::int64_t>(level));
    EXPECT_TRUE(m.forward(dual)._fw_grad(level).defined()) << "outside of fp8 it goes on";
    const auto region = enter("current");
    EXPECT_REFUSED(m.forward(dual), "'up'", "no forward-mode derivative");
    const at::NoGradGuard no_grad;  // says nothing of forward mode
    EXPECT_REFUSED(m.forward(dual), "'up'", "no forward-mode derivative");
    leave(region);
    EXPECT_REFUSED(quantized.forward(dual), "'up'", "no forward-mode derivative");
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST(TrainingOperators, AFailedRegionMovesNoScale) {
  const Model m;
  m.attach("nvidia");
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  const auto run = [&](bool failed) {
    const auto region = enter("nvidia");
    m.forward(x);
    leave(region, failed);
    return state(m.a)["forward"]["scale"][0].get<float>();
  };
  EXPECT_EQ(run(true), 1.0f);
  EXPECT_FALSE(te::is_fp8_enabled());
  EXPECT_FLOAT_EQ(run(false), 448 / x.cpu().abs().max().item<float>());  // HYBRID: E4M3 forward, margin 0
}

TEST(TrainingOperators, StatesGoThroughFiles) {
  const Model m;
  const TempDir dir;
  m.attach("nvidia");
  const auto step = [](const Model& model, const at::Tensor& x) {
    const auto region = enter("nvidia");
    const at::Tensor loss = model.forward(x).pow(2).mean();
    leave(region);
    loss.backward();
    return loss;
  };
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  for (int i = 0; i < 3; ++i) step(m, x * (i + 1));
  EXPECT_EQ(state(m.a)["step"], 3);
  EXPECT_EQ(state(m.a)["name"], "up");
  EXPECT_EQ(state(m.a)["amax_seen"][0].get<float>(), (x * 3).cpu().abs().max().item<float>());
  call_fp8("save_training_state", {m.weights(), (dir / "state").string()});
  const Model other;
  other.attach("nvidia");
  const io::Json nothing = {{"missing", io::Json::array()}, {"unexpected", io::Json::array()}};
  EXPECT_EQ(json_of(call_fp8("load_training_state", {other.weights(), (dir / "state").string()})), nothing);
  EXPECT_EQ(state(other.a), state(m.a));
  EXPECT_TRUE(same_bits(step(other, x), step(m, x)));
  EXPECT_EQ(json_of(call_fp8("load_training_state", {Tensors{other.a}, (dir / "state").string()}))["unexpected"],
            io::Json({"down"}));
  EXPECT_REFUSED(call_fp8("save_training_state", {m.weights(), std::string()}), "fp8::save_training_state", "folder");
  EXPECT_REFUSED(call_fp8("load_training_state", {Tensors{x}, dir.path().string()}), "fp8::load_training_state",
                 "untagged");
  EXPECT_REFUSED(call_fp8("load_training_state", {m.weights(), (dir / "none").string()}), "fp8_state.json");
  EXPECT_REFUSED(call_fp8("training_state", {x}), "fp8::training_state", "untagged");
}

at::Tensor bytes_of(const std::string& text) {
  return at::tensor(at::ArrayRef(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()), at::kByte);
}

TEST(TrainingOperators, AStateIsBytesWhateverItsName) {
  for (const char* recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"}) {
    const Model m, other;
    m.attach(recipe), other.attach(recipe);
    const auto step = [&](const at::Tensor& w, const at::Tensor& x) {
      const auto region = enter(recipe);
      const at::Tensor loss = at::linear(x, w).pow(2).mean();
      leave(region);
      loss.backward();
      return loss.detach();
    };
    const at::Tensor x = at::randn({4, 16}, on_hpu());
    for (int i = 0; i < 3; ++i) step(m.a, x * (i + 1));
    const at::Tensor bytes = call_fp8("training_state_bytes", {m.a}).toTensor();
    const std::string text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
    call_fp8("set_training_state_bytes", {other.a, bytes_of(text + "  \n")});
    EXPECT_EQ(state(other.a), state(m.a)) << recipe;
    call_fp8("set_training_state_bytes", {other.a, bytes_of(R"({"version": 1, "state": null, "tensors": ""})")});
    EXPECT_EQ(state(other.a), state(m.a));
    EXPECT_TRUE(same_bits(step(other.a, x), step(m.a, x))) << recipe;
    call_fp8("set_training_state_bytes", {other.b, bytes});  // of another name and other sizes: its scales begin so
    EXPECT_EQ(state(other.b)["name"], "down");
    EXPECT_EQ(state(other.b)["step"], 3);
  }
}

TEST(LinearOperator, HasTheBitsOfTheMarkedWeight) {
  for (const char* recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"}) {
    const Model marked, own;
    marked.attach(recipe);
    const auto a = c10::make_intrusive<te::State>("up", "", false),
               b = c10::make_intrusive<te::State>("down", "", true);
    const auto region = [&](const auto& forward) {
      const auto r = enter(recipe);
      const at::Tensor loss = forward().pow(2).mean();
      leave(r);
      return loss;
    };
    const auto linear = [](const at::Tensor& x, const at::Tensor& w, const c10::intrusive_ptr<te::State>& s) {
      return call_fp8("linear", {x, w, c10::IValue(), s}).toTensor();
    };
    const auto expected =
        trained(marked, [&](const at::Tensor& x) { return region([&] { return marked.forward(x); }); });
    const auto found = trained(own, [&](const at::Tensor& x) {
      return region([&] { return linear(at::relu(linear(x, own.a, a)), own.b, b); });
    });
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i])) << recipe << i;
    EXPECT_EQ(io::parse_json(a->values(), "state"), state(marked.a)) << recipe;
    const at::Tensor x = at::randn({8, 16}, on_hpu());
    EXPECT_TRUE(same_bits(linear(x, own.a, a), at::linear(x, own.a))) << "outside of a region";
    EXPECT_EQ(linear(at::ones({2, 16}, at::kMeta), at::ones({32, 16}, at::kMeta), a).sizes(), at::IntArrayRef({2, 32}));
  }
}

TEST(TrainingOperators, BytesThatAreNoStateAreRefused) {
  const Model m;
  m.attach("habana-hybrid");
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  const auto region = enter("habana-hybrid");
  m.forward(x);
  leave(region);
  const at::Tensor bytes = call_fp8("training_state_bytes", {m.a}).toTensor();
  const std::string text(static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel()));
  const io::Json before = state(m.a);
  const auto set = [&](const std::string& other) { call_fp8("set_training_state_bytes", {m.a, bytes_of(other)}); };
  const auto with = [&](const char* key, const io::Json& value) {
    io::Json json = io::parse_json(text, "state");
    json[key] = value;
    return json.dump();
  };
  for (std::size_t size = 0; size < text.size(); ++size) EXPECT_ANY_THROW(set(text.substr(0, size))) << size;
  for (std::size_t i = 0; i < text.size(); ++i) {  // one that is still a state is taken over
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ (1 << (i % 8)));
    try {
      set(other);
    } catch (const std::exception&) {
    }
  }
  set(text);
  EXPECT_REFUSED(set(with("version", 2)), "fp8 training state", "version: found 2, allowed: 1");
  EXPECT_REFUSED(set(with("more", 1)), "fp8 training state", "with state and tensors");
  EXPECT_REFUSED(set("[]"), "fp8 training state", "found []");
  EXPECT_REFUSED(set(with("tensors", "AAA")), "key 'tensors': expected base64");
  EXPECT_REFUSED(set(with("tensors", io::to_base64(std::string(8, '\xff')))), "fp8 training state", "header of");
  const std::string header =
      R"({"amax_seen":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})";
  EXPECT_REFUSED(set(with("tensors", io::to_base64(io::safetensors_bytes(header)))), "amax_seen", "cut short?");
  EXPECT_REFUSED(set(std::string(100'000, '[')), "fp8 training state");
  EXPECT_REFUSED(call_fp8("set_training_state_bytes", {m.a, x}), "fp8::set_training_state_bytes", "Byte");
  EXPECT_REFUSED(call_fp8("set_training_state_bytes", {x, bytes}), "fp8::set_training_state_bytes", "untagged");
  EXPECT_REFUSED(call_fp8("training_state_bytes", {x}), "fp8::training_state_bytes", "untagged");
  EXPECT_EQ(state(m.a), before);
}

TEST(TrainingOperators, AmaxesBecomeAMeasurementThatConvertAndTrainingRead) {
  const Model m;
  const TempDir dir;
  m.attach("habana");
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  const auto region = enter("habana");
  m.forward(x);
  leave(region);
  EXPECT_EQ(call_fp8("export_amax", {m.weights(), kNames, kTypes, (dir / "p").string()}).toListRef().size(), 3u);
  EXPECT_EQ(measure::read_measurements((dir / "p").string()).find("up")->inputs[0][0],
            x.cpu().abs().max().item<float>());
  const Model warm;
  EXPECT_EQ(warm.attach("nvidia", dir.path().string())["warnings"], io::Json::array());
  EXPECT_FLOAT_EQ(state(warm.a)["forward"]["scale"][0].get<float>(), 448 / x.cpu().abs().max().item<float>());
  for (const at::Tensor& w : m.weights()) call_fp8("untag", {w});
  call_fp8("convert", {m.weights(), kNames, kTypes, R"({"measurements": ")" + dir.path().string() + "\"}"});
  EXPECT_EQ(json_of(call_fp8("scheme_of", {m.a}))["input_scale_inv"].get<float>(),
            x.cpu().abs().max().item<float>() / 448);
  EXPECT_REFUSED(call_fp8("export_amax", {warm.weights(), kNames, kTypes, std::string()}), "fp8::export_amax",
                 "prefix");
  EXPECT_REFUSED(call_fp8("export_amax", {m.weights(), kNames, kTypes, (dir / "q").string()}), "fp8::export_amax",
                 "E4M3");
}

TEST(TrainingOperators, TorchScriptKeepsTheRegionAroundTheProduct) {
  torch::jit::CompilationUnit unit;
  auto& f = compile(unit, R"(
def f(w : Tensor, x : Tensor):
    before = torch.linear(x, w)
    region = fp8.enter_autocast("current")
    inside = torch.linear(x, w)
    fp8.exit_autocast(region)
    after = torch.linear(x, w)
    return (before, inside, after)
)");
  const Model m;
  m.attach("current");
  const at::Tensor x = at::randn({4, 16}, on_hpu()), plain = at::linear(x, m.a);
  const auto region = enter("current");
  const at::Tensor fp8 = at::linear(x, m.a);
  leave(region);
  for (int run = 0; run < 3; ++run) {
    const auto result = f({m.a, x}).toTuple();
    const auto& y = result->elements();
    EXPECT_TRUE(same_bits(y[0].toTensor(), plain));
    EXPECT_TRUE(same_bits(y[1].toTensor(), fp8));
    EXPECT_TRUE(same_bits(y[2].toTensor(), plain));
    EXPECT_FALSE(te::is_fp8_enabled());
  }
  EXPECT_FALSE(same_bits(fp8, plain));
}

}  // namespace
}  // namespace fp8::test
