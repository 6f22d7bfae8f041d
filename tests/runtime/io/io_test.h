// SPDX-License-Identifier: Apache-2.0
// What the tests of runtime/io share: a folder that goes with the test, whole files as strings, and an error's message.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/file.h"
#include "support/throws_with.h"

namespace fp8::io {

class IoTest : public testing::Test {
 protected:
  IoTest() {
    std::string name = (std::filesystem::temp_directory_path() / "fp8_io_XXXXXX").string();
    folder_ = std::filesystem::canonical(::mkdtemp(name.data()));
  }
  ~IoTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  std::filesystem::path put(const std::string& name, std::string_view bytes) const {
    std::filesystem::create_directories(path(name).parent_path());
    std::ofstream(path(name), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

  /// Names in a folder, hidden ones too.
  static std::set<std::string> names_in(const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename().string());
    return names;
  }

  std::filesystem::path folder_;
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The message of the io::Error that `work` throws; a failure if it throws none.
}  // namespace fp8::io
