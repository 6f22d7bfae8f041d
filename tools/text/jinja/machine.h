// SPDX-License-Identifier: Apache-2.0
// The counts of a running template and its current line, for all that takes part in it.
//
// A step is one operation, one value that is made, or 64 bytes that are compared, searched or written, so that steps
// cost about the same whatever a template does. What it holds are the bytes of all values that are alive: each counts
// itself, by a Charge, and gives them back when it goes.
#pragma once
#include <memory>

#include "fp8/runtime/io/json/json.h"

// Templates of chats, in the part of Jinja 2.11 to 3.1 that they use, rendered as transformers does: trim_blocks and
// lstrip_blocks are on, nothing is escaped, values are Python's. What a template holds is rendered to the same text or
// refused with the line, never to another text.
//
// Known: text, comments, raw; {{ }}; for (with else and if), if, set (one, several, a namespace's, a block's), with,
// macro, call, filter, break, continue, generation; all operators; slices; the filters, tests and methods of
// filters.cpp, evaluate.cpp and methods.cpp; range, dict, namespace, raise_exception, strftime_now.
// Refused: include, import, extends, block, recursive loops, *arguments, % and format() of strings, html escaping.

namespace fp8::text::jinja {

/// The most that running a template may take: templates come with models.
struct Limits {
  std::size_t steps = 20'000'000;             ///< operations, some seconds
  std::size_t size = std::size_t{64} << 20;   ///< bytes of one text, list or mapping
  std::size_t held = std::size_t{256} << 20;  ///< bytes of all that are alive at a time
  std::function<void()> ask = {};             ///< called again and again; what it throws ends the rendering
};

struct Body;

class Template {
 public:
  /// name: stands in messages, "DIR/chat_template.jinja:3: ...". Throws io::Error for what is not UTF-8, not Jinja or
  /// not known.
  Template(std::string_view source, std::string name);
  ~Template();
  Template(Template&&) noexcept;

  /// variables: an object. Throws io::Error for what fails in Jinja too, for raise_exception(), and past the limits.
  std::string render(const io::Json& variables, const Limits& limits = {}) const;

 private:
  std::string name_;
  std::unique_ptr<Body> body_;
};

class Machine {
 public:
  /// Is this thread's at_work() for as long as it lives.
  Machine(std::string name, const Limits& limits)
      : name_(std::move(name)), limits_(limits), left_(limits.steps), outer_(std::exchange(at_work_, this)) {}
  ~Machine() { at_work_ = outer_; }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  /// Of the template that this thread runs, or null.
  static Machine* at_work() { return at_work_; }

  /// Throws io::Error "NAME:LINE: MESSAGE".
  [[noreturn]] void fail(std::string_view message) const;
  /// Counts `steps`. Throws past the limit.
  void spend(std::size_t steps = 1) {
    if (steps > ready_) return spend_more(steps);
    ready_ -= steps;
  }
  /// Counts bytes that are compared, searched or written.
  void spend_bytes(std::size_t bytes) { spend(bytes / 64); }
  /// Counts the search for a key of `bytes` among `count` keys in their order.
  void spend_search(std::size_t bytes, std::size_t count);
  /// Before a text or list of so many bytes is made: throws where it is too long, or more than may be held.
  void allow(std::size_t bytes) const;
  /// Counts bytes that are written and stay, until they are released. Throws past the limit.
  void hold(std::size_t bytes);
  void release(std::size_t bytes) { held_ -= bytes; }

  int line = 1;   ///< of what is being run
  int depth = 0;  ///< of calls
  /// How often namespaces were read and written: a loop's condition that reads one must not see it change.
  std::uint64_t namespace_reads = 0;
  int guarded_loops = 0;

 private:
  void spend_more(std::size_t steps);

  static thread_local Machine* at_work_;
  std::string name_;
  Limits limits_;
  std::size_t ready_ = 0, left_;  ///< steps before the next look at whether to go on, and behind it
  std::size_t held_ = 0;
  Machine* outer_;
};

/// Bytes that the template at work holds for as long as this lives. Where none is at work nothing is counted: a
/// template's constants are made before.
class Charge {
 public:
  explicit Charge(std::size_t bytes = 0) : m_(Machine::at_work()) { add(bytes); }
  Charge(Charge&& other) noexcept : m_(other.m_), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&&) = delete;
  ~Charge() {
    if (bytes_ > 0) m_->release(bytes_);
  }
  void add(std::size_t bytes) {
    if (!m_ || bytes == 0) return;
    m_->hold(bytes);
    bytes_ += bytes;
  }

 private:
  Machine* m_;
  std::size_t bytes_ = 0;
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
