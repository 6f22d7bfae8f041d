// SPDX-License-Identifier: Apache-2.0
// The cost of data in a training (give it two cores: --threads 2).
//
//   decode               an epoch of PNG images (256 x 256, a random part to 224 x 224, normalized) read as fast as it
//                        goes: by_none = time with 2 workers by that with none
//   wait                 the same with a step of computing between batches that takes three times what a batch takes to
//                        decode: wait_share = time in next() by all time
//   trainer hidden 64    a step in fp8 of two layers in the trainer, with a logger and two callbacks that hear every
//                        step and a module that logs, beside the same operations in a loop: own_share of the step's
//                        time. The logger gets a row every 50 steps, as the trainer's default is; or for every one
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <c10/core/AutogradState.h>
#include <png.h>
#include <torch/nn/module.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/data/image_folder.h"
#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/runtime/trainer/callbacks/monitors.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/trainer.h"
#include "fp8/tools/benchmarks/bench.h"
#include "fp8/transformer_engine/products/fp8_linear.h"

namespace fp8::bench::data_cases {
namespace {

/// Smooth areas with noise, as photographs are.
std::string png_bytes(int size) {
  std::string pixels;
  for (int y = 0; y < size; ++y)
    for (int x = 0; x < size; ++x)
      for (int c = 0; c < 3; ++c)
        pixels +=
            static_cast<char>((x * (c + 1) + y) / 4 +
                              static_cast<int>(kernels::splitmix64(1, static_cast<std::uint64_t>(y * size + x)) % 6));
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = image.height = static_cast<png_uint_32>(size);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string out(bytes, '\0');
  require(png_image_write_to_memory(&image, out.data(), &bytes, 0, pixels.data(), 0, nullptr) != 0, "a PNG");
  out.resize(bytes);
  return out;
}

class Pictures : public data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  std::vector<at::Tensor> get(std::int64_t, data::SampleRandom& random) const override {
    return {data::apply(transforms_, io::decode_image(png_, "a PNG in memory"), random)};
  }

 private:
  std::string png_ = png_bytes(256);
  std::vector<data::Transform> transforms_ = {data::RandomResizedCrop{}, data::RandomHorizontalFlip{}, data::ToTensor{},
                                              data::Normalize{}};
};

constexpr std::int64_t kBatch = 8;

/// Nanoseconds of a batch in an epoch.
double batch_ns(data::DataLoader& loader) {
  const double begin = now_ns();
  loader.seek(0, 0);
  while (loader.next()) {
  }
  return (now_ns() - begin) / static_cast<double>(loader.batches());
}

void run_loader(Runner& runner) {
  const bool decode = runner.wants("decode 2 workers"), wait = runner.wants("wait 2 workers");
  if (!decode && !wait) return;
  const auto pictures = std::make_shared<Pictures>();
  data::DataLoader none(pictures, {.batch_size = kBatch}),
      two(pictures, {.batch_size = kBatch, .num_workers = 2, .persistent_workers = true});
  require(at::equal(none.next()->tensors.at(0), two.next()->tensors.at(0)), "batches of two workers");
  if (decode) {
    std::vector<double> alone, together;
    runner.repeat(2, [&] {
      alone.push_back(batch_ns(none));
      together.push_back(batch_ns(two));
    });
    const Time ns = time_of(together), none_ns = time_of(alone);
    runner.print(
        {.name = "decode 2 workers", .ns = ns, .extra = {{"no_workers_ns", none_ns}, {"by_none", ns / none_ns}}});
  }
  if (!wait) return;
  const double step = 3 * batch_ns(none);
  const at::Tensor a = at::randn({192, 192});
  const auto compute = [&] {
    for (const double end = now_ns() + step; now_ns() < end;) at::matmul(a, a);
  };
  std::vector<double> shares, steps;
  runner.repeat(2, [&] {
    two.seek(1, 0);
    two.next();  // the first batch of an epoch has nothing to be made behind
    const std::int64_t left = two.batches() - 1;
    double waited = 0;
    const double begin = now_ns();
    for (std::int64_t i = 0; i < left; ++i) {
      compute();
      const double before = now_ns();
      two.next();
      waited += now_ns() - before;
    }
    const double all = now_ns() - begin;
    shares.push_back(waited / all);
    steps.push_back(all / static_cast<double>(left));
  });
  runner.print({.name = "wait 2 workers", .ns = time_of(steps), .extra = {{"wait_share", time_of(shares)}}});
}

struct Layers : torch::nn::Module {
  explicit Layers(std::int64_t hidden) {
    const auto on_hpu = at::TensorOptions().device(at::Device(at::kHPU, 0)).dtype(at::kFloat);
    x = at::randn({hidden, hidden}, on_hpu);
    w1 = register_parameter("w1", at::randn({4 * hidden, hidden}, on_hpu) * 0.02);
    w2 = register_parameter("w2", at::randn({hidden, 4 * hidden}, on_hpu) * 0.02);
  }
  at::Tensor loss() {
    const runtime::autocast::AutocastGuard bf16;
    const te::fp8_autocast region(te::Fp8AutocastOptions{.enabled = true});
    const auto y = te::fp8_linear(at::relu(te::fp8_linear(x, w1, std::nullopt, up)), w2, std::nullopt, down);
    return y.to(at::kFloat).square().mean();
  }
  at::Tensor x, w1, w2;
  std::shared_ptr<te::Fp8State> up = std::make_shared<te::Fp8State>("up", 2, 1),
                                down = std::make_shared<te::Fp8State>("down", 2, 1);
};

struct LayersTask : trainer::TrainingModule {
  explicit LayersTask(std::int64_t hidden) : layers(hidden) {}
  torch::nn::Module& network() override { return layers; }
  at::Tensor training_step(const trainer::Batch&, std::int64_t) override {
    log("lively", 0.5);
    return layers.loss();
  }
  trainer::Optimizers configure_optimizers() override {
    return {
        {std::make_shared<runtime::optim::FusedAdamW>(layers.parameters(), runtime::optim::FusedAdamWOptions(1e-3))}};
  }
  Layers layers;
};

/// A source that repeats one batch.
struct OneBatch : trainer::BatchSource {
  explicit OneBatch(std::int64_t batches) : count(batches) {}
  std::int64_t batches() const override { return count; }
  void seek(std::int64_t, std::int64_t) override {}
  std::optional<trainer::Batch> next() override { return trainer::Batch{{}, 1}; }
  std::int64_t count;
};

struct InMemory : trainer::Logger {
  void log_metrics(const io::Json& row, std::int64_t) override { last = row; }
  io::Json last;
};

/// When each step ended.
struct Clock : trainer::TrainerCallback {
  void on_step_end(trainer::Trainer&, const trainer::StepReport&) override { ends.push_back(now_ns()); }
  std::vector<double> ends;
};

constexpr std::int64_t kSteps = 200, kWarmUp = 20;

double in_trainer(std::int64_t hidden, std::int64_t every) {
  LayersTask task(hidden);
  OneBatch source(kSteps);
  auto clock = std::make_shared<Clock>();
  trainer::Trainer({.max_steps = kSteps, .log_every_n_steps = every},
                   {std::make_shared<InMemory>(), std::make_shared<trainer::LearningRateMonitor>(), clock})
      .fit(task, source);
  return (clock->ends.back() - clock->ends[kWarmUp]) / static_cast<double>(kSteps - 1 - kWarmUp);
}

double in_a_loop(std::int64_t hidden) {
  LayersTask task(hidden);
  const auto optimizers = task.configure_optimizers();
  auto& state = c10::AutogradState::get_tls_state();
  const bool threads = state.get_multithreading_enabled();
  state.set_multithreading_enabled(false);  // as the trainer has it
  const auto parameters = task.layers.parameters();
  double begin = 0;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const at::Tensor loss = task.layers.loss();
    (void)loss.item<double>();
    loss.backward();
    (void)runtime::optim::FusedClipNorm(parameters, std::numeric_limits<float>::max()).clip_norm().item<double>();
    optimizers.optimizers[0]->step();
    for (const auto& p : parameters) p.mutable_grad().reset();
    if (i == kWarmUp) begin = now_ns();
  }
  const double all = now_ns() - begin;
  state.set_multithreading_enabled(threads);
  return all / static_cast<double>(kSteps - 1 - kWarmUp);
}

void run_trainer(Runner& runner) {
  constexpr std::int64_t kHidden = 64;
  for (const std::int64_t every : {50, 1}) {
    const std::string name = std::string("trainer hidden 64") + (every == 1 ? ", a row for each step" : "");
    if (!runner.wants(name)) continue;
    std::vector<double> trainer, loop, shares;
    runner.repeat(2, [&] {
      loop.push_back(in_a_loop(kHidden));
      trainer.push_back(in_trainer(kHidden, every));
      shares.push_back(1 - loop.back() / trainer.back());
    });
    runner.print(
        {.name = name, .ns = time_of(trainer), .extra = {{"loop_ns", time_of(loop)}, {"own_share", time_of(shares)}}});
  }
}

void bench_data(Runner& runner) {
  run_loader(runner);
  run_trainer(runner);
}

const Registration kData("data", bench_data);

}  // namespace
}  // namespace fp8::bench::data_cases
