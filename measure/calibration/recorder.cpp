// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration/recorder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::measure {

using configs::ModuleKind;

namespace {

bool all_seen(const std::vector<WatchedTensor>& tensors) {
  return std::ranges::all_of(tensors, [](const WatchedTensor& t) { return t.seen; });
}

std::vector<Amax> results(const std::vector<WatchedTensor>& tensors) {
  std::vector<Amax> list;
  for (const auto& t : tensors) list.push_back(t.observer->result());
  return list;
}

ModuleKind kind_of(const std::string& type) {
  const auto* known = configs::find_module_type(type);
  if (known == nullptr) io::fail<io::Error>("[measure] type {} can't be measured", io::in_quotes(type));
  return known->kind;
}

constexpr std::size_t kMaxReported = 10000;  // a broken model on a long run must not fill the memory with reports

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

WatchedNode::WatchedNode(std::string module, const std::string& type, std::int64_t weight_dims, bool inputs,
                         bool outputs)
    : module_(std::move(module)),
      kind_(kind_of(type)),
      weight_dims_(weight_dims),
      holder_(type == "MoeMatmul" || type == "MoeFP8Matmul") {
  const auto& info = configs::info_of(kind_);
  watch_inputs_ = inputs && !info.lookup;
  watch_outputs_ = !info.lookup && (outputs || info.outputs_always);
  inputs_.resize(watch_inputs_ ? static_cast<std::size_t>(info.inputs) : 0);
  outputs_.resize(watch_outputs_ ? static_cast<std::size_t>(info.outputs) : 0);
}

bool WatchedNode::observes(TensorRole role) const {
  return role == TensorRole::input ? watch_inputs_ : role == TensorRole::output ? watch_outputs_ : true;
}

ObserverContext WatchedNode::context_for(TensorRole role, std::size_t index, const ObserverContext& base) const {
  const auto& info = configs::info_of(kind_);
  ObserverContext context = base;
  context.module = module_;
  context.kind = kind_;
  context.tensor =
      role == TensorRole::weight ? "weight" : (role == TensorRole::input ? "input" : "output") + std::to_string(index);
  context.channel_dim = -1;
  if (aside_) context.head_dim = -3;
  if (role == TensorRole::weight) {
    context.channel_dim = 0;
    context.per_expert = info.stacks_experts && weight_dims_ == 3;
  } else if (info.convolution) {
    context.channel_dim = 1 - weight_dims_;  // counted from the end: samples without a batch have it too
  } else if (role == TensorRole::input && index == 1 && info.product) {
    context.channel_dim = -2;
  }
  return context;
}

WatchedTensor& WatchedNode::tensor(TensorRole role, std::size_t index, const ObserverSettings& settings) {
  auto& list = role == TensorRole::input ? inputs_ : outputs_;
  if (role != TensorRole::weight && index >= list.size()) list.resize(index + 1);  // a mixture's experts
  WatchedTensor& t = role == TensorRole::weight ? weight_ : list[index];
  if (!t.observer) t.observer = settings.type.make(context_for(role, index, settings.context));
  return t;
}

std::optional<Measurement> WatchedNode::measurement() const {
  if (!all_seen(inputs_)) return std::nullopt;
  const auto& info = configs::info_of(kind_);
  Measurement m{module_, results(inputs_), std::nullopt, std::nullopt};
  if (info.reduces && watch_outputs_ && outputs_[0].seen) {
    // Without a second process what is reduced is what was computed here.
    const auto& reduced = outputs_[1].seen ? outputs_[1] : outputs_[0];
    m.outputs = std::vector<Amax>{outputs_[0].observer->result(), reduced.observer->result()};
  } else if (!outputs_.empty() && all_seen(outputs_)) {
    m.outputs = results(outputs_);
  }
  if (weight_.seen) m.weight = weight_.observer->result();
  const bool weight_alone = info.lookup && m.weight.has_value();
  const bool anything = !m.inputs.empty() || m.outputs.has_value() || weight_alone;
  return anything ? std::optional<Measurement>(std::move(m)) : std::nullopt;
}

io::Json WatchedNode::states() const {
  const auto list = [](const std::vector<WatchedTensor>& tensors) {
    io::Json states = io::Json::array();
    for (const auto& t : tensors) states.push_back(t.observer ? t.observer->state() : io::Json());
    return states;
  };
  io::Json json = {{"inputs", list(inputs_)}};
  if (!outputs_.empty() && all_seen(outputs_)) json["outputs"] = list(outputs_);
  if (weight_.seen) json["weight"] = weight_.observer->state();
  return json;
}

io::Json WatchedNode::snapshot() const {
  bool kept = true;
  const auto state_of = [&](const WatchedTensor& t) {
    io::Json state = t.seen ? t.observer->state() : io::Json();
    kept = kept && (!t.seen || !state.is_null());
    return state;
  };
  io::Json json = {{"inputs", io::Json::array()}, {"outputs", io::Json::array()}, {"weight", state_of(weight_)}};
  for (const auto& t : inputs_) json["inputs"].push_back(state_of(t));
  for (const auto& t : outputs_) json["outputs"].push_back(state_of(t));
  return kept ? json : io::Json();
}

void WatchedNode::restore(const io::Json& snapshot, const ObserverSettings& settings, const std::string& where) {
  const auto put_back = [&](TensorRole role, std::size_t index, const io::Json& state, const std::string& name) {
    if (state.is_null()) return;
    WatchedTensor& t = tensor(role, index, settings);
    t.observer->restore(state, where + "." + name);
    t.seen = true;
  };
  for (const auto& [role, key, known] : {std::tuple{TensorRole::input, "inputs", inputs_.size()},
                                         std::tuple{TensorRole::output, "outputs", outputs_.size()}}) {
    const io::Json list = snapshot.is_object() ? snapshot.value(key, io::Json()) : io::Json();
    constexpr std::size_t kMost = 1 << 16;  // outputs: one for each expert of a mixture
    if (!list.is_array() || list.size() > kMost || (known == 0 && !list.empty()))
      bad_state(where + "." + key, "a list of states", list);
    for (std::size_t i = 0; i < list.size(); ++i)
      put_back(role, i, list[i], std::string(key) + "[" + std::to_string(i) + "]");
  }
  put_back(TensorRole::weight, 0, snapshot.value("weight", io::Json()), "weight");
}

void WatchedNode::forget_outputs() {
  for (auto& t : outputs_) t = WatchedTensor();
}

float amax_of(const at::Tensor& t) {
  at::Tensor host = runtime::cpu_alias(t.detach());
  if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
  // A permuted tensor is read as it lies in memory.
  if (!host.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) host = host.contiguous();
  return kernels::amax(host.const_data_ptr(), runtime::ops::float_type_of(host.scalar_type()), host.numel());
}

TensorMemory::Entry& TensorMemory::find(const at::Tensor& t, bool read) {
  const auto look = [&] { return Entry{read ? amax_of(t) : 0.0f, {}}; };
  // Inference tensors have no version to tell whether they were written to since; a weak pointer to a watched weight
  // would keep its tag, and with it the calibration, for ever.
  if (t.is_inference() || runtime::find_tag(t) != nullptr) return uncached_ = look();
  const auto version = static_cast<std::uint32_t>(t._version());
  for (Slot& slot : slots_)
    if (slot.tensor._unsafe_get_target() == t.unsafeGetTensorImpl() && slot.version == version) return slot.entry;
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  slot.entry = look();
  slot.tensor = WeakTensor(t.getIntrusivePtr());
  slot.version = version;
  return slot.entry;
}

void TensorMemory::clear() {
  for (Slot& slot : slots_) slot = Slot();
  uncached_ = Entry();
}

Recorder::Recorder(CalibrationSession& session, CalibrationOptions options)
    : session_(session),
      options_(std::move(options)),
      observers_(settings_of(options_)),
      files_(options_.prefix, {options_.observer, options_.rank}) {
  options_.select = nullptr;  // they may refer to what the caller has on its stack
  options_.kv_cache = nullptr;
}

void Recorder::add(const WeightModule& m) {
  const std::string type = options_.reduced && configs::adds_ranks(m.type) ? "RowParallelLinear" : m.type;
  records_.push_back(Record{WatchedNode(m.name, type, m.weight.dim(), options_.inputs, options_.outputs)});
}

void Recorder::add(const OpNode& node, bool aside) {
  records_.push_back(
      Record{WatchedNode(node.name, node.type, 0, options_.inputs || aside, options_.outputs && !aside)});
  if (aside) records_.back().node.keep_aside();
}

void Recorder::observe(const std::vector<std::size_t>& records, const std::vector<at::Tensor>& inputs,
                       const std::vector<at::Tensor>& outputs) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  const auto start = std::chrono::steady_clock::now();
  for (const std::size_t record : records) {
    if (!inputs.empty()) count_forward(record);
    for (std::size_t i = 0; i < inputs.size(); ++i) show(record, TensorRole::input, i, inputs[i]);
    for (std::size_t i = 0; i < outputs.size(); ++i) show(record, TensorRole::output, i, outputs[i]);
  }
  count_time_since(start);
}

void Recorder::observe_output(const std::vector<std::size_t>& records, std::size_t index, const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return;
  for (const std::size_t record : records)
    if (info_of(record).reduces) show(record, TensorRole::output, index, y);
}

void Recorder::look_at(std::size_t index, const WeightModule& m) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Record& record = records_[index];
  if (record.looked_at) return;
  if (options_.weights) show(index, TensorRole::weight, 0, m.weight);
  if (record.node.is_holder()) show(index, TensorRole::input, 0, at::zeros({1, 1}));
  if (runtime::ops::is_high_precision(m.weight.scalar_type()))
    record.weight = fingerprint_of(m.name, runtime::cpu_alias(m.weight.detach()).const_data_ptr(),
                                   runtime::ops::float_type_of(m.weight.scalar_type()), m.weight.sizes().vec());
  record.looked_at = true;
}

void Recorder::look_at_part(std::size_t index, const WeightModule& m, const at::Tensor& part, std::int64_t first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Record& record = records_[index];
  if (record.looked_at) return;
  const std::int64_t rows = m.weight.size(0);
  if (options_.weights) show_part(index, TensorRole::weight, part, {first, 0, m.weight.sizes()}, true);
  const at::Tensor host = runtime::cpu_alias(part.detach()).contiguous();
  const auto type = runtime::ops::float_type_of(host.scalar_type());
  if (!record.weight) record.weight = WeightFingerprint{m.name, kernels::name_of(type), m.weight.sizes().vec(), {}};
  const std::int64_t begin = first * (m.weight.numel() / rows), end = begin + host.numel();
  for (const std::int64_t at : sampled_positions(m.weight.numel()))
    if (at >= begin && at < end)
      record.weight->samples.push_back(kernels::load_element(host.const_data_ptr(), type, at - begin));
  record.looked_at = first + part.size(0) == rows;
}

bool Recorder::observe_output_part(std::size_t record, const at::Tensor& y, std::int64_t first, std::int64_t columns,
                                   bool reported) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto start = std::chrono::steady_clock::now();
  auto sizes = y.sizes().vec();
  sizes.back() = columns;
  const bool observed = show_part(record, TensorRole::output, y, {first, y.dim() - 1, sizes}, reported);
  count_time_since(start);
  return observed;
}

void Recorder::forget_outputs(std::size_t record) {
  const std::lock_guard<std::mutex> lock(mutex_);
  records_[record].node.forget_outputs();
}

void Recorder::show(std::size_t record, TensorRole role, std::size_t index, const at::Tensor& t) {
  WatchedNode& node = records_[record].node;
  if (!t.defined() || !node.observes(role)) return;
  TensorMemory::Entry alone;  // a weight is looked at once, and remembering it would keep its tag alive
  if (role == TensorRole::weight && observers_.type.reads_values) alone.amax = amax_of(t);
  auto& entry = role == TensorRole::weight ? alone : memory_.find(t, observers_.type.reads_values);
  if (!finite(node.module(), role, index, t, entry.amax)) return;
  WatchedTensor& watched = node.tensor(role, index, observers_);
  watched.observer->observe(Observed(runtime::cpu_alias(t.detach()), entry.amax, &entry.memo));
  watched.seen = true;
}

bool Recorder::show_part(std::size_t record, TensorRole role, const at::Tensor& part, const PartOf& of, bool reported) {
  WatchedNode& node = records_[record].node;
  if (!node.observes(role)) return true;
  const float amax = observers_.type.reads_values ? amax_of(part) : 0.0f;
  if (!std::isfinite(amax)) {
    if (reported) finite(node.module(), role, 0, part, amax);
    return false;
  }
  std::any memo;
  WatchedTensor& watched = node.tensor(role, 0, observers_);
  watched.observer->observe_part(Observed(runtime::cpu_alias(part.detach()), amax, &memo), of);
  watched.seen = true;
  return true;
}

bool Recorder::finite(const std::string& module, TensorRole role, std::size_t index, const at::Tensor& t, float amax) {
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

void Recorder::begin_samples(std::int64_t first, std::int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!finished_) write_if_due(samples_);
  first_sample_ = first;
  batch_ = count;
  samples_ = std::max(samples_, first + count);
  memory_.clear();
}

/// A caller that names no samples counts forwards: whenever the module that was called first is called again.
void Recorder::count_forward(std::size_t record) {
  if (options_.sample_interval <= 0 || samples_ > 0) return;
  if (!first_called_.has_value()) first_called_ = record;
  if (*first_called_ != record) return;
  write_if_due(forwards_);
  ++forwards_;
}

void Recorder::count_time_since(std::chrono::steady_clock::time_point start) {
  watch_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// `done` samples are through: writes the files if sample_interval says so.
void Recorder::write_if_due(std::int64_t done) {
  if (options_.sample_interval <= 0 || done / options_.sample_interval <= writes_) return;
  write();
  writes_ = done / options_.sample_interval;
}

MeasurementFile Recorder::result_locked() const {
  MeasurementFile file;
  if (samples_ > 0) file.num_samples = samples_;
  if (samples_ == 0 && forwards_ > 0) file.num_samples = forwards_;
  if (planned_ > samples_) file.planned_samples = planned_;
  file.observer = options_.observer;
  if (observers_.type.kept == Kept::sizes) file.mode = MeasurementMode::shape;
  for (const auto& [node, looked_at, weight] : records_) {
    if (weight.has_value()) {
      if (!file.model.has_value()) file.model.emplace();
      file.model->weights.push_back(*weight);
    }
    if (!node.is_aside()) file.selected.push_back(node.module());
    if (auto m = node.measurement()) (node.is_aside() ? file.kv_cache : file.modules).push_back(std::move(*m));
  }
  return file;
}

/// The states that lie beside `file`, for merging; null: the observer keeps no state.
io::Json Recorder::observer_states(const MeasurementFile& file) const {
  if (!observers_.type.keeps_state) return nullptr;
  ObserverStates states{options_.observer, options_.format, options_.fp8_max, options_.parameters, {}};
  std::size_t next = 0;  // file.modules are those of records_ that were called, in the same order
  for (const auto& [node, looked_at, weight] : records_) {
    if (next == file.modules.size() || file.modules[next].module != node.module()) continue;
    states.nodes[node.module()] = node.states();
    ++next;
  }
  return to_json(states);
}

std::vector<std::filesystem::path> Recorder::write() {
  if (options_.prefix.empty()) return {};
  const MeasurementFile file = result_locked();
  return files_.write(file, observer_states(file));
}

std::optional<std::vector<std::filesystem::path>> Recorder::finish(bool write_files) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finished_) return std::nullopt;
  auto paths = write_files ? write() : std::vector<std::filesystem::path>();
  finished_ = true;
  memory_.clear();
  return paths;
}

MeasurementFile Recorder::result() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return result_locked();
}

std::vector<NonFinite> Recorder::non_finite() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return non_finite_;
}

std::int64_t Recorder::samples() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return samples_;
}

void Recorder::plan_samples(std::int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  planned_ = count;
}

std::filesystem::path Recorder::backup() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_.backup();
}

double Recorder::watch_seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return watch_seconds_;
}

ConfiguredCalibration calibration_options(const configs::QuantConfig& config, recipes::Dialect device,
                                          const configs::Environment& environment) {
  using configs::MeasureExclude;
  configs::refuse_type_paths(config);
  ConfiguredCalibration c;
  c.filter = std::make_shared<configs::ModuleFilter>(configs::module_filter(config));
  c.options.select = [filter = c.filter](const std::string& name, const std::string& type) {
    const bool selected = filter->selects(type, name);  // asked of every module, so that unused entries are known
    return selected && configs::type_is(type, &configs::KindInfo::quantized);
  };
  c.options.outputs = config.measure_exclude != MeasureExclude::OUTPUT && config.measure_exclude != MeasureExclude::ALL;
  c.options.reduced = config.row_parallel_allreduce;
  c.options.prefix = config.dump_stats_path.string();
  c.options.observer = config.mode == configs::QuantMode::SHAPE ? "shape" : config.observer;
  c.options.parameters = {config.scale_params.observer.begin(), config.scale_params.observer.end()};
  c.options.format = config.fp8_config;
  c.options.fp8_max = recipes::fp8_max(config.fp8_config, config.device_for_scales.value_or(device));
  c.options.rank = configs::file_rank(config, environment);
  c.options.sample_interval = config.calibration_sample_interval;
  return c;
}

ConfiguredCalibration calibration_options(const configs::QuantConfig& config) {
  return calibration_options(config, runtime::device_dialect("measure"), configs::environment());
}

}  // namespace fp8::measure
