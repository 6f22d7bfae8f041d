// SPDX-License-Identifier: Apache-2.0
// See machine.h.
#include "fp8/tools/text/jinja/machine.h"

#include "fp8/runtime/io/base/error.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestCall = 600;

}  // namespace

void Machine::fail(std::string_view message) const {
  throw io::Error(name_ + ":" + std::to_string(line) + ": " + io::printable(message, 1000));
}

void Machine::spend(std::size_t steps) {
  if (steps > left_) fail("the template takes more than " + std::to_string(limits_.steps) + " operations");
  left_ -= steps;
}

void Machine::allow(std::size_t size) {
  if (size > limits_.size) fail("the template makes more than " + std::to_string(limits_.size) + " bytes or values");
}

Level::Level(Machine& m) : m_(m) {
  if (++m_.depth <= kDeepestCall) return;
  --m_.depth;
  m_.fail("macros or expressions are nested too deeply");
}

}  // namespace fp8::text::jinja
