// SPDX-License-Identifier: Apache-2.0
// The tokens of a model and their ids, both ways.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fp8/tools/text/json_part.h"

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
  /// The same; throws io::Error naming `part` where there is none.
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

}  // namespace fp8::text
