// SPDX-License-Identifier: Apache-2.0
// What stands beside a vocabulary: tokenizer_config.json, and where that is silent special_tokens_map.json,
// added_tokens.json and config.json's model_type. A file that is not there says nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/tools/text/steps/vocabulary.h"

// The "vocab" of a tokenizer.json, token -> id, made token by token: io::Json alone looks for each among all of them.

namespace fp8::text {

class TokenTable {
 public:
  TokenTable() = default;
  /// json: an object of ids.
  explicit TokenTable(io::Json json) : json_(std::move(json)) {
    std::size_t place = 0;
    for (const auto& item : object()) places_.emplace(item.first, place++);
  }

  bool contains(const std::string& token) const { return places_.contains(token); }
  std::optional<std::int64_t> find(const std::string& token) const {
    const auto found = places_.find(token);
    if (found == places_.end()) return std::nullopt;
    return (object().begin() + static_cast<std::ptrdiff_t>(found->second))->second.get<std::int64_t>();
  }
  /// Of two ids of one token the later counts.
  void set(const std::string& token, std::int64_t id) {
    auto& all = json_.get_ref<io::Json::object_t&>();
    const auto [found, added] = places_.try_emplace(token, all.size());
    if (added)
      all.push_back({token, id});
    else
      (all.begin() + static_cast<std::ptrdiff_t>(found->second))->second = id;
  }
  const io::Json::object_t& object() const { return json_.get_ref<const io::Json::object_t&>(); }
  /// It is empty afterwards.
  io::Json take() {
    places_.clear();
    return std::exchange(json_, io::Json::object());
  }

 private:
  io::Json json_ = io::Json::object();
  StringMap<std::size_t> places_;
};

/// The special tokens that a file may name.
inline constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};
/// Tokens by their names: {"bos_token", "<s>"}.
using TokenNames = std::map<std::string, std::string>;

class TokenSettings {
 public:
  TokenSettings() = default;  ///< no file
  explicit TokenSettings(const std::filesystem::path& folder);

  /// tokenizer_class without "Fast" ("BertTokenizer"), else model_type ("bert"), else nothing.
  std::string kind() const;
  /// Throws io::Error naming `file` where kind() starts as one of `others`: their files are read in another way.
  void refuse(const std::string& file, std::initializer_list<const char*> others) const;
  bool boolean_or(const char* key, bool otherwise) const;
  /// null or missing: nothing.
  std::optional<bool> boolean(const char* key) const;
  /// The token that `key` ("bos_token") names.
  std::optional<std::string> token(const std::string& key) const;

  /// The "added_tokens" of a tokenizer.json: those listed with their ids, then the special ones that are named, in
  /// `vocab` or behind it. defaults: names where the files give none, of tokens in `vocab` alone.
  io::Json added_tokens(const TokenTable& vocab, const TokenNames& defaults) const;

 private:
  std::optional<JsonPart> find(const std::string& key) const;

  std::string folder_;
  io::Json config_ = io::Json::object(), map_ = config_, added_ = config_, model_ = config_;
};

/// A post-processor that puts tokens before and after a text, by their names. ids: of the vocabulary and of the added
/// ones. Throws io::Error naming `file` where a token has none.
io::Json surround(const std::string& file, const TokenTable& vocab, const io::Json& added_tokens,
                  const std::vector<std::string>& before, const std::vector<std::string>& after);

}  // namespace fp8::text
