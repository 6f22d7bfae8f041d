// SPDX-License-Identifier: Apache-2.0
// Messages, written as one sentence with a {} for each value, and the errors that carry them. No torch here.
//
//   message("{} of {} bytes", found, size)                                             returns "3 of 8 bytes"
//   fail<Error>("{}: found {}, allowed: {}", where, in_quotes(word), joined(words));    throws Error
//   fail<std::invalid_argument>("rank is {}, allowed: 0 to {}", rank, world - 1);       throws that
//   fail(path, "{} bytes, expected {}", found, size);         throws Error "PATH: ...", the path printable
//   fail_at(where, "{} bytes, expected {}", found, size);     throws Error "WHERE: ...", the place as it stands
//   ensure(count > 0, "a list with elements");                throws std::logic_error "FILE:LINE: expected ..."
//
// A sentence with more or fewer places than values does not compile. Values are text, characters, paths, and numbers as
// std::to_string() writes them; a bool has no text. Text of a file or a user goes through in_quotes() or printable().
#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace fp8::io {

// Options in messages. The library calls an option by its member's name, the command line by its flag. So a message
// holds the option itself, and the program that prints the message chooses the name.

/// The option `id` as a part of a message; `name` is what the library calls it. value: of the option, for a spelling
/// that needs it.
std::string option(std::string_view id, std::string_view name, std::string_view value = "");
/// The library calls it 'ID'.
inline std::string option(std::string_view id) { return option(id, "'" + std::string(id) + "'"); }

/// Returns a program's name of an option; null: the library's names.
using Spelling = std::string (*)(std::string_view id, std::string_view value);

/// The message with names in place of its options.
std::string spelled(std::string_view message, Spelling spelling = nullptr);

/// An error that keeps the options of its message; what() has the library's names.
class NamesOptions {
 public:
  explicit NamesOptions(const std::string& message) : message_(message) {}
  const char* message() const noexcept { return message_.what(); }

 private:
  std::runtime_error message_;  // a string whose copy never throws
};

template <class Base>
struct OptionError : Base, NamesOptions {
  explicit OptionError(const std::string& message) : Base(spelled(message)), NamesOptions(message) {}
};

/// The message of an error, with its options if it keeps them.
std::string raw_message(const std::exception& error);

/// A file that can't be read, written or understood. The message names the file (and key, line or tensor), what was
/// found and what is allowed, in one line.
struct Error : OptionError<std::runtime_error> {
  using OptionError::OptionError;
};

/// `text` fit for one line of a message: ASCII's control characters and bytes that are not UTF-8 become \xNN, all else
/// that is not drawn (text.h) \uNNNN, and what is longer than `limit` bytes ends in "...".
std::string printable(std::string_view text, std::size_t limit = 120);

/// "'text'", printable.
std::string in_quotes(std::string_view text);

namespace detail {

/// One value of a message: a view, which lives as long as the call that it is made for.
struct Arg {
  Arg(std::string_view value) : text(value) {}
  Arg(const std::string& value) : text(value) {}
  Arg(const char* value) : text(value) {}
  Arg(const char& value) : text(&value, 1) {}
  Arg(bool) = delete;
  template <class Path>
    requires requires(const Path& path) {
      { path.native() } -> std::same_as<const std::string&>;
    }
  Arg(const Path& value) : text(value.native()) {}
  template <std::signed_integral Integer>
  Arg(Integer value) : kind(Kind::integer), integer(value) {}
  template <std::unsigned_integral Integer>
  Arg(Integer value) : kind(Kind::count), count(value) {}
  template <std::floating_point Number>
  Arg(Number value) : kind(Kind::number), number(value) {}

  enum class Kind : std::uint8_t { text, integer, count, number } kind = Kind::text;
  union {
    std::string_view text;
    std::int64_t integer;
    std::uint64_t count;
    double number;
  };
};

/// A sentence with `places` places; one of another number is no constant expression.
template <std::size_t places>
struct Sentence {
  consteval Sentence(const char* sentence) : text(sentence) {
    std::size_t found = 0;
    for (std::size_t at = 0; (at = text.find("{}", at)) != text.npos; at += 2) ++found;
    if (found != places) throw "a message needs one {} for each value";
  }
  std::string_view text;
};

std::string filled(std::string_view sentence, std::initializer_list<Arg> values);
[[noreturn]] void fail_in(std::string_view path, std::string_view sentence, std::initializer_list<Arg> values);

template <class Exception>
[[noreturn, gnu::cold, gnu::noinline]] void fail(std::string_view sentence, std::initializer_list<Arg> values) {
  throw Exception(filled(sentence, values));
}

}  // namespace detail

template <class... Values>
std::string message(detail::Sentence<sizeof...(Values)> sentence, const Values&... values) {
  return detail::filled(sentence.text, {detail::Arg(values)...});
}

template <class Exception, class... Values>
[[noreturn]] void fail(detail::Sentence<sizeof...(Values)> sentence, const Values&... values) {
  detail::fail<Exception>(sentence.text, {detail::Arg(values)...});
}

/// Throws Error "PATH: <what>".
[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what);

template <class Path, class... Values>
  requires requires(const Path& path) { path.native(); }
[[noreturn]] void fail(const Path& path, detail::Sentence<sizeof...(Values)> sentence, const Values&... values) {
  detail::fail_in(path.native(), sentence.text, {detail::Arg(values)...});
}

/// Throws Error "WHERE: WHAT". where: a file, or what stands in it ("q.json: key 'mode'"), fit for a message already.
[[noreturn]] void fail_at(std::string_view where, std::string_view what);

template <class... Values>
[[noreturn]] void fail_at(std::string_view where, detail::Sentence<sizeof...(Values)> sentence,
                          const Values&... values) {
  fail_at(where, detail::filled(sentence.text, {detail::Arg(values)...}));
}

/// Throws Error for the failed system call `doing` ("open", "rename") with errno's text `code`. A full disk or quota is
/// "PATH: no space left on device (needed N bytes)"; a file size limit names itself likewise. needed: 0 if unknown.
[[noreturn]] void fail_errno(const std::filesystem::path& path, const std::string& doing, int code,
                             std::uint64_t needed = 0);

/// Asserts what holds whatever a user or a file does, in the folders without LibTorch; elsewhere it is
/// TORCH_INTERNAL_ASSERT. Not for loops over elements. Throws std::logic_error "FILE:LINE: expected WHAT" unless
/// `holds`.
inline void ensure(bool holds, const char* what, const std::source_location& at = std::source_location::current()) {
  if (!holds)
    throw std::logic_error(std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": expected " + what);
}

}  // namespace fp8::io
