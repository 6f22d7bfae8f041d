// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/habana_profile.h"

#include <utility>

namespace fp8::runtime {
namespace {

thread_local HabanaProfile* g_recording = nullptr;  // LibTorch's profilers are a thread's

}  // namespace

HabanaProfile::HabanaProfile(HabanaProfileOptions o) {
  if (o.active <= 0) return;
  HPUProfilerOptions options;
  options.dirpath = std::move(o.output_dir), options.filename = std::move(o.name);
  options.schedule = ProfileSchedule{.wait = o.wait, .warmup = o.warmup, .active = o.active, .repeat = 1};
  options.record_shapes = o.record_shapes;
  profiler_ = std::make_unique<HPUProfiler>(std::move(options));
}

HabanaProfile::~HabanaProfile() { stop(); }

void HabanaProfile::start() {
  if (profiler_ == nullptr || running_) return;
  if (g_recording != nullptr) g_recording->stop();
  g_recording = this;
  running_ = true;
  profiler_->begin_stage("profile");
}

void HabanaProfile::stop() {
  if (!running_) return;
  running_ = false;
  g_recording = nullptr;
  profiler_->end_stage();
}

void HabanaProfile::step() {
  if (running_) profiler_->step();
}

}  // namespace fp8::runtime
