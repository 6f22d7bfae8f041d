// SPDX-License-Identifier: Apache-2.0
// See steps.h.

#include "fp8/tools/text/steps/sentence_piece.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {
namespace {

/// limit: the most bytes that the whole chain may make of the text that it was given.
using Step = std::function<std::string(std::string text, std::size_t limit)>;

// Each code point of `text` in turn: each(result, code point, its bytes) appends what becomes of it.
template <class Each>
std::string rewrite(std::string_view text, const Each& each) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = decode_at(text, i);
    each(result, c.value, text.substr(i, c.size));
    i += c.size;
  }
  return result;
}

std::string lower(std::string text) {
  if (!io::is_ascii(text)) return rewrite(text, [](std::string& to, std::uint32_t c, auto) { append_lower(to, c); });
  return io::lower(std::move(text));
}

std::string without(bool (*dropped)(std::uint32_t), std::string text) {
  if (io::is_ascii(text)) return text;
  return rewrite(text, [dropped](std::string& to, std::uint32_t c, std::string_view bytes) {
    if (!dropped(c)) to.append(bytes);
  });
}

std::string without_marks(std::string text) { return without(&is_mark, std::move(text)); }

// No control characters; white space is a space.
void append_clean(std::string& to, std::uint32_t c, std::string_view bytes) {
  const bool space = is_white_space(c) && c != 0x0B && c != 0x0C && c != 0x85;  // those three count as control
  if (space)
    to.push_back(' ');
  else if (c != 0xFFFD && !is_control(c))
    to.append(bytes);
}

Step make_bert(const JsonPart& part) {
  const bool clean = part.boolean_or("clean_text", true), ideographs = part.boolean_or("handle_chinese_chars", true);
  const bool to_lower = part.boolean_or("lowercase", true), strip = part.boolean_or("strip_accents", to_lower);
  return [=](std::string text, std::size_t) {
    if (clean) text = rewrite(text, append_clean);
    if (ideographs && !io::is_ascii(text)) {
      text = rewrite(text, [](std::string& to, std::uint32_t c, std::string_view bytes) {
        const char* const around = is_ideograph(c) ? " " : "";
        to.append(around).append(bytes).append(around);
      });
    }
    if (strip) text = without(&is_nonspacing_mark, normalized(text, NormalForm::NFD));
    return to_lower ? lower(std::move(text)) : text;
  };
}

Step make_strip(const JsonPart& part) {
  const bool left = part.boolean_or("strip_left", true), right = part.boolean_or("strip_right", true);
  return [=](std::string text, std::size_t) {
    std::size_t begin = 0, end = text.size();
    for (CodePoint c; left && begin < end && is_white_space((c = decode_at(text, begin)).value);) begin += c.size;
    for (CodePoint c; right && begin < end && is_white_space((c = decode_before(text, end)).value);) end -= c.size;
    return text.substr(begin, end - begin);
  };
}

// SentencePiece's nmt rules: some control characters are dropped, some invisible ones are spaces.
void append_nmt(std::string& to, std::uint32_t c, std::string_view bytes) {
  const bool dropped =
      (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  if (space)
    to.push_back(' ');
  else if (!dropped)
    to.append(bytes);
}

Step make_prepend(const JsonPart& part) {
  return [prefix = part.at("prepend").string()](std::string text, std::size_t limit) {
    if (text.empty()) return text;
    check_bytes(prefix.size() + text.size(), limit, "prepending " + io::in_quotes(prefix));
    return prefix + text;
  };
}

Step make_replace(const JsonPart& part) {
  const auto pattern = std::make_shared<const Pattern>(Pattern::from_json(part.at("pattern")));
  return [pattern, content = part.at("content").string()](std::string text, std::size_t limit) {
    return pattern->replace(text, content, limit);
  };
}

Step make_precompiled(const JsonPart& part) {
  const auto table = std::make_shared<const Precompiled>(part.at("precompiled_charsmap"));
  return [table](std::string text, std::size_t limit) { return table->apply(text, limit); };
}

Step make_sentence_piece(const JsonPart& part) {
  const auto rules = std::make_shared<const SentencePieceNormalizer>(part);
  return [rules](std::string text, std::size_t limit) { return rules->apply(text, limit); };
}

// A step whose result is a few times as long at most.
template <class F>
Step plain(const F& step) {
  return [step](std::string text, std::size_t limit) {
    text = step(std::move(text));
    check_bytes(text.size(), limit, "the normalizer");
    return text;
  };
}

Step form_step(NormalForm form) {
  return plain([form](std::string text) { return normalized(text, form); });
}

Step make_step(const JsonPart& part);

Step make_sequence(const JsonPart& part) {
  std::vector<Step> steps;
  for (const JsonPart& step : part.at("normalizers").elements()) steps.push_back(make_step(step));
  return [steps = std::move(steps)](std::string text, std::size_t limit) {
    for (const Step& step : steps) text = step(std::move(text), limit);
    return text;
  };
}

std::string byte_letters(std::string text) {
  std::string letters;
  append_byte_letters(letters, text);
  return letters;
}

Step make_step(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "BertNormalizer") return make_bert(part);
  if (type == "Lowercase") return plain(lower);
  if (type == "Strip") return make_strip(part);
  if (type == "StripAccents") return plain(without_marks);
  if (type == "NFC") return form_step(NormalForm::NFC);
  if (type == "NFD") return form_step(NormalForm::NFD);
  if (type == "NFKC") return form_step(NormalForm::NFKC);
  if (type == "NFKD") return form_step(NormalForm::NFKD);
  if (type == "Nmt") return plain([](std::string text) { return rewrite(text, append_nmt); });
  if (type == "Precompiled") return make_precompiled(part);
  if (type == "Prepend") return make_prepend(part);
  if (type == "Replace") return make_replace(part);
  if (type == "ByteLevel") return plain(byte_letters);
  if (type == "SentencePiece") return make_sentence_piece(part);
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type(
      "BertNormalizer, Lowercase, Strip, StripAccents, NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, Replace, "
      "ByteLevel, Sequence");
}

}  // namespace

Normalizer make_normalizer(const JsonPart& part) {
  check_steps(part, "normalizers");
  return [step = make_step(part)](std::string text) {
    const std::size_t limit = most_bytes_of(text.size());
    return step(std::move(text), limit);
  };
}

}  // namespace fp8::text
