// SPDX-License-Identifier: Apache-2.0
// See machine.h.
#include "fp8/tools/text/jinja/machine.h"

#include <algorithm>
#include <bit>

#include "fp8/runtime/io/base/file.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestCall = 600;
constexpr std::size_t kAsked = 4096;  // steps between two looks at whether to go on

}  // namespace

thread_local Machine* Machine::at_work_ = nullptr;

void Machine::fail(std::string_view message) const {
  throw io::Error(name_ + ":" + std::to_string(line) + ": " + io::printable(message, 1000));
}

void Machine::spend_more(std::size_t steps) {
  if (steps - ready_ > left_) fail("the template takes more than " + std::to_string(limits_.steps) + " operations");
  left_ -= steps - ready_;
  ready_ = std::min(left_, kAsked);
  left_ -= ready_;
  if (limits_.ask) limits_.ask();
}

void Machine::spend_search(std::size_t bytes, std::size_t count) {
  spend_bytes(bytes * static_cast<std::size_t>(std::bit_width(count)));
}

void Machine::allow(std::size_t bytes) const {
  if (bytes > limits_.size)
    fail("the template makes a text or list of more than " + std::to_string(limits_.size) + " bytes");
  if (bytes > limits_.held - held_)
    fail("the template holds more than " + std::to_string(limits_.held) + " bytes at a time");
}

void Machine::hold(std::size_t bytes) {
  spend_bytes(bytes);
  if (bytes > limits_.held - held_)
    fail("the template holds more than " + std::to_string(limits_.held) + " bytes at a time");
  held_ += bytes;
}

Level::Level(Machine& m) : m_(m) {
  if (++m_.depth <= kDeepestCall) return;
  --m_.depth;
  m_.fail("macros or expressions are nested too deeply");
}

}  // namespace fp8::text::jinja
