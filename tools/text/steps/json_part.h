// SPDX-License-Identifier: Apache-2.0
// One part of a JSON file that knows where it stands, so that every complaint names file and key:
// "DIR/tokenizer.json: pre_tokenizer.pretokenizers[0].behavior is 'Joined', supported: Isolated, Removed".
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"

namespace fp8::text {

/// A view: the document outlives it.
class JsonPart {
 public:
  /// file: stands first in every message; path: where `json` is in it ("" for the top).
  JsonPart(const io::Json& json, std::string file, std::string path = "")
      : json_(&json), file_(std::move(file)), path_(std::move(path)) {}

  const io::Json& json() const { return *json_; }
  /// The member `key`; throws if this is no object or has no such member.
  JsonPart at(const std::string& key) const;
  /// The member `key`; empty if it is missing or null. Throws if this is no object.
  std::optional<JsonPart> find(const std::string& key) const;
  /// `json` as the member `key` of this, for a walk over the members.
  JsonPart member(const std::string& key, const io::Json& json) const {
    return {json, file_, path_.empty() ? key : path_ + "." + key};
  }
  /// The elements of an array.
  std::vector<JsonPart> elements() const;

  const std::string& string() const;
  bool boolean() const;
  /// An integer in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  /// The member `key` as a bool, `otherwise` where it is missing or null.
  bool boolean_or(const std::string& key, bool otherwise) const;
  /// A string of one code point (as UTF-8).
  const std::string& character() const;
  /// Member "type", the tag of normalizers, pre-tokenizers, post-processors and decoders.
  const std::string& type() const { return type_part().string(); }

  /// Throws io::Error "FILE: PATH MESSAGE".
  [[noreturn]] void fail(const std::string& message) const;
  /// Throws io::Error "FILE: PATH is 'FOUND', supported: ALLOWED".
  [[noreturn]] void unsupported(const std::string& found, const std::string& allowed) const;
  /// Same for the member "type".
  [[noreturn]] void unsupported_type(const std::string& allowed) const;

 private:
  JsonPart type_part() const { return at("type"); }
  [[noreturn]] void wrong_type(const char* expected) const;

  const io::Json* json_;
  std::string file_, path_;
};

}  // namespace fp8::text
