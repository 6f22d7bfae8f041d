// SPDX-License-Identifier: Apache-2.0
// Templates of chats, in the part of Jinja 2.11 to 3.1 that they use, rendered as transformers does: trim_blocks and
// lstrip_blocks are on, nothing is escaped, values are Python's. What a template holds is rendered to the same text or
// refused with the line, never to another text.
//
// Known: text, comments, raw; {{ }}; for (with else and if), if, set (one, several, a namespace's, a block's), with,
// macro, call, filter, break, continue, generation; all operators; slices; the filters, tests and methods of
// filters.cpp, tests.cpp and methods.cpp; range, dict, namespace, raise_exception, strftime_now.
// Refused: include, import, extends, block, recursive loops, *arguments, % and format() of strings, html escaping.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "fp8/runtime/io/json/json.h"

namespace fp8::text::jinja {

/// What running a template may take: templates come with models.
struct Limits {
  std::size_t steps = 20'000'000;             ///< operations (machine.h), some seconds
  std::size_t size = std::size_t{64} << 20;   ///< bytes of one text, list or mapping
  std::size_t held = std::size_t{256} << 20;  ///< bytes of all that are alive at a time
  std::function<void()> ask = {};             ///< called again and again; what it throws ends the rendering
};

/// The time that strftime_now() tells, the same on every day, so that a text is: when Llama 3.1's template says it was
/// made where it knows no time.
struct Day {
  int year = 2024, month = 7, day = 26;
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
  std::string render(const io::Json& variables, const Limits& limits = {}, const Day& day = {}) const;

 private:
  std::string name_;
  std::unique_ptr<Body> body_;
};

}  // namespace fp8::text::jinja
