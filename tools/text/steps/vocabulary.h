// SPDX-License-Identifier: Apache-2.0
// The tokens of a model and their ids, both ways.
#pragma once
#include <array>
#include <unordered_map>

#include "fp8/runtime/io/json/json.h"

namespace fp8::text {

// One part of a JSON file that knows where it stands, so that every complaint names file and key:
// "DIR/tokenizer.json: pre_tokenizer.pretokenizers[0].behavior is 'Joined', supported: Isolated, Removed".

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

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

class Vocabulary {
 public:
  static constexpr std::int64_t kMaxId = (1 << 24) - 1;           ///< largest id that is accepted
  static constexpr std::size_t kLongest = std::size_t{64} << 10;  ///< bytes of a token
  static constexpr std::int32_t kNone = -1;

  Vocabulary() = default;
  /// part: an object token -> id. Throws io::Error on ids that are negative, huge or given twice.
  explicit Vocabulary(const JsonPart& part);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  /// Gives `token` the id; of two ids of one token the later counts, both are known by id.
  void add(const std::string& token, std::int32_t id);

  /// The id of a token, or kNone.
  std::int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? kNone : found->second;
  }
  /// The id of a token; throws io::Error naming `part` where there is none.
  std::int32_t known(const JsonPart& part, std::string_view token) const;
  /// The token of an id, or null.
  const std::string* token_of(std::int64_t id) const;
  std::int32_t max_id() const { return max_id_; }
  const StringMap<std::int32_t>& tokens() const { return ids_; }
  /// All tokens with their ids, views of this vocabulary.
  std::vector<std::pair<std::string_view, std::int32_t>> entries() const { return {ids_.begin(), ids_.end()}; }
  /// The ids of <0x00> to <0xFF>, kNone where there is no such token.
  std::array<std::int32_t, 256> byte_ids() const;

 private:
  StringMap<std::int32_t> ids_;
  std::unordered_map<std::int32_t, const std::string*> tokens_;  // points at ids_'s keys, whose nodes never move
  std::int32_t max_id_ = kNone;
};

// A dictionary that finds all words a text starts with, in one walk over its bytes.
//
//   nodes in breadth-first order, so that the children of one stand together, sorted by their byte:
//   {a: 1, ab: 2, b: 3}   root [a b]   a (1) [b]   b (3) []   ab (2) []

class PrefixTrie {
 public:
  static constexpr std::int32_t kRoot = 0, kNone = -1;

  using Entries = std::vector<std::pair<std::string_view, std::int32_t>>;
  /// The most bytes of a word, and of all: a walk begins at each position of a text, and the longest word bounds it.
  static constexpr std::size_t kLongest = 256, kMost = std::size_t{32} << 20;

  PrefixTrie() : PrefixTrie(Entries()) {}
  /// entries: words and their values >= 0; empty words are left out, of equal words the greatest value counts. Throws
  /// io::Error naming `part` for words that are too long.
  PrefixTrie(const JsonPart& part, Entries entries);

  bool empty() const { return nodes_.size() == 1; }
  /// The child of `node` by a byte, or kNone.
  std::int32_t child(std::int32_t node, unsigned char byte) const {
    const Node& here = nodes_[node];
    if (node == kRoot) return of_byte_[byte];
    std::int32_t i = here.first, end = here.first + here.children;
    while (end - i > 32) {
      const std::int32_t middle = i + (end - i) / 2;
      (nodes_[middle].byte <= byte ? i : end) = middle;
    }
    for (; i < end; ++i)
      if (nodes_[i].byte >= byte) return nodes_[i].byte == byte ? i : kNone;
    return kNone;
  }
  /// The longest word that `text` starts with; size 0: none.
  struct Found {
    std::size_t size = 0;
    std::int32_t value = kNone;
  };
  Found longest(std::string_view text) const;
  /// The node that the bytes of `text` lead to, or kNone.
  std::int32_t walk(std::string_view text) const;
  /// The value of the word that ends at `node`, or kNone.
  std::int32_t value(std::int32_t node) const { return nodes_[node].value; }

 private:
  explicit PrefixTrie(Entries entries);

  struct Node {
    std::int32_t first = 0, value = kNone;
    std::int16_t children = 0;
    unsigned char byte = 0;
  };
  std::vector<Node> nodes_;
  std::int32_t of_byte_[256];  // the root's children
};

}  // namespace fp8::text
