// SPDX-License-Identifier: Apache-2.0
// The tokens of a model and their ids, both ways.
#pragma once
#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "fp8/tools/text/steps/json_part.h"

namespace fp8::text {

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
    for (; i < end; ++i) {
      if (nodes_[i].byte >= byte) return nodes_[i].byte == byte ? i : kNone;
    }
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
