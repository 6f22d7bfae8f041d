// SPDX-License-Identifier: Apache-2.0
// The names of the values of an enum: one table beside the enum, which messages, JSON and options read. No torch
// here.
//
//   enum class Convention : std::uint8_t { own, inc };
//   constexpr auto names_of(Convention) { return names_up_to<Convention::inc>("own", "inc"); }
//   FP8_ENUM_NAMES(Convention, {own, "own"}, {inc, "inc"});
//   using fp8::name_of;  // once a header, so that quant::name_of(x) is a spelling of it too
//
// A row for each value, in the order in which messages list them; no name stands twice. A table whose rows have more
// columns than EnumName is a function names_of() of its own, as the macro writes it.
#pragma once
#include <array>
#include <cstddef>
#include <initializer_list>
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

/// The table of an enum that counts from 0 to `last`, of names in the order of its values.
template <auto last, class... Name>
constexpr auto names_up_to(Name... names) {
  using E = decltype(last);
  static_assert(sizeof...(Name) == static_cast<std::size_t>(last) + 1, "a name for each value");
  std::size_t value = 0;
  return std::array<EnumName<E>, sizeof...(Name)>{EnumName<E>{static_cast<E>(value++), names}...};
}
/// names_of(E), the table of the enum E; in the namespace of E.
#define FP8_ENUM_NAMES(E, ...)                        \
  constexpr auto names_of(E) {                        \
    using enum E;                                     \
    return std::to_array<EnumName<E>>({__VA_ARGS__}); \
  }

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

/// The values that a reader takes, and its names for them: a table, some of its rows, or names of the reader's own.
template <class E>
using EnumChoice = std::vector<EnumName<E>>;

template <NamedEnum E>
EnumChoice<E> choice_of() {
  EnumChoice<E> all;
  for (const auto& row : enum_names<E>) all.push_back({row.value, row.name});
  return all;
}

template <NamedEnum E>
EnumChoice<E> choice_of(std::initializer_list<E> values) {
  EnumChoice<E> some;
  for (const E value : values) some.push_back({value, name_of(value)});
  return some;
}

template <class E>
const char* name_of(E value, const EnumChoice<E>& choice) {
  for (const auto& row : choice) {
    if (row.value == value) return row.name;
  }
  return "unknown";
}

template <class E>
std::optional<E> parse_enum(std::string_view name, const EnumChoice<E>& choice) {
  for (const auto& row : choice)
    if (row.name == name) return row.value;
  return std::nullopt;
}

/// "own, inc": what messages call allowed.
template <class E>
std::string allowed_names(const EnumChoice<E>& choice) {
  std::string list;
  for (const auto& row : choice) list += (list.empty() ? "" : ", ") + std::string(row.name);
  return list;
}

template <NamedEnum E>
std::string allowed_names() {
  return allowed_names(choice_of<E>());
}

}  // namespace fp8
