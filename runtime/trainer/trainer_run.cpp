// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/trainer_run.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "fp8/runtime/device/memory_report.h"
#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/distributed/exchange.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/trainer/one_batch.h"
#include "fp8/runtime/trainer/optimizer_state.h"
#include "fp8/runtime/trainer/run_length.h"

namespace fp8::trainer {
namespace {

constexpr std::size_t kRecent = 20;
constexpr int kFormat = 1;

io::Json to_json(const StepReport& r) {
  return {{"epoch", r.epoch},
          {"batches", r.batches},
          {"samples", r.samples},
          {"tokens", r.tokens},
          {"loss", io::number_or_text(r.loss)},
          {"lr", r.lr},
          {"grad_norm", io::number_or_text(r.grad_norm)},
          {"seconds", r.seconds},
          {"tokens_per_second", r.tokens_per_second},
          {"skipped", r.skipped},
          {"loss_scale", r.loss_scale ? io::Json(*r.loss_scale) : io::Json()},
          {"anomaly", r.anomaly}};
}

StepReport report_from(const io::Json& json, std::int64_t step) {
  StepReport r{step, json.at("epoch"), json.at("batches"), json.at("samples"), json.at("tokens")};
  r.loss = io::number_or_nan(json.at("loss"));
  r.lr = json.at("lr");
  r.grad_norm = io::number_or_nan(json.at("grad_norm"));
  r.seconds = json.at("seconds");
  r.tokens_per_second = json.at("tokens_per_second");
  r.skipped = json.at("skipped");
  if (!json.at("loss_scale").is_null()) r.loss_scale = json.at("loss_scale").get<double>();
  r.anomaly = json.at("anomaly");
  return r;
}

/// How the source's batches are shared out; one rank, and ranks with sources of their own, take them as they come.
BatchShare share_of(const TrainerOptions& options) {
  if (options.group == nullptr || !options.strategy.use_distributed_sampler) return {};
  return {options.group->rank(), options.group->size()};
}

std::string optimizer_name(std::size_t index) { return "optimizer." + std::to_string(index); }

}  // namespace

Trainer::Run::Run(TrainingModule& module_, BatchSource& train_, BatchSource* val_, const TrainerOptions& options)
    : module(module_),
      train(train_),
      val(val_),
      group(options.group != nullptr && options.group->size() > 1 ? options.group : nullptr),
      share(share_of(options)),
      overfits(trainer::overfits(options)),
      batch_limit(batches_of_epoch(options, share.groups(0, train_.batches()))),
      train_batches(batch_limit) {
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
      throw std::invalid_argument("[trainer] optimizer " + std::to_string(i) + ": found " +
                                  std::to_string(groups.size()) + " groups, expected " +
                                  std::to_string(base_rates[i].size()) + ", as when training began (lr_factor)");
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

void Trainer::Run::meet() {
  parameters_met = parameters.size();
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
  if (group != nullptr && parameters_met < parameters.size()) {
    io::Json joined = io::Json::object();
    for (std::size_t i = parameters_met; i < parameters.size(); ++i)
      joined[parameter_names[i]] = c10::str(parameters[i].scalar_type(), parameters[i].sizes(),
                                            " with values of checksum ", values_checksum(parameters[i]));
    runtime::distributed::check_same(joined, *group, "trainer, parameters that join");
  }
  parameters_met = parameters.size();
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

io::Json Trainer::Run::who_learns() const {
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
  io::Json facts = io::Json::object();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    facts[parameter_names[i]] = c10::str(i < had_gradient.size() && had_gradient[i] ? "a" : "no", " gradient, values ",
                                         values_checksum(parameters[i]));
  runtime::distributed::check_same(facts, *group, what.c_str());
  TORCH_CHECK(false, "[", what, "] the norm of the gradients differs from rank to rank");
}

void Trainer::Run::on_first(const std::function<void()>& f) const {
  if (group == nullptr) return f();
  runtime::distributed::from_first(
      [&] {
        f();
        return std::string();
      },
      *group);
}

TrainingState Trainer::Run::own_state() const {
  TrainingState own;
  for_each_tensor(module.network(), [&](const std::string& name, const at::Tensor& tensor) {
    if (name.starts_with("buffer.")) own.tensors[name] = tensor.detach();
  });
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  {
    const std::lock_guard lock(generator.mutex());
    own.tensors["rng.cpu"] = generator.get_state();
  }
  auto extra = module.extra_state();
  own.json["extra"] = std::move(extra.json);
  for (auto& [name, tensor] : extra.tensors) own.tensors["extra." + name] = std::move(tensor);
  return own;
}

TrainingState Trainer::Run::state(TrainingState own) const {
  TrainingState state = std::move(own);
  state.json.update({{"format", kFormat},
                     {"step", step},
                     {"epoch", epoch},
                     {"batch", batch},
                     {"samples", samples},
                     {"tokens", tokens},
                     {"skipped", skipped},
                     {"recent_losses", recent},
                     {"val_loss", nullptr},
                     {"ranks", group != nullptr ? group->size() : 1},
                     {"shares", {{"size", share.size}, {"offset", share.offset_of(epoch)}}},
                     {"schedulers", scheduler_steps}});
  if (val_loss) state.json["val_loss"] = *val_loss;
  if (unvalidated) state.json["unvalidated"] = to_json(*unvalidated);
  if (scaler) state.json["grad_scaler"] = scaler->state();
  for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i)
    save_optimizer(*optimizers.optimizers[i], module.network(), optimizer_name(i), state);
  for_each_tensor(module.network(), [&](const std::string& name, const at::Tensor& tensor) {
    if (name.starts_with("parameter.")) state.tensors[name] = tensor.detach();
  });
  return state;
}

/// On another number of ranks the next batch is the one that nobody has taken.
void Trainer::Run::find_place(const io::Json& shares) {
  const BatchShare before{0, shares.value("size", 1), epoch, shares.value("offset", std::int64_t{0})};
  if (before.size < 1 || before.offset < 0 || before.offset >= before.size)
    throw io::Error("[trainer] checkpoint: shares " + shares.dump() + ", allowed: an offset below the size");
  if (before.size == share.size) {
    share.offset_epoch = epoch;
    share.offset = before.offset;
    return begin_epoch();
  }
  batch = share.go_to(epoch, std::max(std::int64_t{0}, before.taken(epoch, batch)), train.batches());
  begin_epoch();
  batch = std::min(batch, train_batches);
}

void Trainer::Run::restore(const TrainingState& state) {
  at::NoGradGuard no_grad;
  const auto& json = state.json;
  try {
    if (json.at("format") != kFormat)
      throw io::Error("[trainer] checkpoint: format " + json.at("format").dump() +
                      ", allowed: " + std::to_string(kFormat));
    step = json.at("step");
    epoch = json.at("epoch");
    batch = json.at("batch");
    find_place(json.value("shares", io::Json::object()));
    whole_batch = batch;
    samples = json.at("samples");
    tokens = json.at("tokens");
    skipped = json.at("skipped");
    recent = json.at("recent_losses").get<std::deque<double>>();
    if (!json.at("val_loss").is_null()) val_loss = json.at("val_loss").get<double>();
    if (val != nullptr && json.contains("unvalidated")) unvalidated = report_from(json["unvalidated"], step);
    if (scaler) scaler->load(json.value("grad_scaler", io::Json()));
    load_network(module.network(), state);
    module.load_extra_state(extra_of(state));
  } catch (const io::Json::exception& error) {
    throw io::Error(std::string("[trainer] checkpoint, ") + HPUCheckpointIO::kJson + ": " + error.what());
  }
  if (step < 0 || epoch < 0 || batch < 0 || batch > train_batches)
    throw io::Error("[trainer] checkpoint: step " + std::to_string(step) + ", epoch " + std::to_string(epoch) +
                    ", batch " + std::to_string(batch) + " is not a place in " + std::to_string(train_batches) +
                    " batches an epoch");
}

void Trainer::Run::restore_optimizers() {
  find_base_rates();  // before the state's, which a schedule has moved
  if (!resumed_from) return;
  const at::NoGradGuard no_grad;
  const TrainingState state = *std::exchange(resumed_from, std::nullopt);
  try {
    const auto steps = state.json.at("schedulers").get<std::vector<std::int64_t>>();
    if (steps.size() != scheduler_steps.size())
      throw io::Error("[trainer] checkpoint: " + std::to_string(steps.size()) + " schedulers, the module has " +
                      std::to_string(scheduler_steps.size()));
    for (const auto taken : steps)
      if (taken < 0 || taken > step)
        throw io::Error("[trainer] checkpoint: a scheduler of " + std::to_string(taken) +
                        " steps, allowed: 0 to step " + std::to_string(step));
    // A scheduler keeps nothing but its count; the rates that it set are in the optimizer's state, loaded below.
    for (std::size_t i = 0; i < steps.size(); ++i)
      for (; scheduler_steps[i] < steps[i]; ++scheduler_steps[i]) optimizers.schedulers[i].scheduler->step();
    const auto device = parameters.empty() ? c10::Device(at::kCPU) : parameters[0].device();
    for (std::size_t i = 0; i < optimizers.optimizers.size(); ++i)
      load_optimizer(*optimizers.optimizers[i], module.network(), optimizer_name(i), state, device);
  } catch (const io::Json::exception& error) {
    throw io::Error(std::string("[trainer] checkpoint, ") + HPUCheckpointIO::kJson + ": " + error.what());
  }
  const auto rng = state.tensors.find("rng.cpu");
  if (rng == state.tensors.end()) throw io::Error("[trainer] checkpoint: tensor 'rng.cpu' is missing");
  auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_state(rng->second);
}

}  // namespace fp8::trainer
