// SPDX-License-Identifier: Apache-2.0
// A small network with dropout (so that random numbers matter) and data from a counter, for the tests of the trainer.
#pragma once
#include "fp8/runtime/optim/optimizers.h"
#include "fp8/runtime/trainer/loggers.h"
#include "fp8/runtime/trainer/trainer.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::trainer::testing {

/// x [n, 4], y [n, 1] with y = sum(x); the order of an epoch depends on its number.
class ToyBatches : public BatchSource {
 public:
  ToyBatches(std::int64_t samples, std::int64_t batch) : samples_(samples), batch_(batch) {}

  std::int64_t batches() const override { return (samples_ + batch_ - 1) / batch_; }
  void seek(std::int64_t epoch, std::int64_t batch) override {
    epoch_ = epoch;
    next_ = batch;
  }
  std::optional<Batch> next() override {
    if (next_ >= batches() || next_ == end_early_at) return std::nullopt;
    const auto count = std::min(batch_, samples_ - next_ * batch_);
    const auto first = next_++ * batch_;
    auto x = torch::arange(first * 4, (first + count) * 4, torch::kFloat)
                 .add(static_cast<double>(epoch_))
                 .sin()
                 .view({count, 4});
    if (poison == next_) x = x * std::numeric_limits<float>::quiet_NaN();
    seen.push_back(count);
    return Batch{{x, x.sum(1, true)}, next_ == empty_at ? 0 : count, 0};
  }

  std::vector<std::int64_t> seen;                              ///< sizes of the batches given out
  std::int64_t poison = -1, end_early_at = -1, empty_at = -1;  ///< numbers from 1, 0 and 1

 private:
  std::int64_t samples_, batch_, epoch_ = 0, next_ = 0;
};

struct ToyNetImpl : torch::nn::Module {
  ToyNetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(4, 8))),
        out(register_module("out", torch::nn::Linear(8, 1))) {
    register_buffer("calls", calls = torch::zeros({}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (is_training()) calls.add_(1);
    return out(torch::dropout(torch::tanh(hidden(x)), 0.2, is_training()));
  }
  torch::nn::Linear hidden, out;
  torch::Tensor calls;
};
TORCH_MODULE(ToyNet);

enum class ToyOptimizer { adamw, sgd, fused, muon };

struct ToyTask : TrainingModule {
  explicit ToyTask(std::uint64_t seed = 1, at::Device device = at::kCPU, ToyOptimizer kind = ToyOptimizer::adamw)
      : kind(kind) {
    torch::manual_seed(seed);
    net = ToyNet();
    net->to(device);
  }
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    const auto device = net->hidden->weight.device();
    if (poison_validation && !net->is_training()) throw std::runtime_error("no validation today");
    const auto loss = torch::mse_loss(net(batch.tensors[0].to(device)), batch.tensors[1].to(device)) * loss_factor;
    if (overflow_above > 0)  // as f16 would: what backward gets is the scale of the loss
      loss.register_hook([this](const at::Tensor& g) {
        return g.abs().max().item<double>() > overflow_above ? g * std::numeric_limits<float>::infinity() : g;
      });
    return loss;
  }
  std::vector<at::Tensor> predict_step(const Batch& batch, std::int64_t) override {
    return {net(batch.tensors[0].to(net->hidden->weight.device()))};
  }
  Optimizers configure_optimizers() override {
    Optimizers result;
    if (kind == ToyOptimizer::adamw)
      result.optimizers.push_back(
          std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(lr)));
    else if (kind == ToyOptimizer::fused)
      result.optimizers.push_back(
          std::make_shared<runtime::optim::FusedAdamW>(net->parameters(), runtime::optim::FusedAdamWOptions(lr)));
    else if (kind == ToyOptimizer::muon)
      result.optimizers.push_back(std::make_shared<runtime::optim::Muon>(
          std::vector<at::Tensor>{net->hidden->weight},
          std::vector<at::Tensor>{net->hidden->bias, net->out->weight, net->out->bias},
          runtime::optim::MuonOptions(lr)));
    else
      result.optimizers.push_back(std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(lr)));
    if (step_lr)
      result.schedulers.push_back({std::make_shared<torch::optim::StepLR>(*result.optimizers[0], 1, 0.5), interval});
    result.lr_factor = lr_factor;
    return result;
  }
  TrainingState extra_state() override {
    return {{{"note", note}}, {{"note", torch::full({1}, static_cast<double>(note))}}};
  }
  void load_extra_state(const TrainingState& state) override {
    note = state.json.at("note").get<int>();
    EXPECT_EQ(state.tensors.at("note").item<int>(), note);
  }

  ToyNet net{nullptr};
  ToyOptimizer kind;
  double lr = 0.01, loss_factor = 1, overflow_above = 0;
  bool step_lr = false, poison_validation = false;
  ScheduleInterval interval = ScheduleInterval::epoch;
  std::function<double(std::int64_t)> lr_factor;
  int note = 0;
};

struct RowLogger : Logger {
  void log_metrics(const io::Json& metrics, std::int64_t step) override { rows.emplace_back(step, metrics); }
  void finalize() override { ++ends; }
  std::vector<std::pair<std::int64_t, io::Json>> rows;
  int ends = 0;
};

/// Remembers everything.
struct Recorder : TrainerCallback {
  void on_fit_start(Trainer&, std::int64_t step) override { add("fit_start " + std::to_string(step)); }
  void on_fit_end(Trainer&) override { add("fit_end"); }
  void on_train_epoch_start(Trainer&, std::int64_t epoch) override { add("epoch_start " + std::to_string(epoch)); }
  void on_train_epoch_end(Trainer&, std::int64_t epoch) override { add("epoch_end " + std::to_string(epoch)); }
  void on_train_batch_start(Trainer&, const Batch&, std::int64_t index) override {
    add("batch_start " + std::to_string(index));
  }
  void on_train_batch_end(Trainer&, const Batch&, std::int64_t index, double) override {
    add("batch_end " + std::to_string(index));
  }
  void on_before_optimizer_step(Trainer&) override { add("before_step"); }
  void on_after_optimizer_step(Trainer&) override { add("after_step"); }
  void on_validation_start(Trainer&) override { add("val_start"); }
  void on_validation_batch_start(Trainer&, const Batch&, std::int64_t index) override {
    add("val_batch_start " + std::to_string(index));
  }
  void on_validation_batch_end(Trainer&, const Batch&, std::int64_t index, double) override {
    add("val_batch_end " + std::to_string(index));
  }
  void on_validation_end(Trainer&, double) override { add("val_end"); }
  void on_step_end(Trainer&, const StepReport& report) override {
    add("step_end " + std::to_string(report.step));
    reports.push_back(report);
  }
  void on_save_checkpoint(Trainer&, std::int64_t step) override { add("save " + std::to_string(step)); }

  void add(std::string event) { events.push_back(std::move(event)); }
  std::vector<std::string> events;
  std::vector<StepReport> reports;
};

// The task that tests of several ranks train.

using Group = std::shared_ptr<runtime::distributed::ProcessGroup>;

/// A network without random numbers.
struct PlainTask : TrainingModule {
  explicit PlainTask(std::uint64_t seed) {
    torch::manual_seed(seed);
    net = torch::nn::Sequential(torch::nn::Linear(4, 40), torch::nn::Tanh(), torch::nn::Linear(40, 1));
    net->to(test::kHpu);
  }
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    return torch::mse_loss(net->forward(moved(batch.tensors[0])), moved(batch.tensors[1]));
  }
  at::Tensor moved(const at::Tensor& t) const {
    return pinned ? t.pin_memory().to(test::kHpu, /*non_blocking=*/true) : t.to(test::kHpu);
  }
  Optimizers configure_optimizers() override {
    return {{std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01))}};
  }
  torch::nn::Sequential net;
  bool pinned = false;  ///< copies that do not wait
};

inline bool same_everywhere(const at::Tensor& t, const Group& group) {
  at::Tensor of_first = t.detach().clone();
  group->broadcast(of_first, 0);
  return test::same_bits(of_first, t.detach());
}

}  // namespace fp8::trainer::testing

namespace fp8::trainer {
using testing::Recorder;
using testing::RowLogger;
using testing::ToyBatches;
using testing::ToyOptimizer;
using testing::ToyTask;
}  // namespace fp8::trainer
