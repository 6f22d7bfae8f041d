// SPDX-License-Identifier: Apache-2.0
// See steps.h. Steps are closures; a Sequence chains their sinks, so that no list of words is ever built.
#include <sstream>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// The treatment of matches, the delimiters, and of the text between, on "the-final--countdown" split at "-":
//   Isolated            the - final - - countdown
//   Removed             the final countdown
//   Contiguous          the - final -- countdown
//   MergedWithPrevious  the- final- - countdown
//   MergedWithNext      the -final - -countdown
enum class Behavior { Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext };
FP8_ENUM_NAMES(Behavior, {Isolated, "Isolated"}, {Removed, "Removed"}, {Contiguous, "Contiguous"},
               {MergedWithPrevious, "MergedWithPrevious"}, {MergedWithNext, "MergedWithNext"});

enum class PrependScheme { first, always, never };
FP8_ENUM_NAMES(PrependScheme, {first, "first"}, {always, "always"}, {never, "never"});

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
      case Behavior::Isolated: break;
      case Behavior::Removed:
        if (stretch.match) continue;
        break;
      case Behavior::Contiguous: join = !words.empty() && words.back().match == stretch.match; break;
      case Behavior::MergedWithPrevious: join = !words.empty() && stretch.match && !after_match; break;
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
  if (!part.boolean_or("add_prefix_space", true) && scheme != PrependScheme::never)
    part.fail("has add_prefix_space false, which needs prepend_scheme 'never'");
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

// Which characters are of one script (Unicode's Scripts.txt, version 9), as the pre-tokenizer UnicodeScripts asks:
// Latin, Greek, Common and so on; Hiragana, Katakana and U+30FC count as Han. A space, what is not assigned and what is
// for private use are of none. PCRE2 knows the script of each character; what Unicode has changed since version 9
// stands here.

// Those of Unicode 9 but Han, the frequent ones first.
constexpr const char* kScripts =
    "Latin Common Cyrillic Greek Arabic Hebrew Devanagari Thai Hangul Inherited Bopomofo Coptic Armenian Syriac "
    "Thaana Nko Samaritan Mandaic Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala Lao "
    "Tibetan Myanmar Georgian Ethiopic Cherokee Canadian_Aboriginal Ogham Runic Tagalog Hanunoo Buhid Tagbanwa "
    "Khmer Mongolian Limbu Tai_Le New_Tai_Lue Buginese Tai_Tham Balinese Sundanese Batak Lepcha Ol_Chiki Braille "
    "Glagolitic Tifinagh Yi Lisu Vai Bamum Syloti_Nagri Phags_Pa Saurashtra Kayah_Li Rejang Javanese Cham "
    "Tai_Viet Meetei_Mayek Linear_B Lycian Carian Old_Italic Gothic Old_Permic Ugaritic Old_Persian Deseret "
    "Shavian Osmanya Osage Elbasan Caucasian_Albanian Linear_A Cypriot Imperial_Aramaic Palmyrene Nabataean "
    "Hatran Phoenician Lydian Meroitic_Hieroglyphs Meroitic_Cursive Kharoshthi Old_South_Arabian "
    "Old_North_Arabian Manichaean Avestan Inscriptional_Parthian Inscriptional_Pahlavi Psalter_Pahlavi Old_Turkic "
    "Old_Hungarian Brahmi Kaithi Sora_Sompeng Chakma Mahajani Sharada Khojki Multani Khudawadi Grantha Newa "
    "Tirhuta Siddham Modi Takri Ahom Warang_Citi Pau_Cin_Hau Bhaiksuki Marchen Cuneiform Egyptian_Hieroglyphs "
    "Anatolian_Hieroglyphs Mro Bassa_Vah Pahawh_Hmong Miao Tangut Duployan SignWriting Mende_Kikakui Adlam";

// Characters that Unicode has had since version 9; what lies between is none.
constexpr io::CodeRange kLater[] = {
    {0x560, 0x560},     {0x588, 0x588},     {0x5EF, 0x5EF},     {0x61D, 0x61D},     {0x7FD, 0x7FF},
    {0x860, 0x89F},     {0x8B5, 0x8B5},     {0x8BE, 0x8D3},     {0x9FC, 0x9FE},     {0xA76, 0xA76},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xC5D, 0xC5D},
    {0xC77, 0xC77},     {0xC84, 0xC84},     {0xCDD, 0xCDD},     {0xD00, 0xD00},     {0xD04, 0xD04},
    {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xE86, 0xE86},     {0xE89, 0xE89},     {0xE8C, 0xE8C},
    {0xE8E, 0xE93},     {0xE98, 0xE98},     {0xEA0, 0xEA0},     {0xEA8, 0xEA9},     {0xEAC, 0xEAC},
    {0xEBA, 0xEBA},     {0x170D, 0x170D},   {0x1715, 0x171F},   {0x180F, 0x180F},   {0x1878, 0x1878},
    {0x1ABF, 0x1ACE},   {0x1B4C, 0x1B4C},   {0x1B7D, 0x1B7E},   {0x1C90, 0x1CBF},   {0x1CF7, 0x1CF7},
    {0x1CFA, 0x1CFA},   {0x1DF6, 0x1DFA},   {0x20BF, 0x20C0},   {0x23FF, 0x23FF},   {0x2B97, 0x2B97},
    {0x2BBA, 0x2BBC},   {0x2BC9, 0x2BC9},   {0x2BD2, 0x2BEB},   {0x2BF0, 0x2BFF},   {0x2C2F, 0x2C2F},
    {0x2C5F, 0x2C5F},   {0x2E45, 0x2E5D},   {0x312E, 0x312F},   {0x31BB, 0x31BF},   {0x32FF, 0x32FF},
    {0x4DB6, 0x4DBF},   {0x9FD6, 0x9FFF},   {0xA7AF, 0xA7AF},   {0xA7B8, 0xA7F6},   {0xA82C, 0xA82C},
    {0xA8FE, 0xA8FF},   {0xAB66, 0xAB6B},   {0xFBC2, 0xFBC2},   {0xFD40, 0xFD4F},   {0xFDCF, 0xFDCF},
    {0xFDFE, 0xFDFF},   {0x1019C, 0x1019C}, {0x1032D, 0x1032F}, {0x10570, 0x105BC}, {0x10780, 0x107BA},
    {0x10A34, 0x10A35}, {0x10A48, 0x10A48}, {0x10D00, 0x10D39}, {0x10E80, 0x10FF6}, {0x11070, 0x11075},
    {0x110C2, 0x110CD}, {0x11144, 0x11147}, {0x111CE, 0x111CF}, {0x1133B, 0x1133B}, {0x1145A, 0x1145A},
    {0x1145E, 0x11461}, {0x116B8, 0x116B9}, {0x1171A, 0x1171A}, {0x11740, 0x1183B}, {0x11900, 0x11ABF},
    {0x11D00, 0x11FFF}, {0x12F90, 0x12FF2}, {0x13430, 0x13438}, {0x16A70, 0x16AC9}, {0x16E40, 0x16E9A},
    {0x16F45, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE1, 0x16FF1}, {0x187ED, 0x187F7}, {0x18AF3, 0x1AFFE},
    {0x1B002, 0x1B2FB}, {0x1CF00, 0x1CFC3}, {0x1D1E9, 0x1D1EA}, {0x1D2E0, 0x1D2F3}, {0x1D372, 0x1D378},
    {0x1DF00, 0x1DF1E}, {0x1E100, 0x1E7FE}, {0x1E94B, 0x1E94B}, {0x1EC71, 0x1ED3D}, {0x1F10D, 0x1F10F},
    {0x1F12F, 0x1F12F}, {0x1F16C, 0x1F16F}, {0x1F1AD, 0x1F1AD}, {0x1F260, 0x1F265}, {0x1F6D3, 0x1F6DF},
    {0x1F6F7, 0x1F6FC}, {0x1F7D5, 0x1F7F0}, {0x1F8B0, 0x1F90F}, {0x1F91F, 0x1F91F}, {0x1F928, 0x1F92F},
    {0x1F931, 0x1F932}, {0x1F93F, 0x1F93F}, {0x1F94C, 0x1F94F}, {0x1F95F, 0x1F97F}, {0x1F992, 0x1F9BF},
    {0x1F9C1, 0x1FBF9}, {0x2A6D7, 0x2A6DF}, {0x2B735, 0x2B738}, {0x2CEB0, 0x2EBE0}, {0x30000, 0x3134A}};

// A character that has now the script that `c` had in Unicode 9.
std::uint32_t as_in_unicode_9(std::uint32_t c) {
  if (c == 0x589 || c == 0x61C) return '!';
  if (c == 0x953 || c == 0x954) return 0x905;  // Devanagari
  return c == 0x30FC ? 0x4E00 : c;             // the mark of long vowels counts as Han
}

bool is_latin(std::uint32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

class Scripts {
 public:
  // Hiragana and Katakana are Han. Two of the same stand in the text.
  Scripts() : same_(Pattern::literal("")) {
    std::string expression = R"(\A(?:[\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}]{2})";
    std::istringstream names(kScripts);
    for (std::string name; names >> name;) expression += "|\\p{sc:" + name + "}{2}";
    const io::Json nothing;
    same_ = Pattern::regex(expression + ")", JsonPart(nothing, "UnicodeScripts"));
  }

  bool has_one(std::uint32_t code_point) const { return same(code_point, code_point); }
  // True if both are of the same script; false where one is of none. Thread-safe.
  bool same(std::uint32_t a, std::uint32_t b) const {
    if (a == ' ' || b == ' ') return false;
    if (a < 0x80 && b < 0x80) return is_latin(a) == is_latin(b);
    if (io::is_in(kLater, a) || io::is_in(kLater, b)) return false;
    std::string text;
    for (const std::uint32_t c : {a, b}) io::utf8_append(text, as_in_unicode_9(c));
    return same_.found_in(text);
  }

 private:
  Pattern same_;
};

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
