// SPDX-License-Identifier: Apache-2.0
// See sentence_piece_normalizer.h.
#include "fp8/tools/text/sentence_piece_normalizer.h"

#include <utility>

#include "fp8/tools/text/growth.h"
#include "fp8/tools/text/unicode/utf8.h"

namespace fp8::text {

SentencePieceNormalizer::SentencePieceNormalizer(const JsonPart& part)
    : space_(part.boolean_or("escape_whitespaces", true) ? "\xE2\x96\x81" : " "),
      dummy_prefix_(part.boolean_or("add_dummy_prefix", true)),
      as_suffix_(part.boolean_or("treat_whitespace_as_suffix", false)),
      remove_extra_(part.boolean_or("remove_extra_whitespaces", true)),
      keep_first_(part.boolean_or("keep_first_space", false)) {
  if (const auto rules = part.find("precompiled_charsmap")) rules_.emplace(*rules);
  if (const auto tokens = part.find("user_defined")) {
    PrefixTrie::Entries entries;
    for (const JsonPart& token : tokens->elements()) entries.emplace_back(token.string(), 0);
    user_defined_ = PrefixTrie(*tokens, std::move(entries));
  }
}

// What the start of `text` becomes, and how much of it.
Precompiled::Rule SentencePieceNormalizer::next(std::string_view text) const {
  if (const std::size_t size = user_defined_.longest(text).size; size > 0) return {size, text.substr(0, size)};
  if (rules_) {
    if (const auto rule = rules_->longest(text); rule.size > 0) return rule;
  }
  const std::size_t size = decode_at(text, 0).size;
  return {size, text.substr(0, size)};
}

std::string SentencePieceNormalizer::apply(std::string_view text, std::size_t limit) const {
  while (remove_extra_ && !keep_first_ && !text.empty()) {
    const auto rule = next(text);
    if (rule.text != " ") break;
    text.remove_prefix(rule.size);
  }
  std::string result;
  if (text.empty()) return result;
  if (dummy_prefix_ && !as_suffix_) result += space_;
  bool after_space = remove_extra_ && !keep_first_;
  while (!text.empty()) {
    auto [size, written] = next(text);
    text.remove_prefix(size);
    while (after_space && written.starts_with(' ')) written.remove_prefix(1);
    if (!written.empty()) {
      check_bytes(result.size() + space_.size() * written.size(), limit, "the normalizer");
      for (const char c : written) {
        if (c == ' ') {
          result += space_;
        } else {
          result.push_back(c);
        }
      }
      after_space = written.ends_with(' ');
    }
    if (!remove_extra_) after_space = false;
  }
  while (remove_extra_ && result.ends_with(space_)) result.resize(result.size() - space_.size());
  if (dummy_prefix_ && as_suffix_) result += space_;
  return result;
}

}  // namespace fp8::text
