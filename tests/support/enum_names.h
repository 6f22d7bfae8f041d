// SPDX-License-Identifier: Apache-2.0
// Checks that hold for the table of names of every enum (runtime/io/base/enum_names.h).
#pragma once
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::test {

/// Compilers print an enumerator by its name, and other numbers of its type as a cast: "(fp8::quant::Convention)2".
template <auto value>
constexpr bool is_enumerator() {
  constexpr std::string_view kBefore = "value = ";
  const std::string_view text = __PRETTY_FUNCTION__;
  return text[text.find(kBefore) + kBefore.size()] != '(';
}

/// The enum counts from 0: rows of one value each, as many as there are, and no enumerator behind them.
template <NamedEnum E>
constexpr bool has_a_row_for_each_value() {
  constexpr auto kRows = enum_names<E>.size();
  for (std::size_t number = 0; number < kRows; ++number) {
    std::size_t found = 0;
    for (const auto& row : enum_names<E>) found += static_cast<std::size_t>(row.value) == number ? 1 : 0;
    if (found != 1) return false;
  }
  return !is_enumerator<static_cast<E>(kRows)>();
}

template <NamedEnum E>
constexpr bool has_a_name_for_each_row() {
  for (const auto& row : enum_names<E>)
    if (std::string_view(row.name).empty() || parse_enum<E>(row.name) != row.value) return false;
  return true;
}

template <NamedEnum E>
void check_names() {
  static_assert(has_a_row_for_each_value<E>());
  static_assert(has_a_name_for_each_row<E>(), "a name is empty, or stands for two values");
  for (const auto& row : enum_names<E>) {
    EXPECT_STREQ(name_of(row.value), row.name);
    EXPECT_TRUE(parse_enum<E>(row.name) == row.value) << row.name;
    EXPECT_FALSE(parse_enum<E>(row.name + std::string(" ")).has_value()) << row.name;
  }
  EXPECT_FALSE(parse_enum<E>("").has_value());
  EXPECT_STREQ(name_of(static_cast<E>(enum_names<E>.size())), "unknown");
}

}  // namespace fp8::test
