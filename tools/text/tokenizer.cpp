// SPDX-License-Identifier: Apache-2.0
// The order of Hugging Face's tokenizers:
//
//   text -> cut at added tokens -> normalizer -> cut at added tokens (normalized form) -> pre-tokenizer -> model -> ids
//   ids with what the post-processor puts before and after
//   ids -> tokens, special ones left out -> decoder -> joined text
#include "fp8/tools/text/tokenizer.h"

#include <unordered_set>

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/steps/steps.h"
#include "fp8/tools/text/words/word_model.h"

namespace fp8::text {
namespace {

// The "post_processor" of a tokenizer.json, as far as one text's ids go: what is put before and after them.
// Known: TemplateProcessing (its "single" with one sequence A), BertProcessing and RobertaProcessing (cls A sep),
// ByteLevel (moves offsets only), Sequence, null.

struct PostProcessor {
  std::vector<std::int64_t> before, after;  ///< ids
};

constexpr std::size_t kMost = 1024;  // parts of a template, and ids around a text

void check_count(const JsonPart& part, std::size_t count, const char* of) {
  if (count > kMost) part.fail("has " + std::to_string(count) + of + ", allowed " + std::to_string(kMost));
}

// special_tokens: {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
std::vector<std::int64_t> special_ids(const JsonPart& part, const JsonPart& name) {
  const auto tokens = part.find("special_tokens");
  const auto token = tokens ? tokens->find(name.string()) : std::nullopt;
  if (!token) name.fail("is " + io::in_quotes(name.string()) + ", which special_tokens does not define");
  std::vector<std::int64_t> ids;
  check_count(token->at("ids"), token->at("ids").json().size(), " ids");
  for (const JsonPart& id : token->at("ids").elements()) ids.push_back(id.integer(0, Vocabulary::kMaxId));
  return ids;
}

// single: [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
PostProcessor make_template(const JsonPart& part) {
  PostProcessor result;
  int sequences = 0;
  const JsonPart single = part.at("single");
  check_count(single, single.json().size(), " parts");
  for (const JsonPart& piece : single.elements()) {
    if (const auto sequence = piece.find("Sequence")) {
      const JsonPart id = sequence->at("id");
      if (id.string() != "A") id.unsupported(id.string(), "A");
      ++sequences;
    } else {
      const auto ids = special_ids(part, piece.at("SpecialToken").at("id"));
      auto& side = sequences == 0 ? result.before : result.after;
      side.insert(side.end(), ids.begin(), ids.end());
      check_count(single, side.size(), " ids");
    }
  }
  if (sequences != 1) single.fail("has the sequence A " + std::to_string(sequences) + " times, expected once");
  return result;
}

// sep: ["[SEP]", 102], cls: ["[CLS]", 101]
PostProcessor make_bert(const JsonPart& part) {
  const auto id_of = [&part](const char* key) {
    const JsonPart pair = part.at(key);
    const auto elements = pair.elements();
    if (elements.size() != 2) pair.fail("has " + std::to_string(elements.size()) + " members, expected [token, id]");
    elements[0].string();
    return elements[1].integer(0, Vocabulary::kMaxId);
  };
  return {{id_of("cls")}, {id_of("sep")}};
}

PostProcessor make_post_processor(const JsonPart& part);

PostProcessor make_sequence(const JsonPart& part) {
  PostProcessor result;
  check_count(part.at("processors"), part.at("processors").json().size(), " steps");
  for (const JsonPart& step : part.at("processors").elements()) {  // a later one wraps an earlier one
    const PostProcessor outer = make_post_processor(step);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
    check_count(part, result.before.size() + result.after.size(), " ids");
  }
  return result;
}

/// Throws io::Error naming the part on an unknown type, a template without exactly one sequence A, a special token that
/// the part does not define.
PostProcessor make_post_processor(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "TemplateProcessing") return make_template(part);
  if (type == "BertProcessing" || type == "RobertaProcessing") return make_bert(part);
  if (type == "ByteLevel") return {};
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type("TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence");
}

// The "added_tokens" of a tokenizer.json: tokens found in the text itself before the model sees it ("<s>",
// "<|endoftext|>").
//
// Those with normalized = false are searched in the text as given, the others (in their normalized form) in what the
// normalizer makes of each stretch between. Leftmost match first, of those the longest. lstrip / rstrip: the match
// takes white space to its left / right along; single_word: no match next to a word character.

/// A piece of text, or the added token found there.
struct Segment {
  std::size_t begin = 0, end = 0;  ///< bytes
  std::int64_t id = -1;            ///< -1: text
};

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

class AddedTokens {
 public:
  static constexpr std::size_t kMaxBytes = PrefixTrie::kLongest;  ///< of one token
  static constexpr std::size_t kMaxAllBytes = 4096 * 1024;        ///< of all tokens

  AddedTokens() : word_character_(make_word_character()) {}
  /// part: the array. A token that model.vocab has keeps the vocabulary's id, as for Hugging Face. normalizer: may be
  /// empty.
  AddedTokens(const JsonPart& part, const Vocabulary& vocabulary, const Normalizer& normalizer) : AddedTokens() {
    std::size_t all_bytes = 0;
    PrefixTrie::Entries entries[2];
    std::vector<bool> normal;
    for (const JsonPart& entry : part.elements()) {
      const std::string& content = entry.at("content").string();
      const std::int64_t given = entry.at("id").integer(0, Vocabulary::kMaxId);
      if (content.empty()) continue;
      if (content.size() > kMaxBytes)
        entry.fail("has a content of " + std::to_string(content.size()) + " bytes, allowed " +
                   std::to_string(kMaxBytes));
      const std::int64_t in_vocab = vocabulary.find(content);
      const std::int64_t id = in_vocab >= 0 ? in_vocab : given;
      if (in_vocab < 0 && vocabulary.token_of(given))
        entry.fail(io::message("has the id {}, which model.vocab gives to {}", given,
                               io::in_quotes(*vocabulary.token_of(given))));
      if (contents_.contains(content) || by_id_.contains(id))
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
      contents_.insert(content);
      if (special) special_.insert(content);
      max_id_ = std::max(max_id_, id);
      tokens_.push_back(std::move(token));
    }
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      entries[normal[i]].emplace_back(tokens_[i].text, static_cast<std::int32_t>(i));
    for (const bool normalized : {false, true}) tries_[normalized] = PrefixTrie(part, std::move(entries[normalized]));
  }

  /// Cuts `text`, as given (normalized = false) or normalized (true), in order and without empty pieces of text. \pre
  /// well-formed UTF-8.
  std::vector<Segment> cut(std::string_view text, bool normalized) const {
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

  /// The text an id decodes to (the normalized form where one was searched), or null.
  const std::string* text_of(std::int64_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &tokens_[found->second].text;
  }
  /// True if a special token is spelled so: decoding leaves it out.
  bool is_special(const std::string& token) const { return special_.count(token) > 0; }
  std::int64_t max_id() const { return max_id_; }

 private:
  struct Token {
    std::string text;
    std::int64_t id = -1;
    bool lstrip = false, rstrip = false, single_word = false;
  };

  bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) const {
    const auto word = [&](std::size_t at, CodePoint c) { return word_character_.found_in(text.substr(at, c.size)); };
    if (begin > 0) {
      const CodePoint before = decode_before(text, begin);
      if (word(begin - before.size, before)) return false;
    }
    return end == text.size() || !word(end, decode_at(text, end));
  }

  std::vector<Token> tokens_;
  PrefixTrie tries_[2];  // [normalized]: of indices of tokens_
  std::unordered_map<std::int64_t, std::size_t> by_id_;
  std::unordered_set<std::string> contents_, special_;
  std::int64_t max_id_ = -1;
  Pattern word_character_;
};

}  // namespace

struct Tokenizer::Impl {
  std::string file;
  std::unique_ptr<WordModel> model;
  Normalizer normalizer;       // may be empty
  PreTokenizer pre_tokenizer;  // may be empty
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;  // may be empty

  explicit Impl(const JsonPart& top, std::string name)
      : file(std::move(name)), model(make_word_model(top.at("model"))) {
    if (const auto version = top.find("version"); version && version->string() != "1.0")
      version->unsupported(version->string(), "1.0");
    if (const auto part = top.find("normalizer")) normalizer = make_normalizer(*part);
    if (const auto part = top.find("pre_tokenizer")) pre_tokenizer = make_pre_tokenizer(*part);
    if (const auto part = top.find("post_processor")) post_processor = make_post_processor(*part);
    if (const auto part = top.find("decoder")) decoder = make_decoder(*part);
    if (const auto part = top.find("added_tokens")) added = AddedTokens(*part, model->vocabulary(), normalizer);
    for (const auto* const side : {&post_processor.before, &post_processor.after})
      for (const std::int64_t id : *side)
        if (!token_of(id)) io::fail<io::Error>("{}: post_processor adds the id {}, which no token has", file, id);
  }

  const std::string* token_of(std::int64_t id) const {
    const std::string* const added_text = added.text_of(id);
    return added_text ? added_text : model->vocabulary().token_of(id);
  }
};

namespace {

// Encodes one text, stopping at `limit` ids.
class Encoding {
 public:
  Encoding(const Tokenizer::Impl& impl, std::size_t limit)
      : impl_(impl), limit_(limit), scratch_(impl.model->scratch()) {}

  void add_special(const std::vector<std::int64_t>& special) {
    ids_.insert(ids_.end(), special.begin(), special.end());
  }
  bool full() const { return ids_.size() >= limit_; }
  std::vector<std::int64_t> take() { return std::move(ids_); }

  void add_text(std::string_view text) {
    for (const Segment& segment : impl_.added.cut(text, false)) {
      if (full()) return;
      const std::string_view piece = text.substr(segment.begin, segment.end - segment.begin);
      if (segment.id >= 0)
        ids_.push_back(segment.id);
      else if (impl_.normalizer)
        add_normalized(impl_.normalizer(std::string(piece)), segment.begin == 0 && start_stays(piece));
      else
        add_normalized(piece, segment.begin == 0);
    }
  }

 private:
  // True if the normalizer keeps the start of the text. Where it does not, nothing is put first, as in Hugging Face.
  bool start_stays(std::string_view text) const {
    return !impl_.normalizer(std::string(text.substr(0, grapheme_size(text, 0)))).empty();
  }

  // first: the text's start is the whole text's start.
  void add_normalized(std::string_view text, bool first) {
    for (const Segment& segment : impl_.added.cut(text, true)) {
      if (full()) return;
      const std::string_view piece = text.substr(segment.begin, segment.end - segment.begin);
      if (segment.id >= 0) {
        ids_.push_back(segment.id);
      } else if (impl_.pre_tokenizer) {
        impl_.pre_tokenizer(piece, first && segment.begin == 0,
                            [this](std::string_view word, bool) { return add_word(word); });
      } else {
        add_word(piece);
      }
    }
  }

  bool add_word(std::string_view word) {
    constexpr std::size_t kMaxWord = std::numeric_limits<std::int32_t>::max();
    if (word.size() > kMaxWord)
      io::fail<io::Error>("{}: a word of {} bytes, allowed {}", impl_.file, word.size(), kMaxWord);
    impl_.model->encode(word, ids_, *scratch_, limit_);
    return !full();
  }

  const Tokenizer::Impl& impl_;
  const std::size_t limit_;
  std::vector<std::int64_t> ids_;
  const std::unique_ptr<WordModel::Scratch> scratch_;
};

}  // namespace

Tokenizer::Tokenizer(const std::filesystem::path& folder) {
  const TokenizerFile file = read_tokenizer(folder);
  impl_ = std::make_unique<Impl>(JsonPart(file.json, file.name), file.name);
}

Tokenizer::Tokenizer(const io::Json& json, const std::string& name)
    : impl_(std::make_unique<Impl>(JsonPart(json, name), name)) {}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special, std::size_t limit) const {
  Encoding encoding(*impl_, limit);
  if (add_special) encoding.add_special(impl_->post_processor.before);
  if (io::is_utf8(text))
    encoding.add_text(text);
  else
    encoding.add_text(sanitize(text));
  if (add_special && !encoding.full()) encoding.add_special(impl_->post_processor.after);
  return encoding.take();
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const std::string* const token = impl_->token_of(id);
    if (token && !impl_->added.is_special(*token)) tokens.push_back(*token);
  }
  const char* const separator = impl_->decoder ? "" : " ";
  if (impl_->decoder) tokens = impl_->decoder(std::move(tokens));
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) text.append(i > 0 ? separator : "").append(tokens[i]);
  return text;
}

std::int64_t Tokenizer::vocab_size() const {
  return std::max<std::int64_t>(impl_->model->vocabulary().max_id(), impl_->added.max_id()) + 1;
}

}  // namespace fp8::text
