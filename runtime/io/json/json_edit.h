// SPDX-License-Identifier: Apache-2.0
// A JSON object's text with some of its top-level members replaced, added or removed: every other byte stays as it is
// (order of keys, 1e-05 and 1.0, indentation, line ends). No torch here.
//
//   {                                  set("b", 3), set("c", {"d": [1]}), erase("a")
//     "a": 1e-05,                      {
//     "b": 1.0                           "b": 3,
//   }                                    "c": {
//                                          "d": [
//                                      ...
#pragma once

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

class JsonEdit {
 public:
  /// text: an object, parsed strictly (parse_json); `name` stands in messages. Throws io::Error.
  JsonEdit(std::string text, std::string name);

  bool contains(const std::string& key) const;
  /// Replaces the value where the key stands, or adds the key at the end, indented as the object is. Throws io::Error
  /// for NaN, infinities and text that is not UTF-8.
  void set(const std::string& key, const Json& value);
  /// Removes the member with its comma and line; nothing happens if there is none.
  void erase(const std::string& key);
  /// Removes it from all objects below, at any depth; not from lists.
  void erase_below(const std::string& key);
  /// Each member of the object `edits`: null erases the key, any other value sets it.
  void apply(const Json& edits);
  const std::string& text() const { return text_; }

 private:
  struct Member {
    std::string key;
    std::size_t begin, colon, value, end;  // offsets of the key's quote, behind the key, of the value, behind the value
  };
  void scan();
  const Member* find(const std::string& key) const;
  std::string shaped(const Json& value) const;
  std::string space_before_first() const;

  std::string text_, name_;
  std::size_t open_ = 0;         // offset of the '{'
  std::vector<Member> members_;  // in the order of the text
};

/// The text of a JSON file (an object of at most 64 MiB), ready to be edited.
JsonEdit read_json_edit(const std::filesystem::path& path);

// The difference between what two runs were asked to do. No torch here.

/// A leaf that is not the same in both: where it is, "option: format", and what was and is there ("nothing" for null).
struct Difference {
  std::string path, was, is;
};
/// None: they are equal. The order of keys does not matter.
std::optional<Difference> first_difference(const Json& was, const Json& is);

/// This difference in words: "option: 'format' was \"fp8\", is \"modelopt\"". Empty: none.
std::string difference(const Json& was, const Json& is);

}  // namespace fp8::io
