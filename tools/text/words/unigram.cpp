// SPDX-License-Identifier: Apache-2.0
// See word_model.h.
//
// The best path is found up to a position that no token reaches across, written down, and forgotten: a text without
// spaces takes memory for its longest such stretch alone. Sums go on, so that ties fall as for one long stretch.
#include <cfloat>

#include "fp8/tools/text/steps/sentence_piece.h"
#include "fp8/tools/text/unicode/characters.h"
#include "fp8/tools/text/words/word_model.h"

namespace fp8::text {
namespace {

constexpr std::int32_t kNone = Vocabulary::kNone;

// [["the", -3.5], ...]
Vocabulary read_vocabulary(const JsonPart& part, std::vector<double>& scores) {
  const auto& list = part.json();
  if (!list.is_array()) part.fail("is a JSON " + std::string(list.type_name()) + ", expected an array [token, score]");
  if (list.empty() || list.size() > static_cast<std::size_t>(Vocabulary::kMaxId))
    part.fail("has " + std::to_string(list.size()) + " tokens, allowed 1 to " + std::to_string(Vocabulary::kMaxId));
  Vocabulary vocabulary;
  scores.reserve(list.size());
  for (const auto& entry : list) {
    const bool known = entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number();
    const double score = known ? entry[1].get<double>() : NAN;
    if (!std::isfinite(score))
      part.fail(io::message("has at index {} {}, expected [\"TOKEN\", SCORE]", scores.size(),
                            io::in_quotes(entry.dump(-1, ' ', true))));
    vocabulary.add(entry[0].get_ref<const std::string&>(), static_cast<std::int32_t>(scores.size()));
    scores.push_back(score);
  }
  return vocabulary;
}

// The best way to a position: its last token, from where, and the sum of scores.
struct End {
  double score = 0;
  std::size_t size = 0;  // bytes of the token; 0: no way yet
  std::int32_t id = kNone;
};

struct Piece {
  std::size_t begin, end;
  std::int32_t id;
};

}  // namespace

struct Unigram::Scratch : WordModel::Scratch {
  std::vector<End> ends;  // of positions from the last one written down
  std::vector<Piece> pieces;
  std::size_t begin = 0;  // that position
  std::size_t reach = 0;  // the farthest end so far
};

// Writes pieces as ids; unknown ones wait for their neighbours.
class Unigram::Writer {
 public:
  Writer(const Unigram& model, std::string_view word, std::vector<std::int64_t>& ids)
      : model_(model), word_(word), ids_(ids) {}

  void add(const Piece& piece) {
    if (piece.id == model_.unk_) {
      if (!waits_) begin_ = piece.begin;
      waits_ = true;
      end_ = piece.end;
    } else {
      finish();
      ids_.push_back(piece.id);
    }
  }
  void finish() {
    if (waits_) write_unknown(word_.substr(begin_, end_ - begin_));
    waits_ = false;
  }

 private:
  void write_unknown(std::string_view text) {
    const bool known = model_.kinds_.empty();
    if (const std::int32_t whole = model_.vocabulary_.find(text); known && whole != kNone) return ids_.push_back(whole);
    const auto id_of = [this](char byte) { return model_.byte_ids_[static_cast<unsigned char>(byte)]; };
    if (model_.byte_fallback_ && std::all_of(text.begin(), text.end(), [&](char c) { return id_of(c) != kNone; })) {
      for (const char byte : text) ids_.push_back(id_of(byte));
    } else {
      ids_.push_back(model_.unk_);
    }
  }

  const Unigram& model_;
  const std::string_view word_;
  std::vector<std::int64_t>& ids_;
  std::size_t begin_ = 0, end_ = 0;
  bool waits_ = false;
};

Unigram::Unigram(const JsonPart& part) : WordModel({}) {
  vocabulary_ = read_vocabulary(part.at("vocab"), scores_);
  byte_ids_ = vocabulary_.byte_ids();
  if (const auto kinds = part.find("kinds")) {
    read_kinds(*kinds);
  } else {
    trie_ = PrefixTrie(part.at("vocab"), vocabulary_.entries());
    unk_score_ = *std::min_element(scores_.begin(), scores_.end()) - 10.0;
  }
  byte_fallback_ = part.boolean_or("byte_fallback", false);
  if (const auto unk = part.find("unk_id"))
    unk_ = static_cast<std::int32_t>(unk->integer(0, static_cast<std::int64_t>(scores_.size()) - 1));
}

void Unigram::read_kinds(const JsonPart& part) {
  const auto kinds = part.elements();
  if (kinds.size() != scores_.size())
    part.fail(io::message("has {} kinds, expected one of each of {} tokens", kinds.size(), scores_.size()));
  float low = FLT_MAX, high = -FLT_MAX;
  PrefixTrie::Entries entries;
  for (const JsonPart& kind : kinds) kinds_.push_back(static_cast<std::int8_t>(kind.integer(1, 6)));
  for (const auto& [token, id] : vocabulary_.entries()) {
    const bool normal = kinds_[id] == SentencePieceModel::kNormal;
    if (normal || kinds_[id] == SentencePieceModel::kUserDefined) entries.emplace_back(token, id);
    if (!normal) continue;
    low = std::min(low, static_cast<float>(scores_[id]));
    high = std::max(high, static_cast<float>(scores_[id]));
  }
  trie_ = PrefixTrie(part, std::move(entries));
  unk_score_ = low - 10.0f;
  max_score_ = high;
}

double Unigram::score_of(std::int32_t id, std::size_t bytes) const {
  if (kinds_.empty() || kinds_[id] == SentencePieceModel::kNormal) return scores_[id];
  return static_cast<float>(bytes) * static_cast<float>(max_score_) - 0.1;
}

std::unique_ptr<WordModel::Scratch> Unigram::scratch() const { return std::make_unique<Scratch>(); }

// The ends of all tokens that start at `position`, whose character has `size` bytes.
void Unigram::add_ends(std::string_view word, std::size_t position, std::size_t size, Scratch& data) const {
  const double here = data.ends[position - data.begin].score;
  const auto add = [&](std::size_t length, std::int32_t id, double score) {
    data.reach = std::max(data.reach, position + length);
    if (data.ends.size() <= data.reach - data.begin) data.ends.resize(data.reach - data.begin + 1);
    End& end = data.ends[position + length - data.begin];
    if (end.size == 0 || score > end.score) end = {kinds_.empty() ? score : static_cast<float>(score), length, id};
  };
  bool character = false;
  std::int32_t node = PrefixTrie::kRoot;
  for (std::size_t i = position; i < word.size(); ++i) {
    node = trie_.child(node, static_cast<unsigned char>(word[i]));
    if (node == PrefixTrie::kNone) break;
    const std::int32_t id = trie_.value(node);
    if (id == PrefixTrie::kNone) continue;
    const std::size_t length = i + 1 - position;
    add(length, id, score_of(id, length) + here);
    character |= length == size;
  }
  if (character) return;
  if (unk_ == kNone)
    io::fail<io::Error>("the tokenizer has no token for {}, and its model.unk_id is null",
                        io::in_quotes(word.substr(position, size)));
  add(size, unk_, kinds_.empty() ? unk_score_ + here : static_cast<float>(unk_score_ + here));
}

void Unigram::encode(std::string_view word, std::vector<std::int64_t>& ids, WordModel::Scratch& scratch,
                     std::size_t limit) const {
  if (scratch.recall(word, ids)) return;
  auto& data = static_cast<Scratch&>(scratch);
  const std::size_t before = ids.size();
  Writer writer(*this, word, ids);
  data.ends.assign(1, {});
  data.begin = data.reach = 0;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t size = decode_at(word, i).size;
    add_ends(word, i, size, data);
    i += size;
    if (data.reach != i) continue;
    data.pieces.clear();
    for (std::size_t end = i; end > data.begin; end -= data.ends[end - data.begin].size) {
      const End& best = data.ends[end - data.begin];
      data.pieces.push_back({end - best.size, end, best.id});
    }
    for (std::size_t p = data.pieces.size(); p > 0; --p) writer.add(data.pieces[p - 1]);
    data.ends.assign(1, {data.ends[i - data.begin].score, 0, kNone});
    data.begin = i;
    if (ids.size() >= limit) return;
  }
  writer.finish();
  scratch.remember(word, {ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end()});
}

}  // namespace fp8::text
