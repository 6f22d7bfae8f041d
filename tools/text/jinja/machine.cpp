// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/jinja/machine.h"

#include <bit>

#include "fp8/tools/text/jinja/filters.h"

namespace fp8::text::jinja {
namespace {

constexpr int kDeepestCall = 600;
constexpr std::size_t kAsked = 4096;  // steps between two looks at whether to go on

}  // namespace

thread_local Machine* Machine::at_work_ = nullptr;

void Machine::fail(std::string_view message) const {
  io::fail<io::Error>("{}:{}: {}", name_, line, io::printable(message, 1000));
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

// See filters.h.

Given::Given(Machine& m, std::string_view function, const Arguments& arguments, std::vector<std::string_view> names)
    : m_(m), function_(function), names_(std::move(names)), values_(names_.size()) {
  if (arguments.positional.size() > names_.size())
    m.fail(io::message("{} is given {} arguments, allowed: up to {}", function_, arguments.positional.size(),
                       names_.size()));
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::ranges::find(names_, name);
    if (place == names_.end()) m.fail(function_ + " takes no argument " + io::in_quotes(name));
    auto& slot = values_[static_cast<std::size_t>(place - names_.begin())];
    if (slot) m.fail(function_ + " is given " + io::in_quotes(name) + " twice");
    slot = &value;
  }
}

void Given::fail(const std::string& message) const { m_.fail(function_ + ": " + message); }

void Given::wrong(std::size_t parameter, const char* expected) const {
  fail(io::message("{}: expected {}, found {}", names_[parameter], expected,
                   values_[parameter] ? type_of(*values_[parameter]) : "nothing"));
}

const Value& Given::at(std::size_t parameter) const {
  if (!values_[parameter]) wrong(parameter, "a value");
  return *values_[parameter];
}

const std::string& Given::text(std::size_t parameter) const {
  const auto* const value = values_[parameter] ? values_[parameter]->text() : nullptr;
  if (!value) wrong(parameter, "a string");
  return *value;
}

const std::string* Given::text_or_none(std::size_t parameter) const {
  if (!values_[parameter] || values_[parameter]->none()) return nullptr;
  return &text(parameter);
}

std::int64_t Given::integer(std::size_t parameter, std::int64_t otherwise) const {
  std::int64_t value = otherwise;
  if (values_[parameter] && !as_integer(*values_[parameter], value)) wrong(parameter, "an integer");
  return value;
}

bool Given::flag(std::size_t parameter, bool otherwise) const {
  return values_[parameter] ? truth(*values_[parameter]) : otherwise;
}

Value Function::operator()(Machine& m, const Value& subject, const Arguments& arguments) const {
  if (reads) return reads(m, subject, arguments);
  const auto* const end = std::find(parameters.begin(), parameters.end(), std::string_view());
  return apply(m, subject, Given(m, in_messages, arguments, {parameters.begin(), end}));
}

}  // namespace fp8::text::jinja
