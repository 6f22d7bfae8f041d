// SPDX-License-Identifier: Apache-2.0
// The "vocab" of a tokenizer.json, token -> id, made token by token: io::Json alone looks for each among all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "fp8/tools/text/vocabulary.h"

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

}  // namespace fp8::text
