// SPDX-License-Identifier: Apache-2.0
// For the tests of tools/text: the committed fixtures, and throw-away folders.
#pragma once

#include "fp8/tools/text/steps/vocabulary.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::text::testing {

inline std::filesystem::path fixtures() { return std::filesystem::path(FP8_SOURCE_DIR) / "tests/tools/text/fixtures"; }

struct Folder : test::TempDir {
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path() / name, std::ios::binary) << content;
    return path() / name;
  }
};

/// JSON text with a place to stand: part() views it as "test.json".
class Source {
 public:
  explicit Source(std::string_view text) : json_(io::parse_json(text, "test.json")) {}
  JsonPart part() const { return JsonPart(json_, "test.json", "part"); }

 private:
  io::Json json_;
};

/// What f throws is an io::Error of one line that holds each of the words.
template <class F>
::testing::AssertionResult throws_io_error(const std::vector<std::string>& words, F&& f) {
  return test::throws_with(words, [&] { throw io::Error(test::one_line_error<io::Error>(f)); });
}

}  // namespace fp8::text::testing

/// EXPECT_IO_ERROR(load(file), "a word", "another one")
#define EXPECT_IO_ERROR(statement, ...) \
  EXPECT_TRUE(::fp8::text::testing::throws_io_error({__VA_ARGS__}, [&] { statement; }))

namespace fp8::text {
using testing::fixtures;
using testing::Folder;
}  // namespace fp8::text
