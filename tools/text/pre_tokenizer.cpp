// SPDX-License-Identifier: Apache-2.0
// See steps.h. Steps are closures; a Sequence chains their sinks, so that no list of words is ever built.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/tools/text/pattern.h"
#include "fp8/tools/text/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// What becomes of matches, the delimiters, and of what lies between them, on "the-final--countdown" split at "-":
//   Isolated            the - final - - countdown
//   Removed             the final countdown
//   Contiguous          the - final -- countdown
//   MergedWithPrevious  the- final- - countdown
//   MergedWithNext      the -final - -countdown
enum class Behavior { Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext };
constexpr auto names_of(Behavior) {
  using enum Behavior;
  return std::to_array<EnumName<Behavior>>({{Isolated, "Isolated"},
                                            {Removed, "Removed"},
                                            {Contiguous, "Contiguous"},
                                            {MergedWithPrevious, "MergedWithPrevious"},
                                            {MergedWithNext, "MergedWithNext"}});
}

enum class PrependScheme { first, always, never };
constexpr auto names_of(PrependScheme) {
  using enum PrependScheme;
  return std::to_array<EnumName<PrependScheme>>({{first, "first"}, {always, "always"}, {never, "never"}});
}

template <NamedEnum E>
E value_of(const JsonPart& part) {
  if (const auto value = parse_enum<E>(part.string())) return *value;
  part.unsupported(part.string(), allowed_names<E>());
}

// stretches: consecutive, covering the text. The words, empty ones included.
std::vector<Stretch> words_of(Behavior behavior, const std::vector<Stretch>& stretches) {
  std::vector<Stretch> words;
  words.reserve(stretches.size());
  bool joined = false;  // MergedWithNext: the last word is a delimiter that waits for its successor
  for (const Stretch& stretch : stretches) {
    const bool after_match = !words.empty() && words.back().match;
    bool join = false;
    switch (behavior) {
      case Behavior::Isolated:
        break;
      case Behavior::Removed:
        if (stretch.match) continue;
        break;
      case Behavior::Contiguous:
        join = !words.empty() && words.back().match == stretch.match;
        break;
      case Behavior::MergedWithPrevious:
        join = !words.empty() && stretch.match && !after_match;
        break;
      case Behavior::MergedWithNext:
        join = joined && !stretch.match;
        joined = stretch.match;
        break;
    }
    if (join) {
      words.back().end = stretch.end;
      words.back().match = stretch.match;
    } else {
      words.push_back(stretch);
    }
  }
  return words;
}

bool emit(std::string_view text, bool first, const std::vector<Stretch>& words, const WordSink& sink) {
  for (const Stretch& word : words) {
    if (word.begin == word.end) continue;
    if (!sink(text.substr(word.begin, word.end - word.begin), first && word.begin == 0)) return false;
  }
  return true;
}

std::vector<Stretch> inverted(std::vector<Stretch> stretches) {
  for (Stretch& stretch : stretches) stretch.match = !stretch.match;
  return stretches;
}

PreTokenizer make_split(const JsonPart& part) {
  const auto pattern = std::make_shared<const Pattern>(Pattern::from_json(part.at("pattern")));
  const Behavior behavior = value_of<Behavior>(part.at("behavior"));
  const bool invert = part.at("invert").boolean();
  return [=](std::string_view text, bool first, const WordSink& sink) {
    std::vector<Stretch> stretches = pattern->split(text);
    for (Stretch& stretch : stretches) stretch.match ^= invert;
    return emit(text, first, words_of(behavior, stretches), sink);
  };
}

PreTokenizer make_digits(const JsonPart& part) {
  const auto digit = std::make_shared<const Pattern>(Pattern::regex("\\p{N}", part));
  const Behavior behavior = part.at("individual_digits").boolean() ? Behavior::Isolated : Behavior::Contiguous;
  return [=](std::string_view text, bool first, const WordSink& sink) {
    return emit(text, first, words_of(behavior, digit->split(text)), sink);
  };
}

PreTokenizer make_byte_level(const JsonPart& part) {
  const bool add_prefix_space = part.at("add_prefix_space").boolean();
  std::shared_ptr<const Pattern> pattern;
  if (part.boolean_or("use_regex", true)) pattern = std::make_shared<const Pattern>(Pattern::regex(kGpt2Pattern, part));
  return [=](std::string_view text, bool first, const WordSink& sink) {
    std::string prefixed;
    if (add_prefix_space && text.front() != ' ') {
      prefixed.append(" ").append(text);
      text = prefixed;
    }
    std::string letters;
    const WordSink write = [&](std::string_view word, bool word_first) {
      letters.clear();
      append_byte_letters(letters, word);
      return sink(letters, word_first);
    };
    return pattern ? emit(text, first, pattern->split(text), write) : write(text, first);
  };
}

PrependScheme prepend_scheme(const JsonPart& part) {
  const auto name = part.find("prepend_scheme");
  const PrependScheme scheme = name ? value_of<PrependScheme>(*name) : PrependScheme::always;
  if (!part.boolean_or("add_prefix_space", true) && scheme != PrependScheme::never) {
    part.fail("has add_prefix_space false, which needs prepend_scheme 'never'");
  }
  return scheme;
}

// Spaces become the replacement; with split, each replacement starts a word.
PreTokenizer make_metaspace(const JsonPart& part) {
  const std::string mark = part.at("replacement").character();
  const PrependScheme scheme = prepend_scheme(part);
  const bool split = part.boolean_or("split", true);
  const auto spaces = std::make_shared<const Pattern>(Pattern::literal(" "));
  const auto marks = std::make_shared<const Pattern>(Pattern::literal(mark));
  return [=](std::string_view text, bool first, const WordSink& sink) {
    std::string marked = spaces->replace(text, mark, mark.size() * text.size());
    const bool wanted = scheme == PrependScheme::always || (scheme == PrependScheme::first && first);
    if (wanted && !marked.starts_with(mark)) marked.insert(0, mark);
    if (!split) return sink(marked, first);
    return emit(marked, first, words_of(Behavior::MergedWithNext, marks->split(marked)), sink);
  };
}

// Cuts at white space, and with `punctuation` on both sides of each such character.
PreTokenizer make_word_split(bool punctuation) {
  return [punctuation](std::string_view text, bool first, const WordSink& sink) {
    std::size_t begin = 0;
    const auto word = [&](std::size_t from, std::size_t to) {
      return from == to || sink(text.substr(from, to - from), first && from == 0);
    };
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = decode_at(text, i);
      const bool space = is_white_space(c.value), alone = !space && punctuation && is_punctuation(c.value);
      if (space || alone) {
        if (!word(begin, i)) return false;
        begin = i + c.size;
        if (alone && !word(i, begin)) return false;
      }
      i += c.size;
    }
    return word(begin, text.size());
  };
}

// Words of letters, digits and _, and runs of what is neither that nor white space.
PreTokenizer make_whitespace(const JsonPart& part) {
  const auto pattern =
      std::make_shared<const Pattern>(Pattern::regex(R"([\w\x{200c}\x{200d}]+|[^\w\s\x{200c}\x{200d}]+)", part));
  return [=](std::string_view text, bool first, const WordSink& sink) {
    return emit(text, first, words_of(Behavior::Removed, inverted(pattern->split(text))), sink);
  };
}

PreTokenizer make_punctuation(const JsonPart& part) {
  const auto named = part.find("behavior");
  const Behavior behavior = named ? value_of<Behavior>(*named) : Behavior::Isolated;
  return [=](std::string_view text, bool first, const WordSink& sink) {
    std::vector<Stretch> stretches;
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = decode_at(text, i);
      const bool match = is_punctuation(c.value);
      if (match || stretches.empty() || stretches.back().match) stretches.push_back({i, i, match});
      i += c.size;
      stretches.back().end = i;
    }
    return emit(text, first, words_of(behavior, stretches), sink);
  };
}

PreTokenizer make_delimiter_split(const JsonPart& part) {
  const auto delimiter = std::make_shared<const Pattern>(Pattern::literal(part.at("delimiter").character()));
  return [=](std::string_view text, bool first, const WordSink& sink) {
    return emit(text, first, words_of(Behavior::Removed, delimiter->split(text)), sink);
  };
}

PreTokenizer make_fixed_length(const JsonPart& part) {
  const std::int64_t length = part.find("length") ? part.at("length").integer(1, INT32_MAX) : 5;
  return [=](std::string_view text, bool first, const WordSink& sink) {
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = begin;
      for (std::int64_t n = 0; n < length && end < text.size(); ++n) end += decode_at(text, end).size;
      if (!sink(text.substr(begin, end - begin), first && begin == 0)) return false;
      begin = end;
    }
    return true;
  };
}

// Cuts where the script changes; characters of none go with what is before them, and at the start are left out.
PreTokenizer make_scripts() {
  const auto scripts = std::make_shared<const Scripts>();
  return [scripts](std::string_view text, bool first, const WordSink& sink) {
    std::size_t begin = std::string_view::npos;  // of the word at hand
    std::uint32_t last = ' ';
    for (std::size_t i = 0; i < text.size();) {
      const CodePoint c = decode_at(text, i);
      if (!scripts->same(last, c.value) && scripts->has_one(c.value)) {
        if (begin < i && !sink(text.substr(begin, i - begin), first && begin == 0)) return false;
        begin = i;
        last = c.value;
      }
      i += c.size;
    }
    return begin >= text.size() || sink(text.substr(begin), first && begin == 0);
  };
}

// A chain at work on one text: the bytes that each step was given so far.
struct Run {
  const std::vector<PreTokenizer>& steps;
  const WordSink& sink;
  std::size_t limit;
  std::vector<std::size_t> bytes;

  bool from(std::size_t step, std::string_view text, bool first) {
    bytes[step] += text.size();
    check_bytes(bytes[step], limit, "the pre_tokenizer");
    if (step == steps.size()) return sink(text, first);
    return steps[step](text, first,
                       [&, step](std::string_view word, bool word_first) { return from(step + 1, word, word_first); });
  }
};

PreTokenizer make_step(const JsonPart& part);

PreTokenizer make_sequence(const JsonPart& part) {
  std::vector<PreTokenizer> steps;
  for (const JsonPart& step : part.at("pretokenizers").elements()) steps.push_back(make_step(step));
  return [steps = std::move(steps)](std::string_view text, bool first, const WordSink& sink) {
    Run run{steps, sink, most_bytes_of(text.size()), std::vector<std::size_t>(steps.size() + 1)};
    return run.from(0, text, first);
  };
}

PreTokenizer make_step(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "ByteLevel") return make_byte_level(part);
  if (type == "Metaspace") return make_metaspace(part);
  if (type == "Split") return make_split(part);
  if (type == "Digits") return make_digits(part);
  if (type == "BertPreTokenizer") return make_word_split(true);
  if (type == "WhitespaceSplit") return make_word_split(false);
  if (type == "Whitespace") return make_whitespace(part);
  if (type == "Punctuation") return make_punctuation(part);
  if (type == "CharDelimiterSplit") return make_delimiter_split(part);
  if (type == "UnicodeScripts") return make_scripts();
  if (type == "FixedLength") return make_fixed_length(part);
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type(
      "ByteLevel, Metaspace, Split, Digits, BertPreTokenizer, WhitespaceSplit, Whitespace, Punctuation, "
      "CharDelimiterSplit, UnicodeScripts, FixedLength, Sequence");
}

}  // namespace

PreTokenizer make_pre_tokenizer(const JsonPart& part) {
  check_steps(part, "pretokenizers");
  return make_step(part);
}

}  // namespace fp8::text
