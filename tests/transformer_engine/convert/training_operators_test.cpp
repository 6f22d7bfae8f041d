// SPDX-License-Identifier: Apache-2.0
// Training by operators, as Python and TorchScript call them: the same bits as the C++ regions give, states through
// files, and regions that are ended in the wrong order, on the wrong thread, or by an exception.
#include "fp8/measure/files/measurement_file.h"
#include "fp8/runtime/io/base/base64.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "runtime/io/tensors/safetensors_bytes.h"
#include "support/hpu_test.h"
#include "support/operator_call.h"
#include "support/temp_dir.h"

namespace fp8::test {
namespace {

const Words kNames = {"up", "down"}, kTypes = {"Linear", "Linear"};

struct Model {
  at::Tensor a, b;
  explicit Model(std::uint64_t seed = 1) {
    torch::manual_seed(seed);
    a = at::randn({32, 16}, on_hpu()).requires_grad_(true);
    b = at::randn({16, 32}, on_hpu()).requires_grad_(true);
  }
  Tensors weights() const { return {a, b}; }
  at::Tensor forward(const at::Tensor& x) const { return at::linear(at::relu(at::linear(x, a)), b); }
  io::Json attach(const std::string& recipe = "habana", const std::string& warm = "") const {
    return json_of(call_fp8("attach_training", {weights(), kNames, kTypes, recipe, warm}));
  }
};

std::int64_t enter(const std::string& recipe = "", bool enabled = true) {
  return call_fp8("enter_autocast", {recipe, enabled}).toInt();
}
void leave(std::int64_t region, bool failed = false) { call_fp8("exit_autocast", {region, failed}); }
/// Earlier tests' models are gone, which is told once.
void settle() {
  const auto region = enter("nvidia");
  test::error_of<c10::Error>([&] { leave(region); });
}
io::Json state(const at::Tensor& w) { return json_of(call_fp8("training_state", {w})); }

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
  EXPECT_EQ(evaluated["forward"], first["forward"]);
  EXPECT_EQ(evaluated["step"], 1);
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
  EXPECT_NE(elsewhere.find("another thread"), std::string::npos) << elsewhere;
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

// What an engine that shards a model from Python leaves: other tensors in the modules, which nobody here knows.
TEST(TrainingOperators, WeightsThatAreGoneEndTheRegionThatDidNotRunThem) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu()), other = at::randn({16, 16}, on_hpu());
  {
    const Model m;
    m.attach("nvidia");
  }
  const auto none_ran = enter("nvidia");
  at::linear(x, other);
  EXPECT_REFUSED(leave(none_ran), "'up', 'down'", "no product ran in fp8", "call fp8::attach_training after that");
  EXPECT_FALSE(te::is_fp8_enabled());
  leave(enter("nvidia"));  // told once

  Model m;
  m.attach("nvidia");
  m.b = at::Tensor();
  const auto one_ran = enter("nvidia");
  at::linear(x, m.a);
  EXPECT_REFUSED(leave(one_ran), "'down'", "no product ran in fp8");
}

TEST(TrainingOperators, AModelThatWasDroppedIsNotMissed) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  {
    const Model dropped;
    dropped.attach("nvidia");
  }
  const Model m;
  m.attach("nvidia");
  const auto region = enter("nvidia");
  at::linear(x, m.a);
  EXPECT_NO_THROW(leave(region));
}

/// A step of plain gradient descent on y = f(weights), in a region.
template <class F>
void descend(const Model& m, const std::string& recipe, F f) {
  const auto region = enter(recipe);
  at::Tensor y;
  try {
    y = f();
  } catch (...) {
    leave(region, /*failed=*/true);
    throw;
  }
  leave(region);
  y.to(at::kFloat).pow(2).mean().backward();
  const at::NoGradGuard no_grad;
  for (at::Tensor w : m.weights()) {
    if (w.grad().defined()) w.sub_(w.grad(), 0.1), w.mutable_grad() = at::Tensor();
  }
}

/// The step that throws, from 1; 0: none of five.
template <class F>
std::pair<int, std::string> first_refused(const Model& m, const std::string& recipe, F f) {
  for (int step = 1; step <= 5; ++step) {
    const std::string error = error_of([&] { descend(m, recipe, f); });
    if (!error.empty()) return {step, error};
  }
  return {0, ""};
}

/// Takes the derivatives of a product to its own hands, as fused kernels of others do; in forward without forward mode,
/// as Python's functions are.
struct ByHand : torch::autograd::Function<ByHand> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    const c10::AutoFwGradMode as_python(false);
    return at::linear(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list g) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dx = context->needs_input_grad(0) ? at::matmul(g[0], saved[1]) : at::Tensor();
    return {dx, at::matmul(g[0].t(), saved[0])};
  }
};

TEST(TrainingOperators, CodesOfInferenceModeServeTrainingToo) {
  for (const char* recipe : {"habana", "habana-hybrid", "nvidia", "current", "block", "mxfp8"}) {
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
}

TEST(TrainingOperators, ABackwardByHandIsRefusedByName) {
  for (const char* recipe : {"habana-hybrid", "nvidia", "current", "mxfp8"}) {
    const Model m;
    m.attach(recipe);
    const at::Tensor x = at::randn({4, 16}, on_hpu());
    const auto [step, error] =
        first_refused(m, recipe, [&] { return ByHand::apply(at::relu(at::linear(x, m.a)), m.b); });
    EXPECT_EQ(step, 1) << recipe;
    EXPECT_NE(error.find("'down': its forward ran in fp8 inside of an autograd.Function"), std::string::npos) << error;
    EXPECT_NO_THROW(ByHand::apply(at::relu(at::linear(x, m.a)), m.b).sum().backward()) << "outside of fp8";
  }
}

TEST(TrainingOperators, WeightsThatAreSteppedAndDoNotTrainEndTheRegion) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  for (const char* recipe : {"nvidia", "current"}) {
    const Model by_hand, by_cast, plain;
    for (const Model* m : {&by_hand, &by_cast, &plain}) m->attach(recipe);
    const auto [hand, why] = first_refused(by_hand, recipe, [&] { return ByHand::apply(x, by_hand.a); });
    EXPECT_EQ(hand, 3) << recipe;
    EXPECT_NE(why.find("'up': converted for fp8 training, and their weights change"), std::string::npos) << why;
    const auto [cast, how] = first_refused(by_cast, recipe, [&] {
      return at::linear(at::relu(at::linear(x, by_cast.a)).to(at::kBFloat16), by_cast.b.to(at::kBFloat16));
    });
    EXPECT_EQ(cast, 3) << recipe;
    EXPECT_NE(how.find("'down': converted"), std::string::npos) << how;
    EXPECT_EQ(how.find("'up'"), std::string::npos) << how;
    EXPECT_EQ(first_refused(plain, recipe, [&] { return plain.forward(x); }).first, 0) << recipe;
  }
}

TEST(TrainingOperators, EvaluationWithScalesThatNeverMovedIsRefused) {
  settle();
  const at::Tensor x = at::randn({4, 16}, on_hpu());
  for (const auto& [recipe, changes, refused] : std::vector<std::tuple<std::string, int, bool>>{
           {"nvidia", 3, true}, {"nvidia", 1, false}, {"current", 3, false}}) {
    const Model m;
    m.attach(recipe);
    std::string error;
    const at::NoGradGuard no_grad;
    for (int i = 0; i <= 3; ++i) {
      const auto region = enter(recipe);
      m.forward(x);
      error += error_of([&, &region = region] { leave(region); });
      if (i < changes) at::Tensor(m.a).mul_(1.01);
    }
    EXPECT_EQ(error.find("'up': converted for fp8 training, and their weights change") != std::string::npos, refused)
        << recipe << changes << error;
  }
}

TEST(TrainingOperators, TwoRegionsInVainAreAnError) {
  settle();
  const Model m;
  m.attach("nvidia");
  const at::Tensor x = at::randn({4, 16}, on_hpu()), other = at::randn({16, 16}, on_hpu());
  const auto in_vain = [&] {
    const auto region = enter("nvidia");
    at::linear(x, other);
    leave(region);
  };
  {
    const at::NoGradGuard evaluation;
    in_vain();
    in_vain();
  }
  in_vain();
  EXPECT_TRUE(throws_with({"'up', 'down'", "two regions", "fp8::attach_training after it"}, in_vain));
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
