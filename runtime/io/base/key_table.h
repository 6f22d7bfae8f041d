// SPDX-License-Identifier: Apache-2.0
// The names that another program reads, keys of its files or variables of its environment, as tables: one row for each
// name, with the values that it may have and what comes of it here. No torch here.
//
//   {"zero_optimization.stage", allow::integer(0, 3), KeyUse::read, "what is divided among processes"}
//
// The table of a program is a JSON file beside the source that asks for it, compiled in (fp8_embed() of CMake):
//
//   {"keys": [                                                     a table; a file may have several
//     {"name": "stage", "kind": "integer", "range": [0, 3], "or": ["auto"], "note": "what is divided"},
//     {"name": "loss_scale", "kind": "number", "range": [0, null], "note": "0: found while training"},
//     {"use": "ignored", "note": "graphs of other devices", "rows": [        members that these rows share
//       {"name": "mode", "kind": "words", "range": "Warn, Fail", "any_case": true, "standard": "Warn"}]}]}
//
// "use" is "read" where it is not said; "or" has null, auto, boolean and [], see Allowed.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::io {

/// read: it has an effect. ignored: it has none here, whatever it says. refused: the values that are allowed have no
/// effect, all others are an error, whose sentence is the row's note.
enum class KeyUse : std::uint8_t { read, ignored, refused };
constexpr auto names_of(KeyUse) { return names_up_to<KeyUse::refused>("read", "ignored", "refused"); }
using fp8::name_of;

/// The kind of a value.
enum class KeyKind : std::uint8_t { boolean, integer, number, text, texts, numbers, words, object, anything };
constexpr auto names_of(KeyKind) {
  return names_up_to<KeyKind::anything>("boolean", "integer", "number", "text", "texts", "numbers", "words", "object",
                                        "anything");
}

/// The values that a key may have.
struct Allowed {
  using Type = KeyKind;
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

constexpr Allowed boolean() { return {KeyKind::boolean}; }
constexpr Allowed integer(double low = -kNoLimit, double high = kNoLimit) { return {KeyKind::integer, low, high}; }
constexpr Allowed number(double low = -kNoLimit, double high = kNoLimit) { return {KeyKind::number, low, high}; }
constexpr Allowed text() { return {KeyKind::text}; }
constexpr Allowed texts() { return {KeyKind::texts}; }
constexpr Allowed numbers() { return {KeyKind::numbers}; }
constexpr Allowed words(const char* list) { return {KeyKind::words, 0, 0, list}; }
constexpr Allowed nothing() { return words(""); }
constexpr Allowed object() { return {KeyKind::object}; }
constexpr Allowed anything() { return {KeyKind::anything}; }

}  // namespace allow

struct KeyRow {
  const char* path;
  Allowed allowed;
  KeyUse use;
  const char* note;       ///< the key's effect, or why it has none, or why other values are refused; no full stop
  const char* flag = "";  ///< of fp8 train, which has the same effect: "--batch"; with a value for true: "--device cpu"
  const char* standard = "";  ///< JSON that an absent key stands for; "": nothing. Of a variable: its default
};
using KeyRows = std::span<const KeyRow>;

/// The tables of one JSON text. Throws where it is none: the text is the program's own.
class KeyTables {
 public:
  explicit KeyTables(std::string_view text);

  /// The rows of a table, which live as long as this; of none: std::out_of_range.
  KeyRows operator[](const std::string& table) const { return tables_.at(table); }

 private:
  std::shared_ptr<const void> json_;  // rows point into its strings
  std::map<std::string, std::vector<KeyRow>> tables_;
};

}  // namespace fp8::io
