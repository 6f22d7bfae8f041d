// SPDX-License-Identifier: Apache-2.0
// A JSON that another program reads, as a table: one row for each key, by its path.
//
//   {"zero_optimization.stage", allow::integer(0, 3), KeyUse::read, "what is divided among processes"}
//
// The walk finds unknown keys (with the nearest that there is) and values that are not allowed; what keys demand of
// each other is said by the reader of each file. An object whose row has rows below it holds nothing else; one without
// holds anything. No key has a '.' in it.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::configs {

/// read: it has an effect. ignored: it has none here, whatever it says. refused: the values that are allowed have no
/// effect, all others are an error, whose sentence is the row's note.
enum class KeyUse : std::uint8_t { read, ignored, refused };
constexpr auto names_of(KeyUse) {
  using enum KeyUse;
  return std::to_array<EnumName<KeyUse>>({{read, "read"}, {ignored, "ignored"}, {refused, "refused"}});
}
using fp8::name_of;

/// The values that a key may have.
struct Allowed {
  enum class Type : std::uint8_t { boolean, integer, number, text, texts, numbers, words, object, anything };
  Type type;
  double low = 0, high = 0;   ///< of integer and number; a whole number such as 5e8 is an integer
  const char* words = "";     ///< "cpu, false, 0, \"\"": true, false, null and numbers are JSON's, the rest are strings
  bool any_case = false;      ///< of words
  bool null = false;          ///< null too
  bool automatic = false;     ///< "auto" too: another program fills it in
  bool also_boolean = false;  ///< true and false too, of an object
  bool nothing_in_it = false;  ///< [] too

  constexpr Allowed or_null() const { return with(&Allowed::null); }
  constexpr Allowed or_auto() const { return with(&Allowed::automatic); }
  constexpr Allowed or_boolean() const { return with(&Allowed::also_boolean); }
  constexpr Allowed or_nothing() const { return with(&Allowed::nothing_in_it); }
  constexpr Allowed in_any_case() const { return with(&Allowed::any_case); }

 private:
  constexpr Allowed with(bool Allowed::*member) const {
    Allowed copy = *this;
    copy.*member = true;
    return copy;
  }
};

namespace allow {

constexpr double kNoLimit = 1e300;

constexpr Allowed boolean() { return {Allowed::Type::boolean}; }
constexpr Allowed integer(double low = -kNoLimit, double high = kNoLimit) {
  return {Allowed::Type::integer, low, high};
}
constexpr Allowed number(double low = -kNoLimit, double high = kNoLimit) { return {Allowed::Type::number, low, high}; }
constexpr Allowed text() { return {Allowed::Type::text}; }
constexpr Allowed texts() { return {Allowed::Type::texts}; }
constexpr Allowed numbers() { return {Allowed::Type::numbers}; }
constexpr Allowed words(const char* list) { return {Allowed::Type::words, 0, 0, list}; }
constexpr Allowed nothing() { return words(""); }
constexpr Allowed object() { return {Allowed::Type::object}; }
constexpr Allowed anything() { return {Allowed::Type::anything}; }

}  // namespace allow

struct KeyRow {
  const char* path;
  Allowed allowed;
  KeyUse use;
  const char* note;       ///< what the key does, or why nothing, or why the other values are refused; no full stop
  const char* flag = "";  ///< of fp8 train, which has the same effect: "--batch"; with a value for true: "--device cpu"
  const char* standard = "";  ///< JSON that an absent key stands for; "": nothing
};
using KeyRows = std::span<const KeyRow>;

/// Where tables stand, so that a row is one line.
namespace rows {
using enum KeyUse;
using namespace allow;
}  // namespace rows

/// What there is to say of a file, one line each.
struct Findings {
  std::vector<std::string> problems;  ///< "FILE: key 'zero_optimization.stage': found 4, allowed: ..."
  std::vector<std::string> notes;     ///< what is right, but may surprise
};

/// Every unknown key and every value that its row does not allow, in the file's order, at most kMostProblems and then
/// one more line. source: the file, fit for a message. prefix: of paths in messages, where `json` is a part of the
/// file: "scheduler.params.". A `json` that is no object is one problem.
constexpr std::size_t kMostProblems = 100;
std::vector<std::string> key_problems(const io::Json& json, const std::string& source, KeyRows rows,
                                      const std::string& prefix = "");

/// One key of a file that has no problem with it.
struct KeyMeaning {
  std::string key, value;
  const KeyRow* row;
};

/// Every key of the file that has a row, in its order; objects by what is in them, unless that is free.
std::vector<KeyMeaning> key_meanings(const io::Json& json, KeyRows rows);

/// The row of a path; nullptr if there is none.
const KeyRow* find_row(KeyRows rows, const std::string& path);

/// "FILE: key 'PATH'", as messages begin. path: fit for a message, or one of a table.
std::string key_where(const std::string& source, const std::string& path);

/// The rows' standard values, and over them the members of `json`, an object; of top-level keys.
io::Json with_standards(const io::Json& json, KeyRows rows);

/// What stands at "a.b.c"; nullptr where it does not, or null does.
const io::Json* find_value(const io::Json& json, const std::string& path);

/// The value at a path if it is of that type, and fits.
bool is_true(const io::Json& json, const std::string& path);

/// The keys of `json` that a table has at its top level, in hundredths of all; misspelt ones count half.
int share_of_keys(const io::Json& json, KeyRows rows);

}  // namespace fp8::configs
