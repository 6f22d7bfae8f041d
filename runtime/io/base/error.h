// SPDX-License-Identifier: Apache-2.0
// The one exception of the readers and writers of files, and how foreign text is shown in its message. No torch here.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fp8::io {

/// A file that can't be read, written or understood. The message names the file (and key, line or tensor), what was
/// found and what is allowed, in one line.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// `text` fit for one line of a message: ASCII's control characters and bytes that are not UTF-8 become \xNN, all else
/// that is not drawn (utf8.h) \uNNNN, and what is longer than `limit` bytes ends in "...".
std::string printable(std::string_view text, std::size_t limit = 120);

/// "'text'", printable.
std::string in_quotes(std::string_view text);

/// Throws Error "WHERE: WHAT". where: a file, or what stands in it ("q.json: key 'mode'"), fit for a message already.
[[noreturn]] void fail_at(std::string_view where, std::string_view what);

}  // namespace fp8::io
