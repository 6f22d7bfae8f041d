// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/trainer_run.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <bit>

#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/base/checksum.h"

namespace fp8::trainer {
namespace {

constexpr double kMost = 0x1p60;  // a loss of 1e20 is still a float

void check_scaler(const char* name, bool fine, const io::Json& found, const char* allowed) {
  if (!fine)
    io::fail<std::invalid_argument>("[trainer] grad_scaler.{}: found {}, allowed: {}", name, found.dump(), allowed);
}

constexpr std::size_t kRecent = 20;

/// How the source's batches are shared out; one rank, and ranks with sources of their own, take them as they come.
BatchShare share_of(const TrainerOptions& options) {
  if (options.group == nullptr || !options.strategy.use_distributed_sampler) return {};
  return {options.group->rank(), options.group->size()};
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options), scale_(options.init_scale) {
  check_scaler("init_scale", scale_ >= kLeast && scale_ <= kMost, scale_, "1 to 2^60");
  check_scaler("growth_factor", options.growth_factor > 1 && options.growth_factor <= kMost, options.growth_factor,
               "above 1, to 2^60");
  check_scaler("backoff_factor", options.backoff_factor > 0 && options.backoff_factor < 1, options.backoff_factor,
               "above 0 and below 1");
  check_scaler("growth_interval", options.growth_interval >= 1, options.growth_interval, "1 or more");
}

bool GradScaler::update(bool finite) {
  if (!finite) {
    if (scale_ <= kLeast) return false;
    scale_ = std::max(scale_ * options_.backoff_factor, kLeast);
    growth_tracker_ = 0;
  } else if (++growth_tracker_ >= options_.growth_interval) {
    scale_ = std::min(scale_ * options_.growth_factor, kMost);
    growth_tracker_ = 0;
  }
  return true;
}

io::Json GradScaler::state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }

void GradScaler::load(const io::Json& state) {
  const auto fail = [](const char* key, const io::Json& found, const char* allowed) {
    io::fail<io::Error>("[trainer] checkpoint: key 'grad_scaler.{}': found {}, allowed: {}", key, found.dump(),
                        allowed);
  };
  const auto scale = state.is_object() ? state.value("scale", io::Json()) : io::Json();
  const auto tracker = state.is_object() ? state.value("growth_tracker", io::Json()) : io::Json();
  if (!scale.is_number() || !(scale.get<double>() >= kLeast && scale.get<double>() <= kMost))
    fail("scale", scale, "1 to 2^60");
  if (!tracker.is_number_integer() || tracker.get<std::int64_t>() < 0) fail("growth_tracker", tracker, "0 or more");
  scale_ = scale.get<double>();
  growth_tracker_ = tracker.get<std::int64_t>();
}

at::Tensor random_state() {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_random_state(const at::Tensor& state) {
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

Trainer::Run::Run(TrainingModule& module_, BatchSource& train_, BatchSource* val_, const TrainerOptions& options)
    : module(module_),
      train(train_),
      val(val_),
      group(group_of_several(options)),
      share(share_of(options)),
      overfits(trainer::overfits(options)),
      batch_limit(batches_of_epoch(options, share.groups(0, train_.batches()))),
      train_batches(batch_limit),
      // A watch looks at operations, of which a replay has none.
      graphs(options.detect_anomaly ? GraphUse{} : options.hpu_graphs) {
  if (train.batches() < 1) throw std::invalid_argument("[trainer] training data: found no batch, allowed: 1 or more");
  if (train_batches < 1)
    throw std::invalid_argument(
        "[trainer] limit_train_batches: found 0, allowed: in fit() what leaves 1 batch or more");
  if (options.grad_scaler) scaler.emplace(*options.grad_scaler);
  if (val != nullptr)
    val_batches =
        resolve_limit(overfits ? "overfit_batches" : "limit_val_batches", options.limit_val_batches, val->batches());
  if (val_batches > 0) val_interval = batches_between_validations(options, train_batches);
  find_parameters();
  optimizers = module.configure_optimizers();
  if (optimizers.optimizers.empty())
    throw std::invalid_argument("[trainer] configure_optimizers: found no optimizer, allowed: 1 or more");
  find_parameters();
  learned = learning();
  base_rates.resize(optimizers.optimizers.size());
  find_base_rates();
  // LibTorch's schedulers set the rate of step n at call n, from 0; those of Python do call 0 when they are made.
  for (const auto& item : optimizers.schedulers) item.scheduler->step();
  scheduler_steps.assign(optimizers.schedulers.size(), 0);
}

/// A group that a callback has added has the rate that it came with.
void Trainer::Run::find_base_rates() {
  for (std::size_t i = 0; i < base_rates.size(); ++i) {
    const auto& groups = optimizers.optimizers[i]->param_groups();
    for (auto g = base_rates[i].size(); g < groups.size(); ++g) base_rates[i].push_back(groups[g].options().get_lr());
  }
}

void Trainer::Run::set_learning_rates() {
  find_base_rates();
  if (!optimizers.lr_factor || schedules_rest) return;
  const double factor = optimizers.lr_factor(step - skipped);  // as schedulers, that rest in a step that is left out
  for (std::size_t i = 0; i < base_rates.size(); ++i) {
    auto& groups = optimizers.optimizers[i]->param_groups();
    if (groups.size() != base_rates[i].size())
      io::fail<std::invalid_argument>(
          "[trainer] optimizer {}: found {} groups, expected {}, as when training began (lr_factor)", i, groups.size(),
          base_rates[i].size());
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g].options().set_lr(base_rates[i][g] * factor);
  }
}

double Trainer::Run::learning_rate() const {
  const auto& groups = optimizers.optimizers[0]->param_groups();
  return groups.empty() ? 0.0 : groups[0].options().get_lr();
}

void Trainer::Run::step_schedulers(ScheduleInterval interval) {
  if (schedules_rest) return;
  for (std::size_t i = 0; i < optimizers.schedulers.size(); ++i) {
    if (optimizers.schedulers[i].interval != interval) continue;
    optimizers.schedulers[i].scheduler->step();
    ++scheduler_steps[i];
  }
}

void Trainer::Run::count(const StepReport& report) {
  samples += report.samples;
  tokens += report.tokens;
  speed.samples += report.samples;
  speed.tokens += report.tokens;
  speed.steps += 1;
  if (report.skipped) {
    ++skipped;
    return;
  }
  recent.push_back(report.loss);
  if (recent.size() > kRecent) recent.pop_front();
}

void Trainer::Run::begin_epoch() { train_batches = std::min(batch_limit, share.groups(epoch, train.batches())); }

std::pair<Batch, bool> Trainer::Run::next_batch() {
  if (share.size == 1) return {take(train, batch, train_batches, "training"), true};
  const std::int64_t batches = train.batches();
  std::int64_t index = share.index(epoch, batch);
  if (auto dealt = train.deal(data_epoch(), share.taken(epoch, batch), share.rank, share.size)) {
    if (dealt->samples > 0) return {std::move(*dealt), true};
    index = batches;
  }
  train.seek(data_epoch(), index % batches);
  return {take(train, index % batches, batches, "training"), index < batches};
}

void Trainer::Run::check_ranks(const TrainerOptions& options) const {
  if (group == nullptr) return;
  io::Fnv layout;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    layout.add(c10::str(parameter_names[i], parameters[i].scalar_type(), parameters[i].sizes()));
  io::Json accumulation = 1;
  std::visit([&](const auto& batches) { accumulation = batches; }, options.accumulate_grad_batches);
  runtime::distributed::check_same({{"parameters", layout.text()},
                                    {"training batches", train.batches()},
                                    {"batches of an epoch", batch_limit},
                                    {"validation batches", val_batches},
                                    {"max_steps", options.max_steps},
                                    {"max_epochs", options.max_epochs},
                                    {"accumulate_grad_batches", std::move(accumulation)},
                                    {"strategy", name_of(options.strategy.kind)}},
                                   *group, "trainer");
}

void Trainer::Run::share_parameters() {
  parameters_shared = parameters.size();
  if (group == nullptr) return;
  std::vector<at::Tensor> shared;
  for_each_tensor(module.network(), [&](const std::string&, const at::Tensor& tensor) {
    const bool frozen = c10::isFloat8Type(tensor.scalar_type()) && runtime::quantized_parameter(tensor) == nullptr;
    if (!frozen) shared.push_back(tensor);
  });
  runtime::distributed::broadcast_parameters(shared, *group);
}

void Trainer::Run::take_strategy(const StrategyOptions& options) {
  learned = learning();
  if (group != nullptr && parameters_shared < parameters.size()) {
    io::Json joined = io::Json::object();
    for (std::size_t i = parameters_shared; i < parameters.size(); ++i)
      joined[parameter_names[i]] = c10::str(parameters[i].scalar_type(), parameters[i].sizes(),
                                            " with values of checksum ", values_checksum(parameters[i]));
    runtime::distributed::check_same(joined, *group, "trainer, parameters that join");
  }
  parameters_shared = parameters.size();
  for (const auto& p : parameters)
    if (!p.requires_grad()) p.mutable_grad().reset();  // no strategy averages what is left there
  strategy.reset();                                    // takes its hooks with it
  strategy = make_strategy(options, parameters, parameter_names, group);
}

void Trainer::Run::find_parameters() {
  const auto add = [this](const std::string& name, const at::Tensor& p) {
    if (!parameter_index.emplace(p.unsafeGetTensorImpl(), parameters.size()).second) return;
    parameters.push_back(p);
    parameter_names.push_back(name);
    const auto dot = name.rfind('.');
    runtime::name_memory(p, dot == std::string::npos ? "" : name.substr(0, dot), "parameter");
  };
  for (const auto& p : module.network().named_parameters()) add(p.key(), p.value());
  for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i) {
    std::size_t number = 0;
    for (const auto& group_ : optimizers.optimizers[i]->param_groups())
      for (const auto& p : group_.params()) add(c10::str("parameter ", number++, " of optimizer ", i), p);
  }
}

std::uint64_t Trainer::Run::learning() {
  const auto indices = [this]() -> std::optional<std::vector<std::size_t>> {
    std::vector<std::size_t> all;
    for (const auto& optimizer : optimizers.optimizers) {
      for (const auto& group_ : optimizer->param_groups())
        for (const auto& p : group_.params()) {
          const auto found = parameter_index.find(p.unsafeGetTensorImpl());
          if (found == parameter_index.end()) return std::nullopt;
          all.push_back(found->second);
        }
      all.push_back(SIZE_MAX);
    }
    return all;
  };
  auto of_optimizers = indices();
  if (!of_optimizers) {
    find_parameters();
    of_optimizers = indices();
  }
  std::string text(reinterpret_cast<const char*>(of_optimizers->data()), of_optimizers->size() * sizeof(std::size_t));
  for (const auto& p : parameters) text += p.requires_grad() ? '1' : '0';
  return io::checksum(text);
}

io::Json Trainer::Run::learning_by_name() const {
  io::Json all = io::Json::object();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    all[parameter_names[i]] = parameters[i].requires_grad() ? "learns" : "rests";
  for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i)
    for (const auto& group_ : optimizers.optimizers[i]->param_groups())
      for (const auto& p : group_.params())
        all[parameter_names[parameter_index.at(p.unsafeGetTensorImpl())]] =
            c10::str(p.requires_grad() ? "learns" : "rests", " in optimizer ", i);
  return all;
}

/// The norm has the same bits where all gradients have: what no strategy averaged is seen in it.
void Trainer::Run::remember_gradients(double norm) {
  if (group == nullptr) return;
  had_gradient.clear();
  std::string text = std::isfinite(norm) ? std::to_string(std::bit_cast<std::uint64_t>(norm)) : "not finite";
  for (const auto& p : parameters) {
    had_gradient.push_back(p.grad().defined());
    text += had_gradient.back() ? '1' : '0';
  }
  gradients = io::checksum(text);
}

void Trainer::Run::check_gradients() const {
  if (group == nullptr) return;
  const double own = std::bit_cast<double>(gradients);
  const auto all = runtime::distributed::all_gather({&own, 1}, *group);
  if (!std::ranges::all_of(all, [&](double other) { return std::bit_cast<std::uint64_t>(other) == gradients; }))
    fail_gradients();
}

void Trainer::Run::fail_gradients() const {
  const std::string what = c10::str("trainer, step ", step, ": a gradient that was not averaged over the ranks");
  io::Json values = io::Json::object();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    values[parameter_names[i]] = c10::str(i < had_gradient.size() && had_gradient[i] ? "a" : "no", " gradient, values ",
                                          values_checksum(parameters[i]));
  runtime::distributed::check_same(values, *group, what.c_str());
  TORCH_CHECK(false, "[", what, "] the norm of the gradients differs from rank to rank");
}

void Trainer::Run::on_first(const std::function<void()>& f) const { runtime::distributed::on_first(f, group.get()); }

}  // namespace fp8::trainer
