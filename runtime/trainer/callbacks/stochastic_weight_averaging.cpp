// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/stochastic_weight_averaging.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/optimizer.h>

#include "fp8/runtime/optim/fused_clip_ema.h"
#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

[[noreturn]] void refuse_swa(const char* name, const std::string& found, const std::string& allowed) {
  io::fail<std::invalid_argument>("[StochasticWeightAveraging] {}: found {}, allowed: {}", name, found, allowed);
}

/// Batch norm layers count from nothing, each batch the same (torch.optim.swa_utils.update_bn), while this lives.
class FreshStatistics {
 public:
  explicit FreshStatistics(torch::nn::Module& network) {
    for (const auto& part : network.modules())
      if (!add<torch::nn::BatchNorm1dImpl>(*part) && !add<torch::nn::BatchNorm2dImpl>(*part))
        add<torch::nn::BatchNorm3dImpl>(*part);
  }
  ~FreshStatistics() {
    for (const auto& back : undo_) back();
  }
  FreshStatistics& operator=(FreshStatistics&&) = delete;

  bool any() const { return !undo_.empty(); }

 private:
  template <class Norm>
  bool add(torch::nn::Module& part) {
    auto* norm = part.as<Norm>();
    if (norm == nullptr || !norm->options.track_running_stats()) return norm != nullptr;
    const auto momentum = norm->options.momentum();
    norm->reset_running_stats();
    norm->options.momentum(std::nullopt);
    undo_.push_back([norm, momentum] { norm->options.momentum(momentum); });
    return true;
  }

  std::vector<std::function<void()>> undo_;
};

}  // namespace

StochasticWeightAveraging::StochasticWeightAveraging(StochasticWeightAveragingOptions options)
    : options_(std::move(options)) {
  const auto& o = options_;
  if (o.swa_lrs.empty()) refuse_swa("swa_lrs", "none", "a learning rate, or one for each group");
  for (const double rate : o.swa_lrs)
    if (!(rate > 0) || std::isinf(rate)) refuse_swa("swa_lrs", io::number_text(rate), "above 0");
  if (const auto* epoch = std::get_if<std::int64_t>(&o.swa_epoch_start)) {
    if (*epoch < 1) refuse_swa("swa_epoch_start", std::to_string(*epoch), "1 or more, or a fraction from 0.0 to 1.0");
  } else if (const double share = std::get<double>(o.swa_epoch_start); !(share >= 0 && share <= 1)) {
    refuse_swa("swa_epoch_start", io::number_text(share), "1 or more, or a fraction from 0.0 to 1.0");
  }
  if (o.annealing_epochs < 0) refuse_swa("annealing_epochs", std::to_string(o.annealing_epochs), "0 or more");
  if (o.ema_decay && !(*o.ema_decay >= 0 && *o.ema_decay <= 1))
    refuse_swa("ema_decay", io::number_text(*o.ema_decay), "0 to 1");
}

StochasticWeightAveraging::~StochasticWeightAveraging() = default;

io::Json StochasticWeightAveraging::state() const {
  return {{"begun", begun_}, {"latest_update_epoch", latest_}, {"n_averaged", averaged_}, {"rates", rates_}};
}

void StochasticWeightAveraging::load_state(const io::Json& state) {
  begun_ = state.at("begun").get<std::int64_t>();
  latest_ = state.at("latest_update_epoch").get<std::int64_t>();
  averaged_ = state.at("n_averaged").get<std::int64_t>();
  rates_ = state.at("rates").get<std::vector<double>>();
}

std::map<std::string, at::Tensor> StochasticWeightAveraging::state_tensors() const {
  std::map<std::string, at::Tensor> tensors;
  if (average_ == nullptr || averaged_ == 0) return tensors;
  for (std::size_t i = 0; i < names_.size(); ++i) tensors[names_[i]] = average_->averages()[i];
  return tensors;
}

void StochasticWeightAveraging::load_state_tensors(const std::map<std::string, at::Tensor>& tensors) {
  loaded_ = tensors;
}

void StochasticWeightAveraging::begin_anew() {
  begun_ = latest_ = -1;
  averaged_ = 0;
  rates_.clear();
}

void StochasticWeightAveraging::on_fit_start(Trainer& trainer, std::int64_t) {
  const auto& configured = trainer.configured();
  if (configured.optimizers.size() != 1) refuse_swa("optimizers", std::to_string(configured.optimizers.size()), "1");
  if (configured.schedulers.size() > 1)
    refuse_swa("schedulers", std::to_string(configured.schedulers.size()), "1 or none");
  const auto groups = configured.optimizers[0]->param_groups().size();
  if (options_.swa_lrs.size() != 1 && options_.swa_lrs.size() != groups)
    refuse_swa("swa_lrs", std::to_string(options_.swa_lrs.size()) + " rates",
               "1, or one for each of the optimizer's " + std::to_string(groups) + " groups");
  const auto epochs = trainer.options().max_epochs;
  if (const auto* epoch = std::get_if<std::int64_t>(&options_.swa_epoch_start)) {
    start_ = *epoch - 1;
  } else {
    if (epochs < 0) refuse_swa("swa_epoch_start", "a fraction without max_epochs", "an epoch, counted from 1");
    const auto first =
        static_cast<std::int64_t>(std::get<double>(options_.swa_epoch_start) * static_cast<double>(epochs));
    start_ = std::max<std::int64_t>(0, first - 1);
  }
  names_.clear();
  parameters_.clear();
  std::unordered_set<const void*> seen;
  for (const auto& p : trainer.network().named_parameters()) {
    if (!p.value().requires_grad() || !seen.insert(p.value().unsafeGetTensorImpl()).second) continue;
    names_.push_back(p.key());
    parameters_.push_back(p.value());
  }
  average_ = std::make_unique<runtime::optim::FusedEMA>(parameters_, options_.ema_decay.value_or(0), 0, /*ramp=*/0);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; averaged_ > 0 && i < names_.size(); ++i) {
    const auto found = loaded_.find(names_[i]);
    const auto& to = average_->averages()[i];
    if (found == loaded_.end() || found->second.sizes() != to.sizes())
      io::fail<io::Error>("[StochasticWeightAveraging] checkpoint: the average of '{}' is missing or has another shape",
                          names_[i]);
    to.copy_(found->second);
  }
  loaded_.clear();
  if (begun_ >= 0) trainer.rest_schedules();
}

void StochasticWeightAveraging::begin(const Trainer& trainer, std::int64_t epoch) {
  begun_ = epoch;
  rates_.clear();
  for (const auto& group : trainer.optimizers()[0]->param_groups()) rates_.push_back(group.options().get_lr());
}

void StochasticWeightAveraging::set_rates(Trainer& trainer, std::int64_t epoch) const {
  const double over = static_cast<double>(epoch - begun_) / static_cast<double>(options_.annealing_epochs);
  const double t = options_.annealing_epochs == 0 ? 1 : std::min(1.0, over);
  const double a = options_.annealing_strategy == AnnealingStrategy::cos ? (1 - std::cos(std::numbers::pi * t)) / 2 : t;
  auto& groups = trainer.optimizers()[0]->param_groups();
  for (std::size_t i = 0; i < groups.size() && i < rates_.size(); ++i) {
    const double swa_lr = options_.swa_lrs[options_.swa_lrs.size() == 1 ? 0 : i];
    groups[i].options().set_lr(swa_lr * a + rates_[i] * (1 - a));
  }
}

void StochasticWeightAveraging::average() {
  if (averaged_ == 0)
    average_->decay(0);  // the first is all there is
  else
    average_->decay(options_.ema_decay.value_or(static_cast<double>(averaged_) / static_cast<double>(averaged_ + 1)));
  average_->update();
  ++averaged_;
}

/// Of a resumed run too, in the middle of an epoch that was averaged.
void StochasticWeightAveraging::on_train_epoch_start(Trainer& trainer, std::int64_t epoch) {
  if (epoch < start_) return;
  if (begun_ < 0) {
    begin(trainer, epoch);
    trainer.rest_schedules();
  }
  set_rates(trainer, epoch);
  if (epoch <= latest_) return;
  average();
  latest_ = epoch;
}

void StochasticWeightAveraging::on_fit_end(Trainer& trainer) {
  if (averaged_ == 0 || trainer.stopped()) return;
  average_->copy_to(parameters_);
  const FreshStatistics statistics(trainer.network());
  if (statistics.any()) trainer.pass_over_training_data();
}

}  // namespace fp8::trainer
