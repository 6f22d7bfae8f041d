// SPDX-License-Identifier: Apache-2.0
// Optimum's HabanaProfile: a trace of some steps of a loop that is no Trainer's.
//
//   HabanaProfile profile({.warmup = 3, .active = 5});
//   profile.start();
//   for (..) { work(); profile.step(); }
//   profile.stop();
//
// One records at a time: start() stops another of its thread; where one of another thread records, it warns.
// active 0 or less: nothing is done.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "fp8/runtime/profile/hpu_profiler.h"

namespace fp8::runtime {

struct HabanaProfileOptions {
  std::int64_t wait = 0, warmup = 0, active = 0;
  bool record_shapes = true;
  std::string name = {};  ///< part of the file's name
  std::string output_dir = "./hpu_profile";
};

class HabanaProfile {
 public:
  /// Throws std::invalid_argument for a negative wait or warmup.
  explicit HabanaProfile(HabanaProfileOptions options);
  ~HabanaProfile();
  HabanaProfile(const HabanaProfile&) = delete;
  HabanaProfile& operator=(const HabanaProfile&) = delete;

  void start();
  void stop();
  void step();

  bool running() const { return running_; }
  /// Null where `active` asks for nothing.
  const HPUProfiler* profiler() const { return profiler_.get(); }

 private:
  std::unique_ptr<HPUProfiler> profiler_;
  bool running_ = false;
};

}  // namespace fp8::runtime
