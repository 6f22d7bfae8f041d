// SPDX-License-Identifier: Apache-2.0
// The text of an expected error.
#pragma once
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "support/matchers.h"

namespace fp8::test {

/// The message of the Error that f() throws, without the backtrace that LibTorch's errors may end in; empty when it
/// throws nothing. Other exceptions pass.
template <typename Error = std::exception, typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string text = error.what();
    return text.substr(0, text.find("\nException raised from "));
  }
  return "";
}

/// error_of() that fails where nothing is thrown, or more than one line.
template <typename Error, typename F>
std::string one_line_error(F&& f) {
  const std::string text = error_of<Error>(f);
  EXPECT_FALSE(text.empty()) << "nothing was thrown";
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  return text;
}

/// EXPECT_TRUE(throws_with({"a", "b"}, f)): f throws, and the text holds each of the words.
template <typename Error = std::exception, typename F>
::testing::AssertionResult throws_with(const std::vector<std::string>& words, F&& f) {
  const std::string text = error_of<Error>(std::forward<F>(f));
  if (text.empty()) return ::testing::AssertionFailure() << "nothing was thrown";
  for (const auto& word : words) {
    if (text.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "no \"" << word << "\" in: " << text;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace fp8::test

namespace fp8 {
using test::error_of;
using test::throws_with;
}  // namespace fp8

/// EXPECT_REFUSED(call(x), "a", "b"): the statement throws, and the text holds each of the words.
#define EXPECT_REFUSED(statement, ...) EXPECT_TRUE(::fp8::test::throws_with({__VA_ARGS__}, [&] { statement; }))
/// EXPECT_ERROR(io::Error, call(x), "a", "b"): EXPECT_REFUSED() of an error of this type.
#define EXPECT_ERROR(Error, statement, ...) \
  EXPECT_TRUE(::fp8::test::throws_with<Error>({__VA_ARGS__}, [&] { statement; }))
