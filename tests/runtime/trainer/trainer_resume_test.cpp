// SPDX-License-Identifier: Apache-2.0
// Checkpoints: a run that was cut off and goes on ends with the bits of one that was not, and what a damaged checkpoint
// says.

#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"
#include "runtime/trainer/toy_task.h"
#include "support/values.h"

namespace fp8::trainer {
namespace {

struct Outcome {
  std::map<std::string, at::Tensor> tensors;
  std::vector<double> losses, rates;
  FitResult result;
};

struct Case {
  at::Device device = at::kCPU;
  ToyOptimizer optimizer = ToyOptimizer::adamw;
  ScheduleInterval interval = ScheduleInterval::epoch;
  std::int64_t accumulate = 1;
  bool scaled = false;  ///< with a scale that overflows now and then
};

/// Trains; ends after `stop_at` more steps if that is above 0.
Outcome train(const Case& c, const std::filesystem::path& root, bool resume, std::int64_t stop_at) {
  ToyTask task(resume ? 99 : 1, c.device, c.optimizer);  // a resumed run starts from other weights and random numbers
  task.step_lr = true;
  task.interval = c.interval;
  if (!resume) task.note = 41;
  if (c.scaled) task.overflow_above = 300;
  ToyBatches data(9, 2);
  auto recorder = std::make_shared<Recorder>();
  TrainerOptions options{.max_steps = 13,
                         .accumulate_grad_batches = c.accumulate,
                         .gradient_clip_val = 0.7,
                         .checkpoint_root = root,
                         .save_every_n_steps = 4,
                         .resume = resume};
  if (c.scaled) options.grad_scaler = GradScalerOptions{.init_scale = 512, .growth_interval = 4};
  std::int64_t steps = 0;
  options.should_stop = [&] { return ++steps == stop_at; };
  Outcome outcome{.result = Trainer(options, {recorder}).fit(task, data)};
  EXPECT_EQ(task.note, 41);
  for (const auto& item : task.net->named_parameters())
    outcome.tensors[item.key()] = item.value().detach().cpu().clone();
  outcome.tensors["calls"] = task.net->calls.cpu().clone();
  for (const auto& r : recorder->reports) {
    outcome.losses.push_back(r.loss);
    outcome.rates.push_back(r.lr);
  }
  return outcome;
}

void expect_resume_is_exact(const Case& c) {
  const test::TempDir whole_root, cut_root;
  const auto whole = train(c, whole_root.path(), false, 0);
  auto cut = train(c, cut_root.path(), false, 6);
  EXPECT_TRUE(cut.result.stopped);
  const auto rest = train(c, cut_root.path(), true, 0);
  EXPECT_EQ(rest.result.resumed_from, 6);
  cut.losses.insert(cut.losses.end(), rest.losses.begin(), rest.losses.end());
  cut.rates.insert(cut.rates.end(), rest.rates.begin(), rest.rates.end());
  EXPECT_EQ(cut.losses, whole.losses);
  EXPECT_EQ(cut.rates, whole.rates);
  EXPECT_EQ(rest.result.loss_last20, whole.result.loss_last20);
  EXPECT_EQ(rest.result.samples, whole.result.samples);
  EXPECT_EQ(rest.result.skipped_steps, whole.result.skipped_steps);
  EXPECT_EQ(whole.result.skipped_steps > 0, c.scaled);
  for (const auto& [name, tensor] : whole.tensors) EXPECT_TRUE(torch::equal(tensor, rest.tensors.at(name))) << name;
}

using Resume = InFolder;

TEST_F(Resume, AdamWIsBitEqual) { expect_resume_is_exact({}); }
TEST_F(Resume, OnHpuIsBitEqual) { expect_resume_is_exact({.device = at::kHPU}); }
TEST_F(Resume, SgdWithStepScheduleIsBitEqual) {
  expect_resume_is_exact({.optimizer = ToyOptimizer::sgd, .interval = ScheduleInterval::step});
}
TEST_F(Resume, FusedAdamWIsBitEqual) { expect_resume_is_exact({.device = at::kHPU, .optimizer = ToyOptimizer::fused}); }
TEST_F(Resume, MuonIsBitEqual) {
  expect_resume_is_exact({.device = at::kHPU, .optimizer = ToyOptimizer::muon, .interval = ScheduleInterval::step});
}
TEST_F(Resume, WithAccumulationIsBitEqual) { expect_resume_is_exact({.accumulate = 2}); }

TEST_F(Resume, WithLossScalingIsBitEqual) { expect_resume_is_exact({.scaled = true}); }

TEST_F(Resume, ByTheLastStepOfAnEpoch) {
  const test::TempDir whole_root, cut_root;
  const auto whole = train({}, whole_root.path(), false, 0);
  train({}, cut_root.path(), false, 5);  // 5 batches an epoch
  const auto rest = train({}, cut_root.path(), true, 0);
  EXPECT_EQ(rest.result.epochs, whole.result.epochs);
  for (const auto& [name, tensor] : whole.tensors) EXPECT_TRUE(torch::equal(tensor, rest.tensors.at(name))) << name;
  EXPECT_EQ(std::vector<double>(whole.rates.begin() + 5, whole.rates.end()), rest.rates);
}

/// Asked at the second batch of the validation after step 4: the resumed run begins with it.
TEST_F(Resume, InAValidationIsBitEqual) {
  const test::TempDir whole_root, cut_root;
  const auto fit = [](const std::filesystem::path& root, bool resume, std::int64_t stop_at) {
    ToyTask task(resume ? 99 : 1);
    ToyBatches data(9, 2), val(6, 2);
    auto recorder = std::make_shared<Recorder>();
    TrainerOptions options{.max_steps = 8, .val_every_n_steps = 4, .checkpoint_root = root, .resume = resume};
    std::int64_t asked = 0;
    options.should_stop = [&] { return ++asked == stop_at; };
    const auto result = Trainer(options, {recorder}).fit(task, data, &val);
    return std::tuple(result, recorder, task.net->out->weight.detach().clone());
  };
  const auto [whole, all, weight] = fit(whole_root.path(), false, 0);
  const auto [cut, before, unused] = fit(cut_root.path(), false, 5);
  EXPECT_TRUE(cut.stopped && cut.unvalidated);
  EXPECT_EQ(before->reports.size(), 3u);
  EXPECT_THAT(checkpoint_steps(cut_root.path()), ElementsAre(4));
  const auto [rest, after, same] = fit(cut_root.path(), true, 0);
  EXPECT_FALSE(rest.unvalidated);
  EXPECT_EQ(after->events.front(), "fit_start 3");
  ASSERT_EQ(after->reports.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(after->reports[i].step, all->reports[i + 3].step);
    EXPECT_EQ(after->reports[i].loss, all->reports[i + 3].loss);
    EXPECT_EQ(after->reports[i].val_loss, all->reports[i + 3].val_loss);
  }
  EXPECT_EQ(rest.samples, whole.samples);
  EXPECT_TRUE(torch::equal(weight, same));
}

TEST_F(Resume, AFinishedRunStaysAsItIs) {
  const auto whole = train({}, folder.path(), false, 0);
  const auto again = train({}, folder.path(), true, 0);
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(again.result.steps, 13);
  EXPECT_EQ(again.result.epochs, whole.result.epochs);
  EXPECT_EQ(again.result.loss_last20, whole.result.loss_last20);
  for (const auto& [name, tensor] : whole.tensors) EXPECT_TRUE(torch::equal(tensor, again.tensors.at(name))) << name;
}

TEST_F(Resume, WithoutCheckpointStartsAnew) {
  ToyTask task;
  ToyBatches data(4, 2);
  const auto result = Trainer({.max_steps = 2, .checkpoint_root = folder.path(), .resume = true}).fit(task, data);
  EXPECT_EQ(result.resumed_from, 0);
  EXPECT_THAT(checkpoint_steps(folder.path()), ElementsAre(2));
}

TEST_F(Resume, AFinishedEpochCountsAfterAResume) {
  for (const bool resume : {false, true}) {
    ToyTask task;
    ToyBatches data(4, 2);
    const auto result = Trainer({.max_steps = 4, .checkpoint_root = folder.path(), .resume = resume}).fit(task, data);
    EXPECT_EQ(result.epochs, 2) << resume;
  }
}

/// A callback adds a group of parameters, in on_fit_start or later; a resumed run's adds it before the state is loaded.
TEST_F(Resume, WithAGroupThatACallbackAdds) {
  const auto run = [](const std::filesystem::path& root, bool resume, std::int64_t stop_at) {
    struct Adding : TrainerCallback {
      std::string state_key() const override { return "Adding"; }
      io::Json state() const override { return added; }
      void load_state(const io::Json& state) override { added = state.get<bool>(); }
      void begin_anew() override { added = false; }
      void on_fit_start(Trainer& trainer, std::int64_t) override {
        if (added) add(trainer);
      }
      void on_train_epoch_start(Trainer& trainer, std::int64_t epoch) override {
        if (epoch == 1 && !added) add(trainer);
      }
      void add(Trainer& trainer) {
        added = true;
        const auto& out = dynamic_cast<testing::ToyNetImpl&>(trainer.network()).out;
        trainer.optimizers()[0]->add_param_group(torch::optim::OptimizerParamGroup(
            {out->weight, out->bias}, std::make_unique<torch::optim::AdamWOptions>(0.002)));
      }
      bool added = false;
    };
    struct HiddenFirst : ToyTask {
      using ToyTask::ToyTask;
      Optimizers configure_optimizers() override {
        return {.optimizers = {std::make_shared<torch::optim::AdamW>(net->hidden->parameters(),
                                                                     torch::optim::AdamWOptions(0.01))},
                .lr_factor = [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); }};
      }
    };
    HiddenFirst task(resume ? 99 : 1);
    ToyBatches data(9, 2);  // 5 steps an epoch
    std::int64_t steps = 0;
    Trainer trainer(
        {.max_steps = 13, .checkpoint_root = root, .resume = resume, .should_stop = [&] { return ++steps == stop_at; }},
        {std::make_shared<Adding>()});
    trainer.fit(task, data);
    return task.net->out->weight.detach().clone();
  };
  const test::TempDir whole, parts;
  const auto expected = run(whole.path(), false, 0);
  run(parts.path(), false, 8);
  EXPECT_TRUE(torch::equal(run(parts.path(), true, 0), expected));
}

/// The exception propagates, and the checkpoint is of the last whole step.
TEST_F(Resume, FromWhatAnExceptionLeft) {
  ToyTask task;
  ToyBatches data(12, 2);
  data.poison = 5;
  const auto keeps = std::make_shared<OnExceptionCheckpoint>(folder.path(), "failed");
  EXPECT_REFUSED(Trainer({.max_steps = 6, .accumulate_grad_batches = 2}, {keeps}).fit(task, data),
                 "step 3: the loss is nan");
  expect_values(HPUCheckpointIO().load_checkpoint(folder / "failed").json, {{"step", 2}, {"batch", 4}});
}

using Checkpoints = InFolder;

TEST_F(Checkpoints, TheNewestStay) {
  train({}, folder.path(), false, 0);
  EXPECT_THAT(checkpoint_steps(folder.path()), ElementsAre(12, 13));
}

TEST_F(Checkpoints, AreNamedByStepAndIncompleteOnesDoNotCount) {
  EXPECT_EQ(checkpoint_folder("a", 12).string(), "a/step-00000012");
  EXPECT_EQ(checkpoint_folder("a", 123456789012).string(), "a/step-123456789012");
  for (const char* name : {"step-00000003", "step-00000020", "step-x", "other"})
    std::filesystem::create_directories(folder / name);
  std::ofstream(folder / "step-00000003/trainer_state.json") << "{}";
  std::ofstream(folder / "step-x/trainer_state.json") << "{}";
  std::ofstream(folder / "step-00000003/trainer_state.safetensors") << "8";
  std::ofstream(folder / ".step-00000003.lock");  // as a killed writer leaves them
  std::filesystem::create_directories(folder / ".step-00000007.partial-4000000");
  std::ofstream(folder / ".other") << "mine";
  EXPECT_THAT(checkpoint_steps(folder.path()), ElementsAre(3));
  EXPECT_THAT(checkpoint_steps(folder / "missing"), ElementsAre());
  remove_incomplete_checkpoints(folder.path());
  EXPECT_FALSE(std::filesystem::exists(folder / "step-00000020"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".step-00000003.lock"));
  EXPECT_FALSE(std::filesystem::exists(folder / ".step-00000007.partial-4000000"));
  EXPECT_TRUE(std::filesystem::exists(folder / ".other"));
  for (const char* name : {"step-00000003", "step-x", "other"})
    EXPECT_TRUE(std::filesystem::exists(folder / name)) << name;
}

TEST_F(Checkpoints, AFailedWriteLeavesTheOldOne) {
  const HPUCheckpointIO files;
  files.save_checkpoint({{{"a", 1}}, {{"t", torch::arange(3)}}}, folder / "c");
  EXPECT_REFUSED(files.save_checkpoint({{{"a", 2}}, {}}, folder / "c",
                                       [](const std::filesystem::path&) { throw std::runtime_error("stopped"); }),
                 "stopped");
  const auto state = files.load_checkpoint(folder / "c");
  EXPECT_EQ(state.json["a"], 1);
  EXPECT_TRUE(torch::equal(state.tensors.at("t"), torch::arange(3)));
  files.save_checkpoint({{{"a", 2}}, {}}, folder / "c");
  EXPECT_EQ(files.load_checkpoint(folder / "c").json["a"], 2);
  files.remove_checkpoint(folder / "c");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST_F(Checkpoints, StorageOptionsAreRefused) {
  EXPECT_REFUSED(HPUCheckpointIO().save_checkpoint({}, folder / "c", {}, io::Json{{"a", 1}}),
                 "storage_options is not supported");
  EXPECT_FALSE(std::filesystem::exists(folder / "c"));
}

TEST_F(Checkpoints, EveryDtypeComesBack) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                           at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2})
    tensors[c10::toString(dtype)] = torch::arange(6).to(dtype).view({2, 3});
  tensors["empty"] = torch::zeros({0, 3});
  tensors["scalar"] = torch::tensor(3.5);
  tensors["strided"] = torch::arange(6).view({2, 3}).t();
  write_tensors(folder / "t.safetensors", tensors);
  const auto found = read_tensors(folder / "t.safetensors");
  ASSERT_EQ(found.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(found.at(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(found.at(name).to(at::kDouble), tensor.to(at::kDouble))) << name;
  }
  EXPECT_REFUSED(write_tensors(folder / "u.safetensors", {{"c", torch::zeros({1}, at::kComplexFloat)}}), "tensor 'c'");
}

/// The message of a resume after `spoil` changed trainer_state.json.
std::string message_after(const std::function<void(io::Json&)>& spoil, bool step_lr = false) {
  const test::TempDir root;
  ToyTask task;
  task.step_lr = step_lr;
  ToyBatches data(8, 2);
  Trainer({.max_steps = 2, .checkpoint_root = root.path()}).fit(task, data);
  const auto file = checkpoint_folder(root.path(), 2) / HPUCheckpointIO::kJson;
  auto json = io::read_json(file);
  spoil(json);
  io::write_json(file, json);
  return error_of([&] { Trainer({.max_steps = 3, .checkpoint_root = root.path(), .resume = true}).fit(task, data); });
}

TEST_F(Checkpoints, DamageIsNamed) {
  EXPECT_EQ(message_after([](io::Json&) {}), "");
  EXPECT_THAT(message_after([](io::Json& json) { json["format"] = 7; }), HasSubstr("format 7, allowed: 1"));
  EXPECT_THAT(message_after([](io::Json& json) { json.erase("epoch"); }), HasSubstr("epoch"));
  EXPECT_THAT(message_after([](io::Json& json) { json["batch"] = 1000; }), HasSubstr("batch 1000"));
  EXPECT_THAT(message_after([](io::Json& json) { json["step"] = "two"; }), HasSubstr("trainer_state.json"));
  EXPECT_THAT(message_after([](io::Json& json) { json["schedulers"] = {1}; }),
              HasSubstr("1 schedulers, the module has 0"));
  EXPECT_THAT(message_after([](io::Json& json) { json.erase("optimizer.0"); }), HasSubstr("optimizer.0"));
  EXPECT_THAT(message_after([](io::Json& json) { json["optimizer.0"] = 3; }), HasSubstr("optimizer.0"));
  EXPECT_THAT(message_after([](io::Json& json) {
                auto& states = json["optimizer.0"]["archive"]["state"]["archive"];
                states["@other.weight"] = states.begin().value();
              }),
              HasSubstr("parameter 'other.weight' is not one of the model"));
  EXPECT_THAT(message_after([](io::Json& json) {
                auto& entry = json["optimizer.0"]["archive"]["state"]["archive"]["@out.bias"]["archive"]["exp_avg"];
                entry["tensor"] = "optimizer.0.999";
              }),
              HasSubstr("tensor 'optimizer.0.999' is missing"));
}

// restore() would take those steps one by one.
TEST_F(Checkpoints, ASchedulerOfTheFutureIsNamed) {
  EXPECT_THAT(message_after([](io::Json& json) { json["schedulers"] = {1000000000000000}; }, true),
              HasSubstr("a scheduler of 1000000000000000 steps, allowed: 0 to step 2"));
}

TEST_F(Checkpoints, AnotherOptimizerIsNamed) {
  for (const auto saved : {ToyOptimizer::adamw, ToyOptimizer::sgd, ToyOptimizer::fused, ToyOptimizer::muon})
    for (const auto found : {ToyOptimizer::adamw, ToyOptimizer::sgd, ToyOptimizer::fused, ToyOptimizer::muon}) {
      if (saved == found) continue;
      const test::TempDir root;
      ToyTask first(1, at::kHPU, saved), second(1, at::kHPU, found);
      ToyBatches data(8, 2);
      Trainer({.max_steps = 2, .checkpoint_root = root.path()}).fit(first, data);
      const auto message = error_of(
          [&] { Trainer({.max_steps = 3, .checkpoint_root = root.path(), .resume = true}).fit(second, data); });
      EXPECT_THAT(message, HasSubstr("optimizer.0")) << static_cast<int>(saved) << " " << static_cast<int>(found);
    }
}

TEST_F(Checkpoints, APartOfALargerModelIsNotThisOne) {
  ToyTask task;
  ToyBatches data(8, 2);
  task.net->register_parameter("more", torch::zeros({2}));
  Trainer({.max_steps = 2, .checkpoint_root = folder.path()}).fit(task, data);
  ToyTask smaller;
  EXPECT_REFUSED(
      load_network(smaller.network(), HPUCheckpointIO().load_checkpoint(checkpoint_folder(folder.path(), 2))),
      "tensor 'parameter.more' is not one of the model's");
}

TEST_F(Checkpoints, TiedWeightsAreLoaded) {
  const auto tied = [](double value) {
    auto network = std::make_shared<torch::nn::Module>();
    const auto weight = torch::full({2}, value);
    network->register_parameter("a", weight);
    network->register_parameter("b", weight);
    network->register_buffer("c", torch::full({}, value));
    return network;
  };
  TrainingState state;
  for_each_tensor(*tied(3), [&](const std::string& name, const at::Tensor& tensor) { state.tensors[name] = tensor; });
  EXPECT_EQ(state.tensors.size(), 2u);
  const auto other = tied(5);
  load_network(*other, state);
  EXPECT_EQ(other->named_parameters()["b"][1].item<double>(), 3);
  EXPECT_EQ(other->named_buffers()["c"].item<double>(), 3);
}

// LibTorch keeps the state of its optimizers by address: names of tensors must not.
TEST_F(Checkpoints, AnOptimizersTensorsHaveOneOrderWhereverParametersLie) {
  auto low = torch::zeros({1}, torch::requires_grad()), high = torch::zeros({1}, torch::requires_grad());
  if (high.unsafeGetTensorImpl() < low.unsafeGetTensorImpl()) std::swap(low, high);
  const auto tensors = [&](at::Tensor a, at::Tensor b) {
    a.set_data(torch::zeros({2}));
    b.set_data(torch::zeros({3}));
    torch::nn::Module network;
    network.register_parameter("a", a);
    network.register_parameter("b", b);
    torch::optim::AdamW optimizer(network.parameters());
    optimizer.zero_grad();
    (a.sum() + b.sum()).backward();
    optimizer.step();
    TrainingState state;
    save_optimizer(optimizer, network, "optimizer.0", state);
    std::map<std::string, std::vector<std::int64_t>> sizes;
    for (const auto& [name, tensor] : state.tensors) sizes[name] = tensor.sizes().vec();
    return std::pair(sizes, state.json.dump());
  };
  const auto one = tensors(low, high);
  EXPECT_EQ(tensors(high, low), one);
  EXPECT_GE(one.first.size(), 4u);
}

TEST_F(Checkpoints, AnotherModelIsNamed) {
  ToyTask task;
  ToyBatches data(8, 2);
  Trainer({.max_steps = 2, .checkpoint_root = folder.path()}).fit(task, data);
  task.net->out->weight.set_data(torch::zeros({1, 9}));
  EXPECT_REFUSED(Trainer({.max_steps = 3, .checkpoint_root = folder.path(), .resume = true}).fit(task, data),
                 "tensor 'parameter.out.weight' has another shape or dtype");
}

}  // namespace
}  // namespace fp8::trainer
