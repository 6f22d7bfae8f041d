// SPDX-License-Identifier: Apache-2.0
// See steps.h.
#include <charconv>

#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {
namespace {

using Tokens = std::vector<std::string>;
// limit: the most bytes that the whole chain may make of the tokens that it was given.
using Step = std::function<Tokens(Tokens tokens, std::size_t limit)>;

std::size_t bytes_of(const Tokens& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

// Letters back to bytes, all tokens together (a character's bytes may lie in two); a token with other letters stays as
// it is.
Tokens decode_byte_level(Tokens tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const std::size_t start = bytes.size();
    for (std::size_t i = 0; i < token.size();) {
      const CodePoint c = decode_at(token, i);
      const int byte = byte_of_letter(c.value);
      if (byte < 0) {
        bytes.replace(start, std::string::npos, token);
        break;
      }
      bytes.push_back(static_cast<char>(byte));
      i += c.size;
    }
  }
  return {sanitize(bytes)};
}

std::optional<unsigned char> byte_of_token(std::string_view token) {  // "<0x0A>"
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* const end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<unsigned char>(value);
}

// A run of byte tokens becomes its text, or as many U+FFFD as it has bytes where it is not UTF-8.
Tokens decode_byte_fallback(Tokens tokens) {
  Tokens result;
  std::string bytes;
  const auto flush = [&] {
    if (io::is_utf8(bytes)) {
      if (!bytes.empty()) result.push_back(bytes);
    } else {
      result.insert(result.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes.push_back(static_cast<char>(*byte));
    } else {
      flush();
      result.push_back(std::move(token));
    }
  }
  flush();
  return result;
}

Tokens fuse(Tokens tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return {std::move(text)};
}

Step make_metaspace(const JsonPart& part) {
  const std::string mark = part.at("replacement").character();
  const auto scheme = part.find("prepend_scheme");
  const bool prepended = scheme ? scheme->string() != "never" : part.boolean_or("add_prefix_space", true);
  const auto pattern = std::make_shared<const Pattern>(Pattern::literal(mark));
  return [=](Tokens tokens, std::size_t) {
    bool strip = prepended;  // the first token's marks are what encoding prepended
    for (std::string& token : tokens) {
      token = pattern->replace(token, strip ? "" : " ", token.size());
      strip = false;
    }
    return tokens;
  };
}

Step make_replace(const JsonPart& part) {
  const auto pattern = std::make_shared<const Pattern>(Pattern::from_json(part.at("pattern")));
  return [pattern, content = part.at("content").string()](Tokens tokens, std::size_t limit) {
    for (std::string& token : tokens) {
      token = pattern->replace(token, content, limit);
      limit -= token.size();
    }
    return tokens;
  };
}

// Takes up to `start` leading and `stop` trailing characters equal to `content` off each token.
Step make_strip(const JsonPart& part) {
  const std::string content = part.at("content").character();
  const std::int64_t start = part.at("start").integer(0, 1 << 20), stop = part.at("stop").integer(0, 1 << 20);
  return [=](Tokens tokens, std::size_t) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < start && rest.substr(0, content.size()) == content; ++i)
        rest.remove_prefix(content.size());
      for (std::int64_t i = 0;
           i < stop && rest.size() >= content.size() && rest.substr(rest.size() - content.size()) == content; ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
    return tokens;
  };
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t done = 0, found = find_text(text, from);
  if (found == std::string::npos) return;
  std::string result;
  for (; found != std::string::npos; found = find_text(text, from, done)) {
    result.append(text, done, found - done).append(to);
    done = found + from.size();
  }
  text = std::move(result.append(text, done));
}

// Takes the spaces away that English text does not have: before punctuation and in contractions.
void clean_up(std::string& text) {
  constexpr std::pair<const char*, const char*> kChanges[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kChanges) replace_all(text, from, to);
}

// "un" "##able" "tests" -> "unable tests"
Step make_word_piece(const JsonPart& part) {
  return [prefix = part.at("prefix").string(), clean = part.boolean_or("cleanup", true)](Tokens tokens, std::size_t) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix))
        token.erase(0, prefix.size());
      else if (i > 0)
        token.insert(0, " ");
      if (clean) clean_up(token);
    }
    return tokens;
  };
}

// The suffix is the space between words: "un" "able</w>" "tests</w>" -> "unable tests"
Step make_bpe(const JsonPart& part) {
  const std::string suffix = part.at("suffix").string();
  if (suffix.empty()) part.at("suffix").fail("is empty");
  return [suffix](Tokens tokens, std::size_t) {
    for (std::size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
    return tokens;
  };
}

// Connectionist temporal classification: repeated tokens are one, the padding is nothing.
Step make_ctc(const JsonPart& part) {
  const std::string pad = part.at("pad_token").string(), space = part.at("word_delimiter_token").string();
  if (space.empty()) part.at("word_delimiter_token").fail("is empty");
  return [pad, space, clean = part.boolean_or("cleanup", true)](Tokens tokens, std::size_t) {
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    for (std::string& token : tokens) {
      if (!pad.empty()) replace_all(token, pad, "");
      if (!clean) continue;
      clean_up(token);
      replace_all(token, space, " ");
    }
    std::erase(tokens, "");
    return tokens;
  };
}

Step make_step(const JsonPart& part);

Step make_sequence(const JsonPart& part) {
  std::vector<Step> steps;
  for (const JsonPart& step : part.at("decoders").elements()) steps.push_back(make_step(step));
  return [steps = std::move(steps)](Tokens tokens, std::size_t limit) {
    for (const Step& step : steps) tokens = step(std::move(tokens), limit);
    return tokens;
  };
}

// A step that adds little: a byte that is no character becomes three.
Step plain(Tokens (*decode)(Tokens)) {
  return [decode](Tokens tokens, std::size_t) { return decode(std::move(tokens)); };
}

Step make_step(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "ByteLevel") return plain(&decode_byte_level);
  if (type == "ByteFallback") return plain(&decode_byte_fallback);
  if (type == "Fuse") return plain(&fuse);
  if (type == "Metaspace") return make_metaspace(part);
  if (type == "Replace") return make_replace(part);
  if (type == "Strip") return make_strip(part);
  if (type == "WordPiece") return make_word_piece(part);
  if (type == "BPEDecoder") return make_bpe(part);
  if (type == "CTC") return make_ctc(part);
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type(
      "WordPiece, BPEDecoder, CTC, ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence");
}

}  // namespace

Decoder make_decoder(const JsonPart& part) {
  check_steps(part, "decoders");
  return [step = make_step(part)](Tokens tokens) {
    const std::size_t limit = most_bytes_of(bytes_of(tokens));
    return step(std::move(tokens), limit);
  };
}

}  // namespace fp8::text
