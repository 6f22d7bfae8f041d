// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of runtime/io: a folder that goes with the test, whole files as strings, messages of errors.
#pragma once

#include "fp8/runtime/io/base/file.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::io {

class IoTest : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  std::filesystem::path put(const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

  /// Names in a folder, hidden ones too.
  static std::set<std::string> names_in(const std::filesystem::path& folder) {
    const auto names = test::names_in(folder);
    return {names.begin(), names.end()};
  }

 private:
  const test::TempDir owner_;

 protected:
  const std::filesystem::path folder_ = std::filesystem::canonical(owner_.path());
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace fp8::io

/// The statement throws an io::Error of one line that is `matcher`, a text or a matcher.
#define EXPECT_IO_ERROR(statement, matcher) \
  EXPECT_THAT(::fp8::test::one_line_error<::fp8::io::Error>([&] { statement; }), matcher)
