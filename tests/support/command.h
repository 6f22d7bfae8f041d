// SPDX-License-Identifier: Apache-2.0
// A command line as one text, and what a command answers. Tests of the program need no other include or using.
#pragma once
#include <sstream>

#include "fp8/runtime/io/json/json.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "support/test_data.h"

namespace fp8::test {

using Words = std::vector<std::string>;

/// The model kjv-byte-1.7M and its texts, which stand in a command line as $DEMO, $CALIB and $HELDOUT.
inline std::string demo_model() { return (demo_data() / "kjv-byte-1.7M").string(); }
inline std::string calibration_text() { return (demo_data() / "kjv_calib.txt").string(); }
inline std::string heldout_text() { return (demo_data() / "kjv_heldout_16k.txt").string(); }

template <class T>
Words words_of(const T& value) {
  if constexpr (std::is_same_v<T, Words>) {
    return value;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return {std::to_string(value)};
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return {value.string()};
  } else {
    return {std::string(value)};
  }
}

/// The words of `text` as a shell splits them ('In the' is one); each {} takes the next of `values`.
inline Words split_args(std::string_view text, const std::vector<Words>& values) {
  Words words;
  std::size_t next = 0;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    const bool quoted = text[at] == '\'';
    end = std::min(text.find(quoted ? '\'' : ' ', at + (quoted ? 1 : 0)), text.size());
    const std::string word(quoted ? text.substr(at + 1, end - at - 1) : text.substr(at, end - at));
    if (quoted) {
      words.push_back(word);
      ++end;
    } else if (word == "{}") {
      words.insert(words.end(), values.at(next).begin(), values.at(next).end());
      ++next;
    } else {
      words.push_back(word == "$DEMO"      ? demo_model()
                      : word == "$CALIB"   ? calibration_text()
                      : word == "$HELDOUT" ? heldout_text()
                                           : word);
    }
  }
  EXPECT_EQ(next, values.size()) << text;
  return words;
}

/// args("evaluate --model $DEMO --prompt 'In the' --out {} {}", folder / "out", more): a value is a text, a path, a
/// number or all words of a list.
template <class... T>
Words args(std::string_view text, const T&... values) {
  return split_args(text, std::vector<Words>{words_of(values)...});
}

struct Run {
  int code = -1;  ///< exit code; -N: ended by signal N
  std::string out, err;

  /// Number of lines on stderr.
  std::ptrdiff_t error_lines() const { return std::count(err.begin(), err.end(), '\n'); }
  /// stderr without its warnings and notes.
  std::string error() const { return without("fp8: warning: "); }
  /// stderr without its notes, and lines that begin with `head`.
  std::string without(std::string_view head = "fp8: note: ") const {
    std::istringstream lines(err);
    std::string text;
    for (std::string line; std::getline(lines, line);)
      text += line.starts_with(head) || line.starts_with("fp8: note: ") ? "" : line + '\n';
    return text;
  }
};

/// The object that a successful run with --json printed.
inline io::Json json_of(const Run& run) {
  EXPECT_EQ(run.code, 0) << run.err;
  if (run.code != 0) return {};
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  return io::parse_json(run.out, "stdout");
}

/// The exit code and one line on stderr beside warnings, in which each of `words` stands.
inline void expect_failed(const Run& run, const Words& words = {}, int code = 1) {
  EXPECT_EQ(run.code, code) << run.err;
  const std::string error = run.error();
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << run.err;
  for (const auto& word : words) EXPECT_THAT(run.err, ::testing::HasSubstr(word));
}

/// The contract of a refusal: expect_failed(), and nothing on stdout.
inline void expect_refused(const Run& run, const Words& words = {}, int code = 1) {
  expect_failed(run, words, code);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.error(), ::testing::StartsWith("fp8: error: "));
}

}  // namespace fp8::test

namespace fp8 {
using test::args;
using test::expect_failed;
using test::expect_refused;
using test::json_of;
}  // namespace fp8
