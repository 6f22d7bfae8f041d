// SPDX-License-Identifier: Apache-2.0
// For the tests of tools/text: the committed fixtures, throw-away folders, and the message of an io::Error.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/text/steps/json_part.h"
#include "support/throws_with.h"

namespace fp8::text::testing {

inline std::filesystem::path fixtures() { return std::filesystem::path(FP8_SOURCE_DIR) / "tests/tools/text/fixtures"; }

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fp8_text_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

/// JSON text with a place to stand: part() views it as "test.json".
class Source {
 public:
  explicit Source(std::string_view text) : json_(io::parse_json(text, "test.json")) {}
  JsonPart part() const { return JsonPart(json_, "test.json", "part"); }

 private:
  io::Json json_;
};

/// The message of the io::Error that `call` throws.
}  // namespace fp8::text::testing
