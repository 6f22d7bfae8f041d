// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/steps/added_tokens.h"

#include <algorithm>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {
namespace {

Pattern make_word_character() {
  static const io::Json nothing;
  // Here, unlike in patterns, Hugging Face's `\w` has the two joiners.
  return Pattern::regex(R"([\w\x{200c}\x{200d}])", JsonPart(nothing, "added_tokens"));
}

std::size_t spaces_before(std::string_view text, std::size_t end, std::size_t least) {
  while (end > least) {
    const CodePoint c = decode_before(text, end);
    if (!is_white_space(c.value)) break;
    end -= c.size;
  }
  return end;
}

std::size_t spaces_after(std::string_view text, std::size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = decode_at(text, begin);
    if (!is_white_space(c.value)) break;
    begin += c.size;
  }
  return begin;
}

}  // namespace

AddedTokens::AddedTokens() : word_character_(make_word_character()) {}

AddedTokens::AddedTokens(const JsonPart& part, const Vocabulary& vocabulary, const Normalizer& normalizer)
    : AddedTokens() {
  std::size_t all_bytes = 0;
  PrefixTrie::Entries entries[2];
  std::vector<bool> normal;
  for (const JsonPart& entry : part.elements()) {
    const std::string& content = entry.at("content").string();
    const std::int64_t given = entry.at("id").integer(0, Vocabulary::kMaxId);
    if (content.empty()) continue;
    if (content.size() > kMaxBytes)
      entry.fail("has a content of " + std::to_string(content.size()) + " bytes, allowed " + std::to_string(kMaxBytes));
    const std::int64_t in_vocab = vocabulary.find(content);
    const std::int64_t id = in_vocab >= 0 ? in_vocab : given;
    if (in_vocab < 0 && vocabulary.token_of(given))
      entry.fail(io::message("has the id {}, which model.vocab gives to {}", given,
                             io::in_quotes(*vocabulary.token_of(given))));
    if (ids_.count(content) > 0 || by_id_.count(id) > 0)
      entry.fail(io::message("repeats the content or id of an earlier token: {}, {}", io::in_quotes(content), id));
    const bool special = entry.boolean_or("special", false);
    const bool normalized = entry.boolean_or("normalized", !special);
    Token token{normalized && normalizer ? normalizer(content) : content, id, entry.boolean_or("lstrip", false),
                entry.boolean_or("rstrip", false), entry.boolean_or("single_word", false)};
    if (token.text.empty()) entry.fail("is nothing once normalized: " + io::in_quotes(content));
    if (token.text.size() > kMaxBytes)
      entry.fail("is longer than " + std::to_string(kMaxBytes) + " bytes once normalized");
    all_bytes += token.text.size();
    if (all_bytes > kMaxAllBytes) part.fail("has more than " + std::to_string(kMaxAllBytes) + " bytes of tokens");
    normal.push_back(normalized);
    by_id_.emplace(id, tokens_.size());
    ids_.emplace(content, id);
    if (special) special_.insert(content);
    max_id_ = std::max(max_id_, id);
    tokens_.push_back(std::move(token));
  }
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    entries[normal[i]].emplace_back(tokens_[i].text, static_cast<std::int32_t>(i));
  for (const bool normalized : {false, true}) tries_[normalized] = PrefixTrie(part, std::move(entries[normalized]));
}

bool AddedTokens::stands_alone(std::string_view text, std::size_t begin, std::size_t end) const {
  const auto word = [&](std::size_t at, CodePoint c) { return word_character_.found_in(text.substr(at, c.size)); };
  if (begin > 0) {
    const CodePoint before = decode_before(text, begin);
    if (word(begin - before.size, before)) return false;
  }
  return end == text.size() || !word(end, decode_at(text, end));
}

std::vector<Segment> AddedTokens::cut(std::string_view text, bool normalized) const {
  const PrefixTrie& trie = tries_[normalized];
  std::vector<Segment> segments;
  std::size_t done = 0, spaces_end = 0;  // spaces_end: of white space that was taken along
  for (std::size_t i = 0; !trie.empty() && i < text.size();) {
    const bool begins = trie.child(PrefixTrie::kRoot, static_cast<unsigned char>(text[i])) != PrefixTrie::kNone;
    const auto found = begins ? trie.longest(text.substr(i)) : PrefixTrie::Found();
    if (found.size == 0) {
      ++i;
      continue;
    }
    const Token& token = tokens_[found.value];
    std::size_t begin = i, end = i + token.text.size();
    i = end;  // the search continues here even if white space after it is taken along
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(spaces_before(text, begin, done), done);
    if (token.rstrip) end = spaces_end = end < spaces_end ? spaces_end : spaces_after(text, end);
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    // Not the maximum: behind a token within white space that was taken along, the rest of it is text, as for Hugging
    // Face.
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return segments;
}

const std::string* AddedTokens::text_of(std::int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second].text;
}

std::int64_t AddedTokens::id_of(const std::string& content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? -1 : found->second;
}

}  // namespace fp8::text
