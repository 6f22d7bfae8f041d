// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/session.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "fp8/measure/calibration/exit_dump.h"
#include "fp8/measure/calibration/module_watcher.h"
#include "fp8/measure/calibration/weight_watcher.h"
#include "fp8/measure/model/script_nodes.h"
#include "fp8/measure/observers/observer_states.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/ops/common/arguments.h"

namespace fp8::measure {
namespace {

constexpr std::size_t kMaxReported = 10000;  // a broken model on a long run must not fill the memory with reports

bool is_cache(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  return known != nullptr && known->kind == configs::ModuleKind::kv_cache;
}

bool is_default_type(const std::string&, const std::string& type) { return type == "Linear" || type == "Conv2d"; }

WeightWatcher* watcher_on(const at::Tensor& weight) {
  const auto* tag = runtime::find_tag(weight);
  return tag != nullptr ? dynamic_cast<WeightWatcher*>(tag->handler.get()) : nullptr;
}

ModuleWatcher* watcher_in(const OpNode& node) { return dynamic_cast<ModuleWatcher*>(node.slot->handler.get()); }

void check_weight(const WeightModule& m) {
  TORCH_CHECK(m.weight.device().is_hpu(), "[measure] ", m.name, ": expected the weight on hpu, found it on ",
              m.weight.device());
  TORCH_CHECK(!c10::isFloat8Type(m.weight.scalar_type()), "[measure] ", m.name, ": the weight is ",
              m.weight.scalar_type(), " already; measure the high precision model");
  TORCH_CHECK(m.weight.is_contiguous(), "[measure] ", m.name, ": expected a contiguous weight, found strides ",
              m.weight.strides());
}

void check_op(const OpNode& node) {
  TORCH_CHECK(node.slot->handler == nullptr || watcher_in(node) != nullptr, "[measure] ", node.name,
              ": is handled already (", node.slot->handler->describe(), "); measure the high precision model");
}

ObserverSettings settings_of(const CalibrationOptions& o) {
  ObserverSettings settings{find_observer(o.observer), {}};
  settings.context.format = o.format;
  settings.context.fp8_max = o.fp8_max;
  settings.context.parameters = o.parameters;
  settings.context.affordable = true;
  settings.context.folder = std::filesystem::path(o.prefix).parent_path();
  settings.context.rank = o.rank;
  settings.context.bytes_saved = std::make_shared<std::atomic<std::int64_t>>(0);
  settings.type.make(settings.context);  // throws for parameters it can't use: now, not in the first forward
  return settings;
}

}  // namespace

CalibrationSession::CalibrationSession(CalibrationOptions options)
    : options_(std::move(options)),
      observers_(settings_of(options_)),
      files_(options_.prefix, {options_.observer, options_.rank}) {}

std::shared_ptr<CalibrationSession> CalibrationSession::attach(const torch::nn::Module& model,
                                                               CalibrationOptions options) {
  return attach(weight_modules(model), op_nodes(model), std::move(options));
}
std::shared_ptr<CalibrationSession> CalibrationSession::attach(const torch::jit::Module& model,
                                                               CalibrationOptions options) {
  // Finding the nodes of a script rewrites its code: only for who wants them.
  const bool ops = static_cast<bool>(options.select);
  return attach(weight_modules(model), ops ? op_nodes(model) : std::vector<OpNode>(), std::move(options));
}

std::shared_ptr<CalibrationSession> CalibrationSession::attach(const std::vector<WeightModule>& weights,
                                                               const std::vector<OpNode>& ops,
                                                               CalibrationOptions options) {
  auto session = create(weights, ops, std::move(options), /*in_stages=*/false);
  if (!session->options_.prefix.empty()) ExitDump::at_exit(session);
  return session;
}

std::shared_ptr<CalibrationSession> CalibrationSession::plan(const std::vector<WeightModule>& weights,
                                                             const std::vector<OpNode>& ops,
                                                             CalibrationOptions options) {
  options.sample_interval = 0;  // what is known of half the model is no measurement
  return create(weights, ops, std::move(options), /*in_stages=*/true);
}

std::shared_ptr<CalibrationSession> CalibrationSession::create(const std::vector<WeightModule>& weights,
                                                               const std::vector<OpNode>& ops,
                                                               CalibrationOptions options, bool in_stages) {
  if (!options.select) options.select = is_default_type;
  std::vector<const WeightModule*> selected_weights;         // all are checked before the first one is touched
  std::vector<std::pair<const OpNode*, bool>> selected_ops;  // true: kept aside
  for (const auto& m : weights) {
    if (!options.select(m.name, m.type)) continue;
    if (!in_stages) check_weight(m);
    selected_weights.push_back(&m);
  }
  for (const auto& node : ops) {
    const bool selected = options.select(node.name, node.type);
    if (!selected && !(options.kv_cache && is_cache(node.type) && options.kv_cache(node.name))) continue;
    check_op(node);
    selected_ops.emplace_back(&node, !selected);
  }
  options.select = nullptr;  // they may refer to what the caller has on its stack
  options.kv_cache = nullptr;
  const io::Json resume = std::exchange(options.resume, nullptr);
  std::shared_ptr<CalibrationSession> session(new CalibrationSession(std::move(options)));
  session->in_stages_ = in_stages;
  session->records_.reserve(selected_weights.size() + selected_ops.size());
  for (const auto* m : selected_weights) {
    session->by_name_.emplace(m->name, session->records_.size());
    session->records_.emplace_back(m->name, m->type, m->weight.dim(), session->options_.inputs,
                                   session->options_.outputs);
  }
  session->looked_at_.resize(selected_weights.size());
  for (const auto& [node, aside] : selected_ops) session->add_op(*node, aside);
  if (!resume.is_null()) session->restore(resume);
  std::map<const void*, std::shared_ptr<WeightWatcher>> by_memory;  // tied weights share one watcher
  for (std::size_t i = 0; i < selected_weights.size() && !in_stages; ++i)
    session->add_weight(i, *selected_weights[i], by_memory);
  return session;
}

void CalibrationSession::enter(const std::vector<WeightModule>& weights) {
  std::map<const void*, std::shared_ptr<WeightWatcher>> by_memory;
  for (const auto& m : weights) {
    const auto record = record_of(m.name);
    if (!record.has_value()) continue;
    check_weight(m);
    add_weight(*record, m, by_memory);
  }
}

void CalibrationSession::leave(const std::vector<WeightModule>& weights) {
  for (const auto& m : weights) {
    WeightWatcher* watcher = watcher_on(m.weight);
    if (watcher == nullptr || watcher->session().get() != this) continue;
    watcher->retire();
    runtime::untag_weight(m.weight);
  }
  std::erase_if(watchers_, [](const auto& weak) { return weak.expired(); });
}

/// The weight of record `index` is in memory.
void CalibrationSession::add_weight(std::size_t index, const WeightModule& m,
                                    std::map<const void*, std::shared_ptr<WeightWatcher>>& by_memory) {
  if (!looked_at_[index]) {
    if (options_.weights) show(index, TensorRole::weight, 0, m.weight);
    if (records_[index].is_holder()) show(index, TensorRole::input, 0, at::zeros({1, 1}));
    if (runtime::ops::is_high_precision(m.weight.scalar_type())) {
      weights_[index] = fingerprint_of(m.name, runtime::cpu_alias(m.weight.detach()).const_data_ptr(),
                                       runtime::ops::float_type_of(m.weight.scalar_type()), m.weight.sizes().vec());
    }
    looked_at_[index] = true;
  }
  auto& watcher = by_memory[m.weight.const_data_ptr()];
  if (!watcher) {
    watcher = std::make_shared<WeightWatcher>(shared_from_this(), m.bias);
    watchers_.push_back(watcher);
  }
  if (records_[index].observes_calls()) watcher->add_record(index);
  runtime::tag_weight(m.weight, m.name, watcher);
}

void CalibrationSession::add_op(const OpNode& node, bool aside) {
  const auto watcher = std::make_shared<ModuleWatcher>(shared_from_this(), records_.size());
  records_.emplace_back(node.name, node.type, 0, options_.inputs || aside, options_.outputs && !aside);
  if (aside) records_.back().keep_aside();
  op_watchers_.push_back(watcher);
  node.slot->handler = watcher;
}

namespace {

std::shared_ptr<CalibrationSession> session_of(const std::vector<WeightModule>& weights,
                                               const std::vector<OpNode>& ops) {
  for (const auto& m : weights) {
    const auto* watcher = watcher_on(m.weight);
    if (auto session = watcher != nullptr ? watcher->session() : nullptr) return session;
  }
  for (const auto& node : ops) {
    const auto* watcher = watcher_in(node);
    if (auto session = watcher != nullptr ? watcher->session() : nullptr) return session;
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::nn::Module& model) {
  return session_of(weight_modules(model), op_nodes(model));
}
std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::jit::Module& model) {
  auto session = session_of(weight_modules(model), {});
  return session != nullptr ? session : session_of({}, op_nodes(model));
}

CalibrationSession::~CalibrationSession() { write_if_unfinished("a destroyed model"); }

void CalibrationSession::write_if_unfinished(const char* of_what) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (finalized_ || in_stages_) return;
    finalized_ = true;
    write_locked();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fp8: error: measurements of %s were not written: %s\n", of_what, error.what());
  }
}

void CalibrationSession::begin_samples(std::int64_t first, std::int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!finalized_) dump_if_due(samples_);
  first_sample_ = first;
  batch_ = count;
  samples_ = std::max(samples_, first + count);
  memory_.clear();
}

/// `done` samples are through: writes the files if sample_interval says so.
void CalibrationSession::dump_if_due(std::int64_t done) {
  if (options_.sample_interval <= 0 || done / options_.sample_interval <= dumps_) return;
  write_locked();
  dumps_ = done / options_.sample_interval;
}

/// Who does not say which samples come counts forwards: whenever the module that was called first is called again.
void CalibrationSession::count_forward(std::size_t record) {
  if (options_.sample_interval <= 0 || samples_ > 0) return;
  if (!first_called_.has_value()) first_called_ = record;
  if (*first_called_ != record) return;
  dump_if_due(forwards_);
  ++forwards_;
}

bool CalibrationSession::finite(const std::string& module, TensorRole role, std::size_t index, const at::Tensor& t,
                                float amax) {
  if (std::isfinite(amax)) return true;
  if (non_finite_.size() >= kMaxReported) return false;
  std::int64_t sample = role == TensorRole::weight ? -1 : first_sample_;
  if (sample >= 0 && batch_ > 1 && t.dim() > 1 && t.size(0) % batch_ == 0) {  // which of the batch it was
    const std::int64_t rows = t.size(0) / batch_;
    for (std::int64_t i = 0; i < batch_; ++i) {
      if (!std::isfinite(amax_of(t.narrow(0, i * rows, rows)))) {
        sample = first_sample_ + i;
        break;
      }
    }
  }
  const std::string name = role == TensorRole::weight ? "weight" : role == TensorRole::input ? "input" : "output";
  non_finite_.push_back({module, index == 0 ? name : name + std::to_string(index), sample, std::isnan(amax)});
  return false;
}

void CalibrationSession::show(std::size_t record, TensorRole role, std::size_t index, const at::Tensor& t) {
  WatchedNode& node = records_[record];
  if (!t.defined() || !node.observes(role)) return;
  TensorMemory::Entry alone;  // a weight is looked at once, and remembering it would keep its tag alive
  if (role == TensorRole::weight && observers_.type.reads_values) alone.amax = amax_of(t);
  auto& entry = role == TensorRole::weight ? alone : memory_.find(t, observers_.type.reads_values);
  if (!finite(node.module(), role, index, t, entry.amax)) return;
  WatchedTensor& watched = node.tensor(role, index, observers_);
  watched.observer->observe(Observed(runtime::cpu_alias(t.detach()), entry.amax, &entry.memo));
  watched.seen = true;
}

void CalibrationSession::observe(const std::vector<std::size_t>& records, const std::vector<at::Tensor>& inputs,
                                 const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finalized_) return;
  const auto start = std::chrono::steady_clock::now();
  for (const std::size_t record : records) {
    if (!inputs.empty()) count_forward(record);
    for (std::size_t i = 0; i < inputs.size(); ++i) show(record, TensorRole::input, i, inputs[i]);
    for (std::size_t i = 0; i < outputs.size(); ++i) show(record, TensorRole::output, i, outputs[i]);
  }
  watch_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void CalibrationSession::observe_output(const std::vector<std::size_t>& records, std::size_t index,
                                        const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finalized_) return;
  for (const std::size_t record : records) {
    if (records_[record].kind() == configs::ModuleKind::row_parallel_linear) show(record, TensorRole::output, index, y);
  }
}

MeasurementFile CalibrationSession::result_locked() const {
  MeasurementFile file;
  if (samples_ > 0) file.num_samples = samples_;
  if (samples_ == 0 && forwards_ > 0) file.num_samples = forwards_;
  file.observer = options_.observer;
  if (options_.observer == "shape") file.mode = MeasurementMode::shape;
  if (!weights_.empty()) file.model.emplace();
  for (const auto& [record, weight] : weights_) file.model->weights.push_back(weight);
  for (const WatchedNode& node : records_) {
    if (!node.is_aside()) file.selected.push_back(node.module());
    if (auto m = node.measurement()) (node.is_aside() ? file.kv_cache : file.modules).push_back(std::move(*m));
  }
  return file;
}

std::vector<std::filesystem::path> CalibrationSession::write_locked() {
  if (options_.prefix.empty()) return {};
  const MeasurementFile file = result_locked();
  io::Json states;
  if (observers_.type.keeps_state) {
    ObserverStates all{options_.observer, options_.format, options_.fp8_max, options_.parameters, {}};
    std::size_t next = 0;  // file.modules are those of records_ that were called, in the same order
    for (const WatchedNode& node : records_) {
      if (next == file.modules.size() || file.modules[next].module != node.module()) continue;
      all.nodes[node.module()] = node.states();
      ++next;
    }
    states = to_json(all);
  }
  return files_.write(file, states);
}

MeasurementFile CalibrationSession::result() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return result_locked();
}

std::vector<NonFinite> CalibrationSession::non_finite() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return non_finite_;
}

double CalibrationSession::watch_seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return watch_seconds_;
}

std::int64_t CalibrationSession::samples() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return samples_;
}

/// Ends the session. `lock` holds mutex_ and is let go before the watchers' locks are taken.
void CalibrationSession::take_off(std::unique_lock<std::mutex> lock) {
  const auto self = shared_from_this();  // the watchers' references go away below
  finalized_ = true;
  memory_.clear();
  lock.unlock();
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->retire();
  }
  for (const auto& weak : op_watchers_) {
    if (const auto watcher = weak.lock()) watcher->retire();
  }
}

std::vector<std::filesystem::path> CalibrationSession::finalize() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (finalized_) return {};
  auto paths = write_locked();
  take_off(std::move(lock));
  return paths;
}

void CalibrationSession::discard() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!finalized_) take_off(std::move(lock));
}

void observe_reduced(const at::Tensor& weight, const at::Tensor& y) {
  const WeightWatcher* watcher = watcher_on(weight);
  if (const auto session = watcher != nullptr ? watcher->session() : nullptr)
    session->observe_output(watcher->records(), 1, y);
}

namespace {

std::vector<std::filesystem::path> finalize_model(const std::shared_ptr<CalibrationSession>& session,
                                                  const std::vector<WeightModule>& weights,
                                                  const std::vector<OpNode>& ops) {
  TORCH_CHECK(session != nullptr,
              "[finalize_calibration] expected a model that is being calibrated, found no watcher on its weights");
  auto paths = session->finalize();
  for (const auto& m : weights) {
    const WeightWatcher* watcher = watcher_on(m.weight);  // another calibration's stays
    if (watcher != nullptr && watcher->session() == nullptr) runtime::untag_weight(m.weight);
  }
  for (const auto& node : ops) {
    const ModuleWatcher* watcher = watcher_in(node);
    if (watcher != nullptr && watcher->session() == nullptr) node.slot->handler.reset();
  }
  return paths;
}

}  // namespace

std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model) {
  return finalize_model(CalibrationSession::of(model), weight_modules(model), op_nodes(model));
}
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model) {
  const auto session = CalibrationSession::of(model);
  const bool ops = session != nullptr && session->watches_ops();
  return finalize_model(session, weight_modules(model), ops ? op_nodes(model) : std::vector<OpNode>());
}

}  // namespace fp8::measure
