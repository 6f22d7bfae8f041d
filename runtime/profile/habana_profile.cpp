// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/profile/habana_profile.h"

#include <mutex>
#include <thread>
#include <utility>

namespace fp8::runtime {
namespace {

std::mutex g_mutex;
HabanaProfile* g_recording = nullptr;
std::thread::id g_thread;  // that it records: LibTorch's profilers are a thread's

}  // namespace

HabanaProfile::HabanaProfile(HabanaProfileOptions o) {
  if (o.active <= 0) return;
  HPUProfilerOptions options;
  options.dirpath = std::move(o.output_dir), options.filename = std::move(o.name);
  options.schedule = ProfileSchedule{.wait = o.wait, .warmup = o.warmup, .active = o.active, .repeat = 1};
  options.record_shapes = o.record_shapes;
  profiler_ = std::make_unique<HPUProfiler>(std::move(options));
}

HabanaProfile::~HabanaProfile() {
  try {
    stop();
  } catch (const std::exception& error) {
    warn_by_torch(error.what());
  }
}

void HabanaProfile::start() {
  if (profiler_ == nullptr || running_) return;
  HabanaProfile* other = nullptr;
  {
    const std::lock_guard lock(g_mutex);
    if (g_thread == std::this_thread::get_id()) other = g_recording;
  }
  if (other != nullptr) other->stop();
  {
    const std::lock_guard lock(g_mutex);
    if (g_recording == nullptr) g_recording = this, g_thread = std::this_thread::get_id();
  }
  running_ = true;
  profiler_->begin_stage("profile");
}

void HabanaProfile::stop() {
  if (!running_) return;
  running_ = false;
  {
    const std::lock_guard lock(g_mutex);
    if (g_recording == this) g_recording = nullptr;
  }
  profiler_->end_stage();
}

void HabanaProfile::step() {
  if (running_) profiler_->step();
}

}  // namespace fp8::runtime
