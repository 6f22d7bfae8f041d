// SPDX-License-Identifier: Apache-2.0
// Values of several things, and of several keys.
#pragma once
#include <ranges>
#include <source_location>

#include "support/matchers.h"

namespace fp8 {

/// f of each of them: collected(modules, [](const auto& m) { return m.name; }).
template <class Range, class F>
auto collected(const Range& range, F&& f) {
  std::vector<std::decay_t<decltype(f(*std::ranges::begin(range)))>> all;
  for (const auto& item : range) all.push_back(f(item));
  return all;
}

/// expect_values(json, {{"ranks", 2}, {"exact", true}}): each of the keys has its value.
template <class Json>
void expect_values(const Json& json, const std::type_identity_t<Json>& values,
                   const std::source_location place = std::source_location::current()) {
  const ::testing::ScopedTrace trace(place.file_name(), static_cast<int>(place.line()), "expect_values");
  for (const auto& [key, value] : values.items()) EXPECT_EQ(json.contains(key) ? json.at(key) : Json(), value) << key;
}

}  // namespace fp8
