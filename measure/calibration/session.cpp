// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/session.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include "fp8/measure/calibration/watchers.h"

namespace fp8::measure {
namespace {

bool is_default_type(const std::string& type) { return type == "Linear" || type == "Conv2d"; }

ModuleWatcher* watcher_in(const OpNode& node) { return runtime::handler_as<ModuleWatcher>(node.slot->handler.get()); }

void check_op(const OpNode& node) {
  TORCH_CHECK(node.slot->handler == nullptr || watcher_in(node) != nullptr, "[measure] ", node.name,
              ": is handled already (", node.slot->handler->describe(), "); measure the high precision model");
}

std::shared_ptr<CalibrationSession> session_of(const std::shared_ptr<Recorder>& recorder) {
  return recorder != nullptr ? recorder->session().shared_from_this() : nullptr;
}

std::shared_ptr<CalibrationSession> session_of(const std::vector<WeightModule>& weights,
                                               const std::vector<OpNode>& ops) {
  for (const auto& m : weights) {
    const auto* watcher = watcher_on(m.weight);
    if (auto session = watcher != nullptr ? session_of(watcher->recorder()) : nullptr) return session;
  }
  for (const auto& node : ops) {
    const auto* watcher = watcher_in(node);
    if (auto session = watcher != nullptr ? session_of(watcher->recorder()) : nullptr) return session;
  }
  return nullptr;
}

std::vector<std::filesystem::path> finalize_model(const std::shared_ptr<CalibrationSession>& session,
                                                  const std::vector<WeightModule>& weights,
                                                  const std::vector<OpNode>& ops) {
  TORCH_CHECK(session != nullptr,
              "[finalize_calibration] expected a model that is being calibrated, found no watcher on its weights");
  auto paths = session->finalize();
  for (const auto& m : weights) remove_retired(m.weight);
  for (const auto& node : ops) {
    const ModuleWatcher* watcher = watcher_in(node);
    if (watcher != nullptr && watcher->recorder() == nullptr) node.slot->handler.reset();
  }
  return paths;
}

}  // namespace

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
  const Selection selection = select(weights, ops, options, /*in_memory=*/true);
  const bool writes = !options.prefix.empty();
  std::shared_ptr<CalibrationSession> session(new CalibrationSession(std::move(options)));
  session->begin(selection);
  WatchersByMemory watchers;
  for (std::size_t i = 0; i < selection.weights.size(); ++i) session->watch(i, *selection.weights[i], watchers);
  session->attached_ = true;
  if (writes) ExitDump::at_exit(session);
  return session;
}

/// All are checked before the first one is touched.
CalibrationSession::Selection CalibrationSession::select(const std::vector<WeightModule>& weights,
                                                         const std::vector<OpNode>& ops,
                                                         const CalibrationOptions& options, bool in_memory) {
  Selection selection;
  const auto selected = [&](const std::string& name, const std::string& type) {
    return options.select ? options.select(name, type) : is_default_type(type);
  };
  for (const auto& m : weights) {
    if (!selected(m.name, m.type)) continue;
    if (in_memory) check_watchable(m);
    selection.weights.push_back(&m);
  }
  for (const auto& node : ops) {
    const bool aside = !selected(node.name, node.type);
    if (aside &&
        !(options.kv_cache && configs::type_is(node.type, &configs::KindInfo::cache) && options.kv_cache(node.name)))
      continue;
    check_op(node);
    selection.ops.emplace_back(&node, aside);
  }
  return selection;
}

void CalibrationSession::begin(const Selection& selection) {
  for (const auto* m : selection.weights) recorder_.add(*m);
  for (const auto& [node, aside] : selection.ops) recorder_.add(*node, aside);
  recorder_.resume();
  std::size_t record = selection.weights.size();
  for (const auto& [node, aside] : selection.ops) {
    const auto watcher = std::make_shared<ModuleWatcher>(recorder(), record++);
    op_watchers_.push_back(watcher);
    node->slot->handler = watcher;
  }
}

void CalibrationSession::watch(std::size_t record, const WeightModule& m, WatchersByMemory& watchers) {
  recorder_.look_at(record, m);
  auto& watcher = watchers[runtime::cpu_alias(m.weight).const_data_ptr()];
  if (!watcher) {
    watcher = std::make_shared<WeightWatcher>(recorder(), m.bias);
    watchers_.push_back(watcher);
  }
  if (!recorder_.info_of(record).lookup) watcher->add_record(record);
  runtime::tag_weight(m.weight, m.name, watcher);
}

std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::nn::Module& model) {
  return session_of(weight_modules(model), op_nodes(model));
}
std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::jit::Module& model) {
  auto session = session_of(weight_modules(model), {});
  return session != nullptr ? session : session_of({}, op_nodes(model));
}

void CalibrationSession::write_if_unfinished(const char* of_what) noexcept {
  if (!attached_) return;
  try {
    recorder_.finish(/*write_files=*/true);
  } catch (const std::exception& error) {
    recorder_.finish(/*write_files=*/false);  // it is not tried twice
    std::fprintf(stderr, "fp8: error: measurements of %s were not written: %s\n", of_what, error.what());
  }
}

std::vector<std::filesystem::path> CalibrationSession::finalize() {
  auto paths = recorder_.finish(/*write_files=*/true);
  if (!paths.has_value()) return {};
  retire_watchers();
  return *std::move(paths);
}

void CalibrationSession::discard() {
  if (recorder_.finish(/*write_files=*/false).has_value()) retire_watchers();
}

void CalibrationSession::retire_watchers() {
  const auto self = shared_from_this();  // the watchers' references go away below
  for (const auto& weak : watchers_)
    if (const auto watcher = weak.lock()) watcher->retire();
  for (const auto& weak : op_watchers_)
    if (const auto watcher = weak.lock()) watcher->retire();
}

void observe_reduced(const at::Tensor& weight, const at::Tensor& y) {
  const WeightWatcher* watcher = watcher_on(weight);
  const auto recorder = watcher != nullptr ? watcher->recorder() : nullptr;
  if (recorder != nullptr && !watcher->records().empty() && recorder->info_of(watcher->records()[0]).reduces)
    recorder->observe_output(watcher->records(), 1, y);
}

std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model) {
  return finalize_model(CalibrationSession::of(model), weight_modules(model), op_nodes(model));
}
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model) {
  const auto session = CalibrationSession::of(model);
  const bool ops = session != nullptr && session->watches_ops();
  return finalize_model(session, weight_modules(model), ops ? op_nodes(model) : std::vector<OpNode>());
}

std::shared_ptr<StagedCalibration> StagedCalibration::plan(const std::vector<WeightModule>& weights,
                                                           const std::vector<OpNode>& ops, CalibrationOptions options) {
  options.sample_interval = 0;
  const Selection selection = select(weights, ops, options, /*in_memory=*/false);
  std::shared_ptr<StagedCalibration> session(new StagedCalibration(std::move(options)));
  session->begin(selection);
  for (std::size_t i = 0; i < selection.weights.size(); ++i) session->records_.emplace(selection.weights[i]->name, i);
  return session;
}

void StagedCalibration::enter(const std::vector<WeightModule>& weights) {
  WatchersByMemory watchers;
  for (const auto& m : weights) {
    const auto record = record_of(m.name);
    if (!record.has_value()) continue;
    check_watchable(m);
    watch(*record, m, watchers);
  }
}

void StagedCalibration::leave(const std::vector<WeightModule>& weights) {
  for (const auto& m : weights) {
    WeightWatcher* watcher = watcher_on(m.weight);
    if (watcher == nullptr || watcher->recorder().get() != &recorder_) continue;
    watcher->retire();
    runtime::untag_weight(m.weight);
  }
  std::erase_if(watchers_, [](const auto& weak) { return weak.expired(); });
}

std::optional<std::size_t> StagedCalibration::record_of(const std::string& module) const {
  const auto found = records_.find(module);
  return found != records_.end() ? std::optional(found->second) : std::nullopt;
}

bool StagedCalibration::keeps_states() const {
  const ObserverType& type = recorder_.observers_.type;
  return type.kept != Kept::tensors && !type.make(recorder_.observers_.context)->state().is_null();
}

void StagedCalibration::look_at_part(const WeightModule& weight, const at::Tensor& part, std::int64_t first) {
  if (const auto record = record_of(weight.name)) recorder_.look_at_part(*record, weight, part, first);
}

/// Every entry belongs to a session; those of sessions that ended are dropped. The end of the program destroys the
/// list.
struct ExitDump::List {
  std::mutex mutex;
  std::vector<std::weak_ptr<CalibrationSession>> sessions;
  const pid_t process = ::getpid();  // a child made by fork() has a copy, which is the parent's to write

  ~List() {
    if (::getpid() != process) return;
    for (const auto& weak : sessions)
      if (const auto session = weak.lock()) session->write_if_unfinished("a program that ended");
  }
};

void ExitDump::at_exit(const std::shared_ptr<CalibrationSession>& session) {
  static List list;
  const std::lock_guard<std::mutex> lock(list.mutex);
  const auto ended = [](const auto& weak) { return weak.expired(); };
  list.sessions.erase(std::remove_if(list.sessions.begin(), list.sessions.end(), ended), list.sessions.end());
  list.sessions.push_back(session);
}

}  // namespace fp8::measure
