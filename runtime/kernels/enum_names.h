// SPDX-License-Identifier: Apache-2.0
// What the values of an enum are called: one table beside the enum, which messages, JSON and options read. No torch
// here.
//
//   enum class Convention : std::uint8_t { own, inc };
//   constexpr auto names_of(Convention) {
//     using enum Convention;
//     return std::to_array<EnumName<Convention>>({{own, "own"}, {inc, "inc"}});
//   }
//   using fp8::name_of;  // once a header: quant::name_of(x) besides name_of(x)
//
// A row for each value, in the order in which messages list them; no name stands twice.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace fp8 {

template <class E>
struct EnumName {
  E value;
  const char* name;
};

/// An enum with a table: names_of(E) stands in its namespace.
template <class E>
concept NamedEnum = std::is_enum_v<E> && requires { names_of(E{}); };

/// The table.
template <NamedEnum E>
inline constexpr auto enum_names = names_of(E{});

/// "unknown" for what is not in the table, such as a cast number: messages about a wrong value name it too.
template <NamedEnum E>
constexpr const char* name_of(E value) {
  for (const auto& row : enum_names<E>) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

/// The value of exactly this name; empty if there is none.
template <NamedEnum E>
constexpr std::optional<E> parse_enum(std::string_view name) {
  for (const auto& row : enum_names<E>) {
    if (row.name == name) return row.value;
  }
  return std::nullopt;
}

/// All values, in the order of the table.
template <NamedEnum E>
std::vector<E> enum_values() {
  std::vector<E> values;
  for (const auto& row : enum_names<E>) values.push_back(row.value);
  return values;
}

/// "own, inc": what messages call allowed.
template <NamedEnum E>
std::string allowed_names(const std::vector<E>& among = enum_values<E>()) {
  std::string list;
  for (const E value : among) list += (list.empty() ? "" : ", ") + std::string(name_of(value));
  return list;
}

}  // namespace fp8
