// SPDX-License-Identifier: Apache-2.0
// See bpe.h.
#include "fp8/tools/text/bpe.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/kernels/random_bits.h"
#include "fp8/tools/text/utf8.h"

namespace fp8::text {
namespace {

constexpr std::int32_t kNone = -1;
constexpr std::size_t kCachedWordBytes = 64;  // longer words seldom come again
constexpr std::size_t kCachedWords = 1 << 16;
constexpr std::size_t kLongWord = 64;  // bytes from which looking for a cut pays
constexpr std::uint32_t kTableSize = 0x10000;

struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

std::uint64_t join(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

struct PairHash {
  std::size_t operator()(std::uint64_t pair) const { return kernels::mix(pair); }
};

struct Merge {
  std::int32_t rank, token;
};

// A token in the making: a node of a list linked through indices; token == kNone: swallowed by its left neighbour.
struct Symbol {
  std::int32_t token, previous, next;
};

struct Candidate {
  std::int32_t rank, position, token;
  bool operator>(const Candidate& other) const {
    return std::pair(rank, position) > std::pair(other.rank, other.position);
  }
};

std::string byte_token(unsigned char byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", byte);
  return name;
}

}  // namespace

struct Bpe::Scratch::Data {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<std::int64_t> piece;
  StringMap<std::vector<std::int64_t>> words;
};

Bpe::Scratch::Scratch() : data_(std::make_unique<Data>()) {}
Bpe::Scratch::~Scratch() = default;

struct Bpe::Model {
  StringMap<std::int32_t> vocab;
  std::unordered_map<std::int32_t, const std::string*> tokens;  // points at vocab's keys, whose nodes never move
  std::unordered_map<std::uint64_t, Merge, PairHash> merges;
  std::unordered_set<std::uint64_t, PairHash> joined_characters;
  std::vector<std::int32_t> of_character =
      std::vector<std::int32_t>(kTableSize, kNone);  // the BMP's one-character tokens
  std::int32_t of_byte[256];
  std::unordered_set<std::int32_t> byte_tokens;  // those that byte_fallback may write
  std::int32_t unk = kNone, max_id = kNone;
  bool byte_fallback = false, fuse_unk = false, ignore_merges = false, may_cut = true;

  void read_vocab(const JsonPart& part);
  void read_merges(const JsonPart& part);
  void add_merge(const JsonPart& part, std::string_view left, std::string_view right, std::size_t rank);
  std::int32_t known(const JsonPart& part, std::string_view token) const;
  void note_characters(std::string_view left, std::string_view right, const Merge& merge, std::int32_t a,
                       std::int32_t b);

  std::int32_t character_token(std::string_view text, std::size_t position, CodePoint c) const;
  std::size_t next_cut(std::string_view word, std::size_t begin) const;
  void read_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void push_candidate(const std::vector<Symbol>& symbols, std::vector<Candidate>& heap, std::int32_t position) const;
  void merge_all(std::vector<Symbol>& symbols, std::vector<Candidate>& heap) const;
};

void Bpe::Model::read_vocab(const JsonPart& part) {
  if (!part.json().is_object())
    part.fail("is a JSON " + std::string(part.json().type_name()) + ", expected an object token -> id");
  vocab.reserve(part.json().size());
  tokens.reserve(part.json().size());
  for (const auto& [token, id] : part.json().items()) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= kMaxId;
    if (!fits) {
      part.fail("gives " + io::in_quotes(token) + " the id " + io::in_quotes(id.dump(-1, ' ', true)) +
                ", expected an integer from 0 to " + std::to_string(kMaxId));
    }
    const auto value = id.get<std::int32_t>();
    const auto entry = vocab.emplace(token, value).first;
    const auto [known_token, is_new] = tokens.emplace(value, &entry->first);
    if (!is_new) {
      part.fail("gives " + io::in_quotes(*known_token->second) + " and " + io::in_quotes(token) + " the same id " +
                std::to_string(value));
    }
    max_id = std::max(max_id, value);
    if (token.empty()) continue;
    const CodePoint c = decode_at(token, 0);
    if (c.size == token.size() && c.value < kTableSize) of_character[c.value] = value;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocab.find(byte_token(static_cast<unsigned char>(byte)));
    of_byte[byte] = found == vocab.end() ? kNone : found->second;
    if (byte_fallback && found != vocab.end()) byte_tokens.insert(found->second);
  }
}

std::int32_t Bpe::Model::known(const JsonPart& part, std::string_view token) const {
  const auto found = vocab.find(token);
  if (found == vocab.end()) part.fail("names the token " + io::in_quotes(token) + ", which model.vocab lacks");
  return found->second;
}

void Bpe::Model::add_merge(const JsonPart& part, std::string_view left, std::string_view right, std::size_t rank) {
  const std::int32_t a = known(part, left), b = known(part, right);
  const Merge merge{static_cast<std::int32_t>(rank), known(part, std::string(left).append(right))};
  merges[join(a, b)] = merge;  // the last of equal pairs counts, as for Hugging Face
  note_characters(left, right, merge, a, b);
}

// A symbol that stands for a byte or an unknown character doesn't show the text's own characters: with merges of those
// no cuts.
void Bpe::Model::note_characters(std::string_view left, std::string_view right, const Merge& merge, std::int32_t a,
                                 std::int32_t b) {
  const auto opaque = [this](std::int32_t token) { return token == unk || byte_tokens.count(token) > 0; };
  if (left.empty() || right.empty() || opaque(a) || opaque(b) || opaque(merge.token)) {
    may_cut = false;
  } else {
    joined_characters.insert(join(decode_before(left, left.size()).value, decode_at(right, 0).value));
  }
}

void Bpe::Model::read_merges(const JsonPart& part) {
  const auto& list = part.json();
  if (!list.is_array()) part.fail("is a JSON " + std::string(list.type_name()) + ", expected an array");
  if (list.size() > static_cast<std::size_t>(kMaxId))
    part.fail("has " + std::to_string(list.size()) + " merges, allowed " + std::to_string(kMaxId));
  merges.reserve(list.size());
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const auto& entry = list[rank];
    const auto fail = [&] {
      part.fail("has at index " + std::to_string(rank) + " " + io::in_quotes(entry.dump(-1, ' ', true)) +
                ", expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
    };
    if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      add_merge(part, entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), rank);
    } else if (entry.is_string()) {
      const std::string_view text = entry.get_ref<const std::string&>();
      if (text.substr(0, 8) == "#version") continue;
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) fail();
      add_merge(part, text.substr(0, space), text.substr(space + 1), rank);
    } else {
      fail();
    }
  }
}

Bpe::Bpe(const JsonPart& part) : model_(std::make_unique<Model>()) {
  if (part.find("type") && part.type() != "BPE") part.unsupported_type("BPE");
  const auto dropout = part.find("dropout");
  if (dropout && dropout->json() != 0.0) dropout->unsupported(dropout->json().dump(-1, ' ', true), "null");
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = part.find(key);
    if (affix && !affix->string().empty()) affix->unsupported(affix->string(), "null");
  }
  Model& model = *model_;
  model.byte_fallback = part.boolean_or("byte_fallback", false);
  model.fuse_unk = part.boolean_or("fuse_unk", false);
  model.ignore_merges = part.boolean_or("ignore_merges", false);
  model.read_vocab(part.at("vocab"));
  if (const auto unk = part.find("unk_token")) model.unk = model.known(*unk, unk->string());
  model.read_merges(part.at("merges"));
}

Bpe::~Bpe() = default;
Bpe::Bpe(Bpe&&) noexcept = default;

std::int32_t Bpe::Model::character_token(std::string_view text, std::size_t position, CodePoint c) const {
  if (c.value < kTableSize) return of_character[c.value];
  const auto found = vocab.find(text.substr(position, c.size));
  return found == vocab.end() ? kNone : found->second;
}

// The end of the piece that starts at `begin`: the next place after it where both neighbours are tokens that no merge
// joins.
std::size_t Bpe::Model::next_cut(std::string_view word, std::size_t begin) const {
  CodePoint left = decode_at(word, begin);
  bool left_known = character_token(word, begin, left) != kNone;
  for (std::size_t i = begin + left.size; i < word.size();) {
    const CodePoint right = decode_at(word, i);
    const bool right_known = character_token(word, i, right) != kNone;
    if (left_known && right_known && joined_characters.count(join(left.value, right.value)) == 0) return i;
    left = right;
    left_known = right_known;
    i += right.size;
  }
  return word.size();
}

void Bpe::Model::read_symbols(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  const auto add = [&symbols](std::int32_t token) {
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({token, index - 1, index + 1});
  };
  // An unknown character is written where the next known one (or the end) comes, as Hugging Face does.
  bool unk_waits = false;
  for (std::size_t i = 0; i < word.size();) {
    const CodePoint c = decode_at(word, i);
    const std::int32_t token = character_token(word, i, c);
    const auto all_bytes_known = [&] {
      for (std::size_t k = 0; k < c.size; ++k) {
        if (of_byte[static_cast<unsigned char>(word[i + k])] == kNone) return false;
      }
      return true;
    };
    if (token != kNone) {
      if (unk_waits) add(unk);
      unk_waits = false;
      add(token);
    } else if (byte_fallback && all_bytes_known()) {
      for (std::size_t k = 0; k < c.size; ++k) add(of_byte[static_cast<unsigned char>(word[i + k])]);
    } else if (unk != kNone) {
      if (unk_waits && !fuse_unk) add(unk);
      unk_waits = true;
    }
    i += c.size;
  }
  if (unk_waits) add(unk);
  if (!symbols.empty()) symbols.back().next = kNone;
}

void Bpe::Model::push_candidate(const std::vector<Symbol>& symbols, std::vector<Candidate>& heap,
                                std::int32_t position) const {
  const Symbol& left = symbols[position];
  const auto found = merges.find(join(left.token, symbols[left.next].token));
  if (found == merges.end()) return;
  heap.push_back({found->second.rank, position, found->second.token});
}

// A candidate is outdated where its pair has changed since: it then no longer merges to the same token.
void Bpe::Model::merge_all(std::vector<Symbol>& symbols, std::vector<Candidate>& heap) const {
  heap.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) push_candidate(symbols, heap, static_cast<std::int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::int32_t position) {
    const std::size_t before = heap.size();
    push_candidate(symbols, heap, position);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    Symbol& left = symbols[best.position];
    if (left.token == kNone || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const auto now = merges.find(join(left.token, right.token));
    if (now == merges.end() || now->second.token != best.token) continue;
    left.token = best.token;
    left.next = right.next;
    right.token = kNone;
    if (left.next != kNone) symbols[left.next].previous = best.position;
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(best.position);
  }
}

void Bpe::encode(std::string_view word, std::vector<std::int64_t>& ids, Scratch& scratch, std::size_t limit) const {
  const Model& model = *model_;
  Scratch::Data& data = *scratch.data_;
  if (model.ignore_merges) {
    if (const auto whole = model.vocab.find(word); whole != model.vocab.end()) return ids.push_back(whole->second);
  }
  for (std::size_t begin = 0; begin < word.size() && ids.size() < limit;) {
    const bool cut = model.may_cut && word.size() > kLongWord;
    const std::size_t end = cut ? model.next_cut(word, begin) : word.size();
    const std::string_view piece = word.substr(begin, end - begin);
    begin = end;
    if (const auto met = data.words.find(piece); met != data.words.end()) {
      ids.insert(ids.end(), met->second.begin(), met->second.end());
      continue;
    }
    model.read_symbols(piece, data.symbols);
    model.merge_all(data.symbols, data.heap);
    data.piece.clear();
    for (std::int32_t i = data.symbols.empty() ? kNone : 0; i != kNone; i = data.symbols[i].next)
      data.piece.push_back(data.symbols[i].token);
    ids.insert(ids.end(), data.piece.begin(), data.piece.end());
    if (piece.size() <= kCachedWordBytes && data.words.size() < kCachedWords) data.words.emplace(piece, data.piece);
  }
}

std::int64_t Bpe::id_of(std::string_view token) const {
  const auto found = model_->vocab.find(token);
  return found == model_->vocab.end() ? -1 : found->second;
}

const std::string* Bpe::token_of(std::int64_t id) const {
  if (id < 0 || id > model_->max_id) return nullptr;
  const auto found = model_->tokens.find(static_cast<std::int32_t>(id));
  return found == model_->tokens.end() ? nullptr : found->second;
}

std::int64_t Bpe::max_id() const { return model_->max_id; }

}  // namespace fp8::text
