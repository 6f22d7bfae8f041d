// SPDX-License-Identifier: Apache-2.0
// Where tests find files that they did not write themselves.
//   demo_data()           tools/demo_data of the source tree, always there
//   FP8_NEED_TEST_DATA(p) p = <folder in the environment variable FP8_TEST_DATA>, else the test is skipped with
//                         a reason
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace fp8::test {

/// tools/demo_data: the model kjv-byte-1.7M with its calibration and evaluation text.
inline std::filesystem::path demo_data() { return std::filesystem::path(FP8_SOURCE_DIR) / "tools" / "demo_data"; }

/// The folder in FP8_TEST_DATA; empty when it is not set.
inline std::filesystem::path test_data() {
  const char* folder = std::getenv("FP8_TEST_DATA");
  return folder == nullptr ? std::filesystem::path() : std::filesystem::path(folder);
}

}  // namespace fp8::test

/// Declares `const std::filesystem::path name`, or skips the test. A set but wrong folder fails it.
#define FP8_NEED_TEST_DATA(name)                                                                       \
  const std::filesystem::path name = ::fp8::test::test_data();                                         \
  if (name.empty()) GTEST_SKIP() << "FP8_TEST_DATA is not set: folder with models/, peers/ and text/"; \
  ASSERT_TRUE(std::filesystem::is_directory(name)) << "FP8_TEST_DATA=" << name << " is not a folder"
