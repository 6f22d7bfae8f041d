// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/steps/sentence_piece.h"

#include <unordered_set>

#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {
namespace {

constexpr std::size_t kMaxPieces = 1 << 21;
constexpr std::size_t kLongest = 1024;  // bytes of a piece

// Walks over the fields of one message.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::uint64_t number = 0, value = 0;  // value: of a varint
  std::string_view content;             // of bytes, and of fixed ones

  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t tag = varint();
    number = tag >> 3;
    content = {};
    switch (tag & 7) {
      case 0: value = varint(); break;
      case 1: content = take(8); break;
      case 2: content = take(varint()); break;
      case 5: content = take(4); break;
      default:
        io::fail<io::Error>("{}: is no sentencepiece model: a field of wire type {}, allowed: 0, 1, 2, 5", name_,
                            tag & 7);
    }
    return true;
  }
  float f32() const {
    float result = NAN;
    if (content.size() == sizeof result) std::memcpy(&result, content.data(), sizeof result);
    return result;
  }

 private:
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size())
      io::fail<io::Error>("{}: is no whole sentencepiece model: a field of {} bytes, left are {}", name_, size,
                          bytes_.size());
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  std::uint64_t varint() {
    std::uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      result |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    io::fail<io::Error>("{}: is no sentencepiece model: a number of more than ten bytes", name_);
  }

  std::string_view bytes_;
  const std::string& name_;
};

SentencePieceModel::Piece read_piece(std::string_view bytes, const std::string& name, std::size_t index) {
  SentencePieceModel::Piece piece;
  const auto fail = [&](const std::string& what) { io::fail<io::Error>("{}: piece {} {}", name, index, what); };
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 1) piece.text = fields.content;
    if (fields.number == 2) piece.score = fields.f32();
    if (fields.number == 3) {
      if (fields.value < 1 || fields.value > 6)
        fail("is of type " + std::to_string(fields.value) + ", allowed: 1 to 6");
      piece.kind = static_cast<SentencePieceModel::Kind>(fields.value);
    }
  }
  if (piece.text.empty() || piece.text.size() > kLongest)
    fail("has " + std::to_string(piece.text.size()) + " bytes, allowed: 1 to " + std::to_string(kLongest));
  if (!io::is_utf8(piece.text)) fail("is " + io::in_quotes(piece.text) + ", expected UTF-8");
  if (!std::isfinite(piece.score)) fail("has the score " + std::to_string(piece.score) + ", expected a finite one");
  return piece;
}

void read_trainer(std::string_view bytes, const std::string& name, SentencePieceModel& model) {
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 3) {
      if (fields.value != SentencePieceModel::kUnigram && fields.value != SentencePieceModel::kBpe)
        io::fail<io::Error>("{}: model_type is {}, supported: 1 (unigram), 2 (bpe)", name, fields.value);
      model.type = static_cast<SentencePieceModel::Type>(fields.value);
    }
    if (fields.number == 24) model.treat_whitespace_as_suffix = fields.value != 0;
    if (fields.number == 35) model.byte_fallback = fields.value != 0;
  }
}

void read_normalizer(std::string_view bytes, const std::string& name, SentencePieceModel& model) {
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 2) model.precompiled_charsmap = fields.content;
    if (fields.number == 3) model.add_dummy_prefix = fields.value != 0;
    if (fields.number == 4) model.remove_extra_whitespaces = fields.value != 0;
    if (fields.number == 5) model.escape_whitespaces = fields.value != 0;
  }
}

void check(SentencePieceModel& model, const std::string& name) {
  std::unordered_set<std::string_view> seen;
  int unknown = 0;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& piece = model.pieces[i];
    if (!seen.insert(piece.text).second)
      io::fail<io::Error>("{}: piece {} repeats {}", name, i, io::in_quotes(piece.text));
    if (piece.kind != SentencePieceModel::kUnknown) continue;
    model.unk_id = static_cast<std::int32_t>(i);
    ++unknown;
  }
  if (unknown != 1) io::fail<io::Error>("{}: has {} unknown pieces, expected one", name, unknown);
}

}  // namespace

SentencePieceModel parse_sentence_piece(std::string_view bytes, const std::string& name) {
  SentencePieceModel model;
  for (Fields fields(bytes, name); fields.next();) {
    if (fields.number == 1) {
      if (model.pieces.size() == kMaxPieces) io::fail<io::Error>("{}: has more than {} pieces", name, kMaxPieces);
      model.pieces.push_back(read_piece(fields.content, name, model.pieces.size()));
    }
    if (fields.number == 2) read_trainer(fields.content, name, model);
    if (fields.number == 3) read_normalizer(fields.content, name, model);
  }
  check(model, name);
  return model;
}

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

// The rule for the start of `text`.
Precompiled::Rule SentencePieceNormalizer::next(std::string_view text) const {
  if (const std::size_t size = user_defined_.longest(text).size; size > 0) return {size, text.substr(0, size)};
  if (rules_)
    if (const auto rule = rules_->longest(text); rule.size > 0) return rule;
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
        if (c == ' ')
          result += space_;
        else
          result.push_back(c);
      }
      after_space = written.ends_with(' ');
    }
    if (!remove_extra_) after_space = false;
  }
  while (remove_extra_ && result.ends_with(space_)) result.resize(result.size() - space_.size());
  if (dummy_prefix_ && as_suffix_) result += space_;
  return result;
}

// No offset of the file is trusted: a walk that leaves the array finds nothing.

namespace {

std::uint32_t little_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  return value;
}

std::uint32_t offset_of(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Precompiled::Precompiled(const JsonPart& part) {
  const auto bytes = from_base64(part.string());
  if (!bytes) part.fail("is not base64");
  const std::size_t size = bytes->size() < 4 ? 0 : little_endian(*bytes, 0);
  if (bytes->size() < 4 || size % 4 != 0 || size == 0 || size > bytes->size() - 4)
    part.fail(io::message("is no table of rules: {} bytes, with a trie of {}, expected a multiple of 4 that fits",
                          bytes->size(), size));
  for (std::size_t i = 4; i < size + 4; i += 4) units_.push_back(little_endian(*bytes, i));
  strings_ = bytes->substr(4 + size);
  for (std::size_t end = 0, begin = 0; end < strings_.size(); begin = end + 1) {
    end = std::min(strings_.find('\0', begin), strings_.size());
    if (end - begin > kLongest)
      part.fail("has a rule of " + std::to_string(end - begin) + " bytes, allowed " + std::to_string(kLongest));
    if (!io::is_utf8(std::string_view(strings_).substr(begin, end - begin))) part.fail("has a rule that is not UTF-8");
  }
}

template <class Found>
void Precompiled::walk(std::string_view text, const Found& found) const {
  std::uint32_t node = offset_of(units_[0]);
  const std::size_t end = std::min(text.size(), kLongest);  // a table that leads in a circle has no end of its own
  for (std::size_t i = 0; i < end; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size()) break;
    const std::uint32_t unit = units_[node];
    if ((unit & 0x800000FFu) != byte) break;
    node ^= offset_of(unit);
    if ((unit >> 8 & 1) == 0) continue;
    const std::size_t begin = node < units_.size() ? units_[node] & 0x7FFFFFFFu : strings_.size();
    // An offset into the middle of a character is no rule either.
    if (begin >= strings_.size() || (static_cast<unsigned char>(strings_[begin]) & 0xC0) == 0x80) break;
    if (!found(i + 1, begin)) break;
  }
}

std::string_view Precompiled::rule_at(std::size_t begin) const {
  return std::string_view(strings_).substr(begin, std::min(strings_.find('\0', begin), strings_.size()) - begin);
}

std::optional<std::string_view> Precompiled::rule_of(std::string_view piece) const {
  std::optional<std::string_view> result;
  walk(piece, [&](std::size_t, std::size_t rule) {
    result = rule_at(rule);
    return false;
  });
  return result;
}

Precompiled::Rule Precompiled::longest(std::string_view text) const {
  std::size_t longest = 0, place = 0;
  walk(text, [&](std::size_t size, std::size_t rule) {
    // Neither a rule that ends within a character.
    if (size == text.size() || (static_cast<unsigned char>(text[size]) & 0xC0) != 0x80) longest = size, place = rule;
    return true;
  });
  return longest > 0 ? Rule{longest, rule_at(place)} : Rule();
}

std::string Precompiled::apply(std::string_view text, std::size_t limit) const {
  constexpr std::size_t kLongest = 5;  // bytes of a grapheme that has a rule of its own
  std::string result;
  result.reserve(text.size());
  const auto write = [&](std::string_view piece) {
    if (piece.size() > limit - result.size()) check_bytes(limit + 1, limit, "the precompiled_charsmap");
    result.append(piece);
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = grapheme_size(text, i);
    const std::string_view grapheme = text.substr(i, size);
    i += size;
    if (size <= kLongest) {
      if (const auto rule = rule_of(grapheme)) {
        write(*rule);
        continue;
      }
    }
    for (std::size_t k = 0; k < size;) {
      const std::size_t character = decode_at(grapheme, k).size;
      const std::string_view piece = grapheme.substr(k, character);
      write(rule_of(piece).value_or(piece));
      k += character;
    }
  }
  return result;
}

}  // namespace fp8::text
