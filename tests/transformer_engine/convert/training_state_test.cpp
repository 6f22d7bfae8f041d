// SPDX-License-Identifier: Apache-2.0
// What fp8 training remembers, saved and loaded bit for bit: scales and histories, and parameters that are held in fp8.
// What it counts and keeps in memory: training_state_memory_test.
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/temp_dir.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::DelayedScaling;

DelayedScaling every_second_step() {
  DelayedScaling d = habana_hybrid(2);
  d.interval = 2;
  return d;
}

void set_values(const torch::nn::Module& model, const std::vector<at::Tensor>& values) {
  const torch::NoGradGuard no_grad;
  auto parameters = model.parameters();
  for (std::size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

std::vector<float> sgd(const Task& task, const HPUPrecisionPlugin& plugin, int steps) {
  torch::optim::SGD optimizer(task.model->parameters(), 0.05);
  return train(task, plugin, optimizer, steps);
}

TEST(ExtraState, ResumedTrainingIsBitEqual) {
  for (const DelayedScaling& recipe :
       {habana_hybrid(1), habana_hybrid(3), every_second_step(), DelayedScaling::habana(), nvidia(1), nvidia(4)}) {
    const TempDir dir;
    const Task through = mlp_task(), first = mlp_task(), second = mlp_task(/*seed=*/9);
    const auto whole = sgd(through, converted(through, recipe), 7);
    sgd(first, converted(first, recipe), 3);
    save_extra_state(*first.model, dir.path());
    set_values(*second.model, values_of(*first.model));
    const HPUPrecisionPlugin plugin = converted(second, recipe);
    const auto report = load_extra_state(*second.model, dir.path());
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    const Task resumed{second.model, second.forward, first.x, first.labels};
    EXPECT_EQ(sgd(resumed, plugin, 4), std::vector<float>(whole.begin() + 3, whole.end())) << recipes::describe(recipe);
    EXPECT_TRUE(all_same(values_of(*second.model), values_of(*through.model))) << recipes::describe(recipe);
    EXPECT_TRUE(same_state(*second.model, *through.model)) << recipes::describe(recipe);
  }
}

// With algorithm max, rows of zeros change nothing.
TEST(ExtraState, GoesIntoAnotherHistoryLength) {
  for (const bool is_nvidia : {false, true}) {
    const auto recipe = [&](int history) { return is_nvidia ? nvidia(history) : habana_hybrid(history); };
    const Task task = mlp_task(), longer = mlp_task(), shorter = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, recipe(3));
    sgd(task, plugin, 3);
    const ExtraState state = get_extra_state(*task.model);
    for (const Task* other : {&longer, &shorter}) set_values(*other->model, values_of(*task.model));
    const HPUPrecisionPlugin five = converted(longer, recipe(5)), one = converted(shorter, recipe(1));
    set_extra_state(*longer.model, state);
    set_extra_state(*shorter.model, state);
    EXPECT_EQ(sgd(longer, five, 1), sgd(task, plugin, 1));
    sgd(shorter, one, 1);
    for (const auto& [name, s] : fp8_states(*longer.model)) EXPECT_EQ(s->values().forward.history(), 5) << name;
    for (const auto& [name, s] : fp8_states(*shorter.model)) EXPECT_EQ(s->values().backward.history(), 1) << name;
  }
}

TEST(ExtraState, SaysWhatIsMissingAndRefusesWhatIsWrong) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, habana_hybrid(2));
  sgd(task, plugin, 2);
  const ExtraState good = get_extra_state(*task.model);
  ExtraState part = good;
  part.json["states"].erase("fc2");
  part.json["states"]["other"] = part.json["states"]["fc1"];
  const auto report = set_extra_state(*task.model, part);
  EXPECT_EQ(report.missing, std::vector<std::string>{"fc2"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"other"});

  const auto refused = [&](const std::vector<std::string>& words, const std::function<void(ExtraState&)>& spoil) {
    ExtraState bad = good;
    spoil(bad);
    return throws_with(words, [&] { set_extra_state(*task.model, bad); });
  };
  EXPECT_TRUE(refused({"version", "2"}, [](ExtraState& s) { s.json["version"] = 2; }));
  EXPECT_TRUE(refused({"'fc1'", "forward.scale"}, [](ExtraState& s) {
    s.tensors.erase("fc1.forward.scale"), s.tensors["fc1.forward.scale"] = torch::ones({2}, at::kDouble);
  }));
  EXPECT_TRUE(
      refused({"'fc1'", "forward_index", "7"}, [](ExtraState& s) { s.json["states"]["fc1"]["forward_index"] = 7; }));
  EXPECT_TRUE(refused({"'fc1'", "step"}, [](ExtraState& s) { s.json["states"]["fc1"]["step"] = -1; }));
  EXPECT_TRUE(
      refused({"'fc1'", "scale"}, [](ExtraState& s) { s.tensors["fc1.forward.scale"] = torch::tensor({1.0f, 0.0f}); }));
  EXPECT_TRUE(refused({"'fc1'", "2 forward", "3"}, [](ExtraState& s) {
    s.tensors["fc1.forward.scale"] = torch::ones({3});
    s.tensors["fc1.forward.amax_history"] = torch::ones({2, 3});
  }));
  // The second set of scales must fit the first, or a pass would read past its end.
  EXPECT_TRUE(refused({"'fc1'", "hybrid", "2 tensors"}, [](ExtraState& s) {
    s.tensors["fc1.hybrid.scale"] = torch::ones({1});
    s.tensors["fc1.hybrid.amax_history"] = torch::ones({2, 1});
  }));
  EXPECT_TRUE(refused({"'fc1'", "hybrid"}, [](ExtraState& s) { s.tensors.erase("fc1.hybrid.scale"); }));
  EXPECT_TRUE(refused({"'fc1'", "hybrid"}, [](ExtraState& s) {
    s.json["states"]["fc1"]["hybrid_index"] = 1 - s.json["states"]["fc1"]["hybrid_index"].get<int>();
  }));
  EXPECT_TRUE(
      refused({"'fc1'", "amax_seen"}, [](ExtraState& s) { s.tensors["fc1.amax_seen"] = torch::tensor({1.0f, NAN}); }));
  set_extra_state(*task.model, good);
  EXPECT_EQ(get_extra_state(*task.model).json, good.json);
}

TEST(ExtraState, TravelsInAModulesArchive) {
  torch::manual_seed(2);
  Linear layer(16, 24), again(16, 24), fresh(16, 24);
  const at::Tensor x = torch::randn({8, 16}, on_hpu());
  const auto step = [&](Linear& l) {
    const fp8_autocast region(true, habana_hybrid(3));
    at::Tensor y = l(x);
    y.square().sum().backward();
    return y.detach();
  };
  for (int i = 0; i < 3; ++i) step(layer);
  std::stringstream bytes;
  torch::save(layer, bytes);
  torch::load(again, bytes);
  EXPECT_TRUE(same_bits(step(again), step(layer)));
  EXPECT_TRUE(same_bits(step(again), step(layer)));

  torch::nn::Linear plain(16, 24);  // an archive without fp8 state: weights are taken, scales stay
  std::stringstream plain_bytes;
  torch::save(plain, plain_bytes);
  torch::load(fresh, plain_bytes);
  EXPECT_EQ(fresh->fp8_states()[0]->values().step, 0);
  EXPECT_TRUE(same_bits(fresh->weight.cpu(), plain->weight));
}

// Other libraries' state is a tensor of bytes: a pickle of any protocol, a zip of one, or empty where there is nothing
// to store.
TEST(ExtraState, OfOtherLibrariesIsRefusedUnlessItIsEmpty) {
  Linear layer(16, 24);
  const auto load = [&](const std::vector<std::uint8_t>& state) {
    torch::serialize::OutputArchive archive;
    torch::nn::Linear(16, 24)->save(archive);
    archive.write("_extra_state", torch::tensor(state, at::kByte), /*is_buffer=*/true);
    std::stringstream bytes;
    archive.save_to(bytes);
    torch::serialize::InputArchive input;
    input.load_from(bytes);
    layer->load(input);
  };
  for (const std::vector<std::uint8_t>& state :
       {std::vector<std::uint8_t>{0x80, 4, 0x95}, {'P', 'K', 3, 4}, {'(', 'd', 'p', '0'}})
    EXPECT_REFUSED(load(state), "'linear'", std::to_string(state.size()) + " bytes of another library's extra state",
                   "pickle");
  EXPECT_NO_THROW(load({}));

  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, habana_hybrid(2));
  backward_step(task, plugin);
  ExtraState state = get_extra_state(*task.model);
  state.tensors["fc1._extra_state"] = torch::zeros({7}, at::kByte);
  EXPECT_REFUSED(set_extra_state(*task.model, state), "fc1._extra_state", "7 bytes of another library's");
  state.tensors["fc1._extra_state"] = torch::zeros({0}, at::kByte);
  EXPECT_NO_THROW(set_extra_state(*task.model, state));
}

TEST(ExtraState, MayBeLoadedBetweenForwardAndBackward) {
  for (const auto& recipe : Recipes{habana_hybrid(3), nvidia(3)}) {
    const Task task = mlp_task();
    const HPUPrecisionPlugin plugin = converted(task, recipe);
    const ExtraState fresh = get_extra_state(*task.model);  // of no recipe yet: no scales
    backward_step(task, plugin);
    const at::Tensor loss = test::within(plugin.forward_context(), [&] { return loss_of(task, task.forward(task.x)); });
    set_extra_state(*task.model, fresh);
    loss.backward();
    for (const at::Tensor& g : gradients_of(*task.model)) EXPECT_TRUE(g.isfinite().all().item<bool>());
    backward_step(task, plugin);
    for (const auto& [name, state] : fp8_states(*task.model)) EXPECT_EQ(state->values().step, 1) << name;
  }
}

// States of before this key was written.
TEST(ExtraState, GoesOnWithoutTheForwardStep) {
  const Task task = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, every_second_step());
  for (int i = 0; i < 3; ++i) backward_step(task, plugin);
  ExtraState old = get_extra_state(*task.model);
  for (auto& state : old.json["states"]) EXPECT_EQ(state.erase("forward_step"), 1u);
  const Task resumed = mlp_task();
  converted(resumed, every_second_step());
  EXPECT_TRUE(set_extra_state(*resumed.model, old).missing.empty());
  for (const Task* t : {&task, &resumed}) backward_step(*t, plugin);
  EXPECT_TRUE(same_state(*task.model, *resumed.model));
  old.json["states"]["fc1"]["forward_step"] = -1;
  EXPECT_REFUSED(set_extra_state(*resumed.model, old), "fc1", "forward_step", "found -1");
}

// ---- parameters in fp8

/// A model held in fp8 with what it takes to train it.
struct HeldInFp8 {
  Linear up{nullptr}, down{nullptr};
  torch::nn::Sequential model;
  explicit HeldInFp8(bool master) {
    {
      const quantized_model_init init({.recipe = recipes::CurrentScaling{}, .keep_master = master});
      up = Linear(16, 48);
      down = Linear(48, 8);
    }
    model->push_back(up);
    model->push_back(down);
  }
  float step(runtime::optim::FusedAdamW& optimizer, const at::Tensor& x) {
    optimizer.zero_grad();
    const at::Tensor loss =
        test::within(fp8_autocast(true, nvidia(2)), [&] { return model->forward(x).square().mean(); });
    loss.backward();
    optimizer.step();
    return loss.item<float>();
  }
};

// Codes, scale, number of assignments (the seed of the next rounding) and the kept copy.
TEST(QuantizedModelInit, ResumesBitForBit) {
  for (const bool master : {false, true})
    for (const bool archive : {false, true}) {
      torch::manual_seed(3);
      HeldInFp8 through(master), resumed(master);
      const at::Tensor x = torch::randn({32, 16}, on_hpu());
      const auto options =
          runtime::optim::FusedAdamWOptions(1e-2).betas({0.0, 0.0});  // no moments: only the parameters' state counts
      runtime::optim::FusedAdamW a(through.model->parameters(), options), b(resumed.model->parameters(), options);
      for (int i = 0; i < 3; ++i) through.step(a, x);
      if (archive) {
        std::stringstream bytes;
        torch::save(through.model, bytes);
        torch::load(resumed.model, bytes);
      } else {
        const TempDir dir;
        save_extra_state(*through.model, dir.path());
        set_values(*resumed.model, values_of(*through.model));
        const auto report = load_extra_state(*resumed.model, dir.path());
        EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      }
      const auto values = [](const HeldInFp8& held) { return fp8_weight(held.up->weight)->values().clone(); };
      EXPECT_TRUE(same_bits(values(resumed), values(through)));
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(resumed.step(b, x), through.step(a, x))
            << "master " << master << ", archive " << archive << ", step " << i;
        EXPECT_TRUE(same_bits(values(resumed), values(through)))
            << "master " << master << ", archive " << archive << ", step " << i;
      }
      EXPECT_TRUE(all_same(values_of(*resumed.model), values_of(*through.model)));
    }
  HeldInFp8 held(true);
  ExtraState state = get_extra_state(*held.model);
  const auto refused = [&](const std::vector<std::string>& words, const std::function<void(ExtraState&)>& spoil) {
    ExtraState bad = state;
    spoil(bad);
    return throws_with(words, [&] { set_extra_state(*held.model, bad); });
  };
  EXPECT_TRUE(
      refused({"'0.weight' is held in fp8", "no scale"}, [](ExtraState& s) { s.json["weights"].erase("0.weight"); }));
  EXPECT_TRUE(refused({"'0.weight' is held in fp8", "no scale"}, [](ExtraState& s) { s.json.erase("weights"); }));
  EXPECT_TRUE(refused({"'weights'", "object"}, [](ExtraState& s) { s.json["weights"] = 3; }));
  EXPECT_TRUE(refused({"'0.weight'", "scale_inv", "\"x\""},
                      [](ExtraState& s) { s.json["weights"]["0.weight"]["scale_inv"] = "x"; }));
  EXPECT_TRUE(refused({"scale_inv", "found 0"}, [](ExtraState& s) { s.json["weights"]["0.weight"]["scale_inv"] = 0; }));
  EXPECT_TRUE(refused({"high-precision copy", "[48, 16]", "[2]"},
                      [](ExtraState& s) { s.tensors["0.weight.master"] = torch::ones({2}); }));
  state.json["weights"]["other"] = state.json["weights"]["0.weight"];
  EXPECT_EQ(set_extra_state(*held.model, state).unexpected, std::vector<std::string>{"other"});
}

TEST(QuantizedModelInit, OurOptimizersTrainItAndUpstreamsThrow) {
  torch::manual_seed(12);
  Linear up{nullptr}, down{nullptr};
  {
    const quantized_model_init init({.recipe = recipes::CurrentScaling{}, .keep_master = true});
    up = Linear(16, 48);
    down = Linear(48, 8);
  }
  EXPECT_TRUE(c10::isFloat8Type(up->weight.scalar_type()));
  const at::Tensor x = torch::randn({32, 16}, on_hpu()),
                   target = torch::matmul(x, torch::randn({16, 8}, on_hpu())) * 0.1;
  const std::vector<at::Tensor> parameters = {up->weight, up->bias, down->weight, down->bias};
  runtime::optim::FusedAdamW ours(parameters, runtime::optim::FusedAdamWOptions(1e-2));
  torch::optim::AdamW upstream(parameters);
  std::vector<float> losses;
  for (int i = 0; i < 40; ++i) {
    ours.zero_grad();
    const at::Tensor loss = test::within(fp8_autocast(true, recipes::CurrentScaling{}),
                                         [&] { return torch::mse_loss(down(torch::relu(up(x))), target); });
    loss.backward();
    EXPECT_EQ(up->weight.grad().scalar_type(), at::kFloat);
    if (i == 0) {
      EXPECT_NE(error_of([&] { upstream.step(); }), "");
    }
    ours.step();
    losses.push_back(loss.item<float>());
  }
  EXPECT_LT(mean_of_last(losses, 5), 0.2 * losses[0]);
  EXPECT_TRUE(c10::isFloat8Type(up->weight.scalar_type()));
}

}  // namespace
}  // namespace fp8::te
