// SPDX-License-Identifier: Apache-2.0
// What rows of the table of variables say of their values, and the part of it that is another program's. `allowed` of a
// row of words lists them: "0, 1".
//
//   kSwitch         boolean   one of the words of `allowed`, as written
//   kBoolean        boolean   the same in any case
//   kChoice         choice    one of the words of `allowed`, as written; kWord: in any case
//   kInteger<a, b>  integer   decimal, a to b
//   kCount          integer   decimal or 0x..., 0 to 2^64 - 1
//   kBytes          bytes     parse_bytes()
//   kCounts         list      integers from 1 on with commas between them
//   kPath, kText    anything  whoever opens it finds out; kSecret: the same, and nobody is shown it
#pragma once
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::io {

inline bool anything(const Variable&, std::string_view) { return true; }

/// Calls `each` with what stands between separators until it returns false; the last answer.
template <class Each>
bool all_parts(std::string_view text, std::string_view separator, Each each) {
  for (;;) {
    const std::size_t end = text.find(separator);
    if (!each(text.substr(0, end))) return false;
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + separator.size());
  }
}

inline bool one_of(const Variable& row, std::string_view value) {
  return !all_parts(row.allowed, ", ", [&](std::string_view word) { return word != value; });
}

inline bool one_of_in_any_case(const Variable& row, std::string_view value) {
  return one_of(row, lower(std::string(value)));
}

template <int low, int high>
bool integer_from(const Variable&, std::string_view value) {
  return parse_integer(value, low, high).has_value();
}

inline bool count_in_64_bits(const Variable&, std::string_view value) {
  const bool hexadecimal = value.starts_with("0x");
  if (hexadecimal) value.remove_prefix(2);
  std::uint64_t count = 0;
  const char* end_of_value = value.data() + value.size();
  const auto [end, error] = std::from_chars(value.data(), end_of_value, count, hexadecimal ? 16 : 10);
  return error == std::errc() && end == end_of_value;
}

inline bool byte_count(const Variable&, std::string_view value) { return parse_bytes(value).has_value(); }

inline bool counts(const Variable&, std::string_view value) {
  return all_parts(value, ",", [](std::string_view part) { return parse_integer(part, 1, INT32_MAX).has_value(); });
}

constexpr Rule kSwitch{"boolean", one_of};
constexpr Rule kBoolean{"boolean", one_of_in_any_case};
constexpr Rule kChoice{"choice", one_of};
constexpr Rule kWord{"choice", one_of_in_any_case};
template <int low, int high>
constexpr Rule kInteger{"integer", integer_from<low, high>};
constexpr Rule kCount{"integer", count_in_64_bits};
constexpr Rule kBytes{"bytes", byte_count};
constexpr Rule kCounts{"list", counts};
constexpr Rule kPath{"path", anything};
constexpr Rule kText{"text", anything};
constexpr Rule kSecret{"secret", anything};

// What both tables say of several rows.
constexpr const char* kFromZero = "an integer from 0 on";  ///< `allowed` of kCount
constexpr const char* kAnything = "anything";
constexpr const char* kNoLog = "no log is written; --quiet and --json decide what is printed";

/// Variables of the vendor's stack that scripts and containers for it set (vendor_variables.json; names, types and
/// defaults are those of its PyTorch bridge 1.19, of older bridges what scripts still set, of its documentation and of
/// vLLM's for it). They are known and their values are looked at, so that a misspelt one is told apart; none has an
/// effect, and each row says why.
std::span<const Variable> vendor_variables();

/// A row for every name that begins so: "PT_HPU_DISABLE_pass_*".
constexpr bool is_family(const Variable& row) { return std::string_view(row.name).ends_with('*'); }
/// Of a family: name is one of its members, "PT_HPU_DISABLE_pass_reinplace_add".
bool is_member(const Variable& row, std::string_view name);
/// Of a family: those of the process, "PT_HPU_DISABLE_pass_a=True, PT_HPU_DISABLE_pass_b=1", sorted; "": none.
std::string members_of_process(const Variable& row);

}  // namespace fp8::io
