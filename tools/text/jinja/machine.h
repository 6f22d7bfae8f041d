// SPDX-License-Identifier: Apache-2.0
// What the running of a template counts and where it stands, for whatever takes part in it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fp8/tools/text/jinja/template.h"

namespace fp8::text::jinja {

class Machine {
 public:
  Machine(std::string name, const Limits& limits) : name_(std::move(name)), limits_(limits), left_(limits.steps) {}

  /// Throws io::Error "NAME:LINE: MESSAGE".
  [[noreturn]] void fail(std::string_view message) const;
  /// Counts `steps`. Throws past the limit.
  void spend(std::size_t steps = 1);
  /// Counts the making of a text or list of `size`. Throws past the limit.
  void allow(std::size_t size);

  const Limits& limits() const { return limits_; }
  int line = 1;   ///< of what is being run
  int depth = 0;  ///< of calls
  /// How often namespaces were read and written: a loop's condition that reads one must not see it change.
  std::uint64_t namespace_reads = 0;
  int guarded_loops = 0;

 private:
  std::string name_;
  Limits limits_;
  std::size_t left_;
};

/// One level of calls, for as long as it lives.
class Level {
 public:
  explicit Level(Machine& m);
  ~Level() { --m_.depth; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Machine& m_;
};

}  // namespace fp8::text::jinja
