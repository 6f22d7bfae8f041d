// SPDX-License-Identifier: Apache-2.0
// A fresh folder for one test, removed with everything in it when the object goes. Tests run as parallel processes, so
// the name is made by mkdtemp, never by hand.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <vector>

namespace fp8::test {

class TempDir {
 public:
  /// Throws std::system_error when no folder can be made.
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "fp8_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;  // a destructor must not throw; a leftover folder in /tmp is no test failure
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// Names in a folder, sorted, hidden ones too.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The bytes of a file; none where it can't be read.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Every file below a folder, by its path from there, with its bytes.
inline std::map<std::string, std::string> folder_bytes(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[std::filesystem::relative(entry.path(), folder).string()] = read_file(entry.path());
  return files;
}

/// The fixture of tests that need a fresh folder.
class InFolder : public ::testing::Test {
 protected:
  const TempDir folder;
};

}  // namespace fp8::test

namespace fp8 {
namespace fs = std::filesystem;
using test::folder_bytes;
using test::InFolder;
using test::names_in;
using test::read_file;
using test::TempDir;
}  // namespace fp8
