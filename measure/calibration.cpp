// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/calibration.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>

#include "fp8/measure/weight_watcher.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/ops/native/arguments.h"

namespace fp8::measure {
namespace {

constexpr std::size_t kMaxReported = 10000;  // a broken model on a long run must not fill the memory with reports

bool is_default_type(const std::string&, const std::string& type) { return type == "Linear" || type == "Conv2d"; }

/// max |t|; NaN if any is NaN.
float amax_of(const at::Tensor& t) {
  at::Tensor host = runtime::cpu_alias(t.detach());
  if (!runtime::ops::is_high_precision(host.scalar_type())) host = host.to(at::kFloat);
  host = host.contiguous();
  return kernels::amax(host.const_data_ptr(), runtime::ops::float_type_of(host.scalar_type()), host.numel());
}

WeightWatcher* watcher_on(const at::Tensor& weight) {
  const auto* tag = runtime::find_tag(weight);
  return tag != nullptr ? dynamic_cast<WeightWatcher*>(tag->handler.get()) : nullptr;
}

}  // namespace

std::shared_ptr<CalibrationSession> CalibrationSession::attach(const torch::nn::Module& model, CalibrationOptions options) {
  return attach(weight_modules(model), std::move(options));
}
std::shared_ptr<CalibrationSession> CalibrationSession::attach(const torch::jit::Module& model, CalibrationOptions options) {
  return attach(weight_modules(model), std::move(options));
}
std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::nn::Module& model) { return of(weight_modules(model)); }
std::shared_ptr<CalibrationSession> CalibrationSession::of(const torch::jit::Module& model) { return of(weight_modules(model)); }

std::shared_ptr<CalibrationSession> CalibrationSession::attach(const std::vector<WeightModule>& modules, CalibrationOptions options) {
  if (!options.select) options.select = is_default_type;
  std::vector<const WeightModule*> selected;  // all are checked before the first one is touched
  for (const auto& m : modules) {
    if (!options.select(m.name, m.type)) continue;
    TORCH_CHECK(m.weight.device().is_hpu(), "[measure] ", m.name, ": expected the weight on hpu, found it on ", m.weight.device());
    TORCH_CHECK(!c10::isFloat8Type(m.weight.scalar_type()), "[measure] ", m.name, ": the weight is ", m.weight.scalar_type(),
                " already; measure the high precision model");
    TORCH_CHECK(m.weight.is_contiguous(), "[measure] ", m.name, ": expected a contiguous weight, found strides ", m.weight.strides());
    selected.push_back(&m);
  }
  std::shared_ptr<CalibrationSession> session(new CalibrationSession(std::move(options)));
  std::map<const void*, std::shared_ptr<WeightWatcher>> by_memory;  // tied weights share one watcher
  for (const WeightModule* module : selected) {
    const WeightModule& m = *module;
    Record record{m.name};
    if (session->options_.weights) {
      record.weight = amax_of(m.weight);
      record.weight_seen = session->finite(record, "weight", m.weight, record.weight);
    }
    auto& watcher = by_memory[m.weight.const_data_ptr()];
    if (!watcher) {
      watcher = std::make_shared<WeightWatcher>(session, m.bias);
      session->watchers_.push_back(watcher);
    }
    watcher->add_record(session->records_.size());
    session->records_.push_back(std::move(record));
    runtime::tag_weight(m.weight, m.name, watcher);
  }
  session->options_.select = nullptr;  // it may refer to what the caller has on its stack
  return session;
}

std::shared_ptr<CalibrationSession> CalibrationSession::of(const std::vector<WeightModule>& modules) {
  for (const auto& m : modules) {
    const WeightWatcher* watcher = watcher_on(m.weight);
    if (auto session = watcher != nullptr ? watcher->session() : nullptr) return session;
  }
  return nullptr;
}

CalibrationSession::~CalibrationSession() {
  if (finalized_ || options_.prefix.empty()) return;
  try {
    write_measurements(options_.prefix, result_locked());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fp8: error: measurements of a destroyed model were not written: %s\n", error.what());
  }
}

void CalibrationSession::begin_samples(std::int64_t first, std::int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  first_sample_ = first;
  batch_ = count;
  samples_ = std::max(samples_, first + count);
  last_input_.reset();
}

float CalibrationSession::input_amax(const at::Tensor& x) {
  // Inference tensors have no version to tell whether they were written to since; a weak pointer to a watched weight would keep its tag,
  // and with it this session, for ever.
  if (x.is_inference() || runtime::find_tag(x) != nullptr) return amax_of(x);
  // The weak pointer keeps the address from being given to another tensor, so the same address is the same tensor.
  if (last_input_._unsafe_get_target() != x.unsafeGetTensorImpl() || last_version_ != x._version()) {
    last_input_ = WeakTensor(x.getIntrusivePtr());
    last_version_ = x._version();
    last_amax_ = amax_of(x);
  }
  return last_amax_;
}

bool CalibrationSession::finite(const Record& record, const char* tensor, const at::Tensor& t, float amax) {
  if (std::isfinite(amax)) return true;
  if (non_finite_.size() >= kMaxReported) return false;
  std::int64_t sample = tensor == std::string("weight") ? -1 : first_sample_;
  if (sample >= 0 && batch_ > 1 && t.dim() > 1 && t.size(0) % batch_ == 0) {  // which of the batch it was
    const std::int64_t rows = t.size(0) / batch_;
    for (std::int64_t i = 0; i < batch_; ++i) {
      if (!std::isfinite(amax_of(t.narrow(0, i * rows, rows)))) {
        sample = first_sample_ + i;
        break;
      }
    }
  }
  non_finite_.push_back({record.module, tensor, sample, std::isnan(amax)});
  return false;
}

void CalibrationSession::observe(const std::vector<std::size_t>& records, const at::Tensor& x, const at::Tensor& y) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finalized_) return;
  const auto start = std::chrono::steady_clock::now();
  const float in = options_.inputs ? input_amax(x) : 0.0f, out = options_.outputs ? amax_of(y) : 0.0f;
  for (std::size_t index : records) {
    Record& record = records_[index];
    const bool in_ok = finite(record, "input", x, in), out_ok = finite(record, "output", y, out);
    if (in_ok) record.input = std::max(record.input, in);
    if (out_ok) record.output = std::max(record.output, out);
    record.called = record.called || in_ok;
    record.output_seen = record.output_seen || (options_.outputs && out_ok);
  }
  watch_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MeasurementFile CalibrationSession::result_locked() const {
  MeasurementFile file;
  if (samples_ > 0) file.num_samples = samples_;
  for (const Record& r : records_) {
    file.selected.push_back(r.module);
    if (!r.called) continue;
    Measurement m{r.module, {}, std::nullopt, std::nullopt};
    if (options_.inputs) m.inputs.push_back({r.input});
    if (r.output_seen) m.outputs = std::vector<Amax>{{r.output}};
    if (r.weight_seen) m.weight = Amax{r.weight};
    file.modules.push_back(std::move(m));
  }
  return file;
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
  last_input_.reset();
  lock.unlock();
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->retire();
  }
}

std::vector<std::filesystem::path> CalibrationSession::finalize() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (finalized_) return {};
  std::vector<std::filesystem::path> paths;
  if (!options_.prefix.empty()) paths = write_measurements(options_.prefix, result_locked());
  take_off(std::move(lock));
  return paths;
}

void CalibrationSession::discard() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!finalized_) take_off(std::move(lock));
}

namespace {

template <class Model>
std::vector<std::filesystem::path> finalize_model(const Model& model) {
  const auto session = CalibrationSession::of(model);
  TORCH_CHECK(session != nullptr, "[finalize_calibration] expected a model that is being calibrated, found no watcher on its weights");
  auto paths = session->finalize();
  for (const auto& m : weight_modules(model)) {
    const WeightWatcher* watcher = watcher_on(m.weight);  // another calibration's stays
    if (watcher != nullptr && watcher->session() == nullptr) runtime::untag_weight(m.weight);
  }
  return paths;
}

}  // namespace

std::vector<std::filesystem::path> finalize_calibration(const torch::nn::Module& model) { return finalize_model(model); }
std::vector<std::filesystem::path> finalize_calibration(const torch::jit::Module& model) { return finalize_model(model); }

}  // namespace fp8::measure
