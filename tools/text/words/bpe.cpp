// SPDX-License-Identifier: Apache-2.0
// See word_model.h.
#include <unordered_set>

#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/tools/text/unicode/characters.h"
#include "fp8/tools/text/words/word_model.h"

namespace fp8::text {
namespace {

constexpr std::int32_t kNone = Vocabulary::kNone;
constexpr std::size_t kLongWord = 64;      // bytes from which looking for a cut pays
constexpr std::size_t kLongestAffix = 64;  // bytes, for each character has it
constexpr std::size_t kMostSquares = std::size_t{1} << 30;
constexpr std::uint32_t kTableSize = 0x10000;

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

}  // namespace

struct Bpe::Scratch : WordModel::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

struct Bpe::Model {
  const Vocabulary& vocab;
  std::unordered_map<std::uint64_t, Merge, PairHash> merges;
  std::unordered_set<std::uint64_t, PairHash> joined_characters;
  std::vector<std::int32_t> of_character =
      std::vector<std::int32_t>(kTableSize, kNone);  // the BMP's one-character tokens
  std::array<std::int32_t, 256> of_byte;
  std::unordered_set<std::int32_t> byte_tokens;  // those that byte_fallback may write
  std::optional<PrefixTrie> user_defined;
  std::string prefix, suffix;  // of characters: all but a word's first, the last
  std::int32_t unk = kNone;
  bool byte_fallback = false, fuse_unk = false, ignore_merges = false, may_cut = true;

  explicit Model(const Vocabulary& vocabulary) : vocab(vocabulary) {}
  void note_tokens();
  void read_merges(const JsonPart& part);
  void read_ranks(const JsonPart& part);
  void read_user_defined(const JsonPart& part);
  void add_merge(const JsonPart& part, std::string_view left, std::string_view right, std::size_t rank);
  void note_characters(std::string_view left, std::string_view right, const Merge& merge, std::int32_t a,
                       std::int32_t b);

  std::int32_t character_token(std::string_view text, std::size_t position, CodePoint c) const;
  std::size_t next_cut(std::string_view word, std::size_t begin) const;
  std::int32_t affixed_token(std::string_view word, std::size_t position, std::size_t size, std::string& text) const;
  void read_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void push_candidate(const std::vector<Symbol>& symbols, std::vector<Candidate>& heap, std::int32_t position) const;
  void merge_all(std::vector<Symbol>& symbols, std::vector<Candidate>& heap) const;
};

void Bpe::Model::note_tokens() {
  for (const auto& [token, id] : vocab.tokens()) {
    if (token.empty()) continue;
    const CodePoint c = decode_at(token, 0);
    if (c.size == token.size() && c.value < kTableSize) of_character[c.value] = id;
  }
  of_byte = vocab.byte_ids();
  if (byte_fallback) byte_tokens.insert(of_byte.begin(), of_byte.end());
  byte_tokens.erase(kNone);
}

void Bpe::Model::add_merge(const JsonPart& part, std::string_view left, std::string_view right, std::size_t rank) {
  const std::int32_t a = vocab.known(part, left), b = vocab.known(part, right);
  if (right.size() < prefix.size())
    part.fail("has " + io::in_quotes(std::string(right)) + ", which is shorter than continuing_subword_prefix");
  const std::string merged = std::string(left).append(right.substr(prefix.size()));
  const Merge merge{static_cast<std::int32_t>(rank), vocab.known(part, merged)};
  merges[join(a, b)] = merge;  // the last of equal pairs counts, as for Hugging Face
  note_characters(left, right, merge, a, b);
}

// A symbol that stands for a byte or an unknown character doesn't show the text's own characters: with merges of those
// no cuts.
void Bpe::Model::note_characters(std::string_view left, std::string_view right, const Merge& merge, std::int32_t a,
                                 std::int32_t b) {
  const auto opaque = [this](std::int32_t token) { return token == unk || byte_tokens.count(token) > 0; };
  if (left.empty() || right.empty() || opaque(a) || opaque(b) || opaque(merge.token))
    may_cut = false;
  else
    joined_characters.insert(join(decode_before(left, left.size()).value, decode_at(right, 0).value));
}

void Bpe::Model::read_merges(const JsonPart& part) {
  const auto& list = part.json();
  if (!list.is_array()) part.fail("is a JSON " + std::string(list.type_name()) + ", expected an array");
  if (list.size() > static_cast<std::size_t>(Vocabulary::kMaxId))
    part.fail("has " + std::to_string(list.size()) + " merges, allowed " + std::to_string(Vocabulary::kMaxId));
  merges.reserve(list.size());
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    const auto& entry = list[rank];
    const auto fail = [&] {
      part.fail(io::message("has at index {} {}, expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]", rank,
                            io::in_quotes(entry.dump(-1, ' ', true))));
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

// Each token is made of any two others that spell it, whatever merges made them.
void Bpe::Model::read_ranks(const JsonPart& part) {
  const auto& list = part.json();
  const auto rank_of = [&](std::int32_t id) {
    return static_cast<std::size_t>(id) < list.size() ? list[id].get<std::int32_t>() : -1;
  };
  for (const JsonPart& rank : part.elements()) rank.integer(-1, Vocabulary::kMaxId);
  std::size_t squares = 0;  // each cut of a token looks for both of its sides
  for (const auto& [token, id] : vocab.tokens()) {
    const std::int32_t rank = rank_of(id);
    if (rank < 0 || token.empty()) continue;
    squares += token.size() * token.size();
    if (squares > kMostSquares)
      part.fail("has too many long tokens, the squares of whose bytes are allowed to add up to " +
                std::to_string(kMostSquares));
    const std::string_view text = token;
    for (std::size_t i = decode_at(text, 0).size; i < text.size(); i += decode_at(text, i).size) {
      const std::int32_t left = vocab.find(text.substr(0, i)), right = vocab.find(text.substr(i));
      if (left == kNone || right == kNone || rank_of(left) < 0 || rank_of(right) < 0) continue;
      const Merge merge{rank, id};
      merges[join(left, right)] = merge;
      note_characters(text.substr(0, i), text.substr(i), merge, left, right);
    }
  }
}

void Bpe::Model::read_user_defined(const JsonPart& part) {
  PrefixTrie::Entries entries;
  for (const JsonPart& token : part.elements())
    entries.emplace_back(token.string(), vocab.known(token, token.string()));
  if (entries.empty()) return;
  user_defined.emplace(part, std::move(entries));
  may_cut = false;  // a cut could lie in such a token
}

Bpe::Bpe(const JsonPart& part) : WordModel(Vocabulary(part.at("vocab"))), model_(std::make_unique<Model>(vocabulary_)) {
  Model& model = *model_;
  const auto affix = [&](const char* key) {
    const auto text = part.find(key);
    if (text && text->string().size() > kLongestAffix)
      text->fail("has " + std::to_string(text->string().size()) + " bytes, allowed " + std::to_string(kLongestAffix));
    return text ? text->string() : std::string();
  };
  model.prefix = affix("continuing_subword_prefix");
  model.suffix = affix("end_of_word_suffix");
  model.may_cut = model.prefix.empty() && model.suffix.empty();
  model.byte_fallback = part.boolean_or("byte_fallback", false);
  model.fuse_unk = part.boolean_or("fuse_unk", false);
  model.ignore_merges = part.boolean_or("ignore_merges", false);
  model.note_tokens();
  if (const auto unk = part.find("unk_token")) model.unk = vocabulary_.known(*unk, unk->string());
  if (const auto ranks = part.find("ranks")) {
    model.read_ranks(*ranks);
    if (const auto tokens = part.find("user_defined")) model.read_user_defined(*tokens);
  } else {
    model.read_merges(part.at("merges"));
  }
}

Bpe::~Bpe() = default;

std::unique_ptr<WordModel::Scratch> Bpe::scratch() const { return std::make_unique<Scratch>(); }

std::int32_t Bpe::Model::character_token(std::string_view text, std::size_t position, CodePoint c) const {
  if (c.value < kTableSize) return of_character[c.value];
  return vocab.find(text.substr(position, c.size));
}

// text becomes the character with what stands before and behind it.
std::int32_t Bpe::Model::affixed_token(std::string_view word, std::size_t position, std::size_t size,
                                       std::string& text) const {
  text.assign(position > 0 ? prefix : "").append(word.substr(position, size));
  if (position + size == word.size()) text += suffix;
  return vocab.find(text);
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
  const bool affixes = !prefix.empty() || !suffix.empty();
  const auto byte_id = [this](char byte) { return of_byte[static_cast<unsigned char>(byte)]; };
  const auto known_byte = [&](char byte) { return byte_id(byte) != kNone; };
  std::string affixed;
  for (std::size_t i = 0; i < word.size();) {
    if (const auto whole = user_defined ? user_defined->longest(word.substr(i)) : PrefixTrie::Found(); whole.size > 0) {
      if (unk_waits) add(unk);
      unk_waits = false;
      add(whole.value);
      i += whole.size;
      continue;
    }
    const CodePoint c = decode_at(word, i);
    const std::int32_t token = affixes ? affixed_token(word, i, c.size, affixed) : character_token(word, i, c);
    const std::string_view text = affixes ? std::string_view(affixed) : word.substr(i, c.size);
    if (token != kNone) {
      if (unk_waits) add(unk);
      unk_waits = false;
      add(token);
    } else if (byte_fallback && std::all_of(text.begin(), text.end(), known_byte)) {
      for (const char byte : text) add(byte_id(byte));
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

void Bpe::encode(std::string_view word, std::vector<std::int64_t>& ids, WordModel::Scratch& scratch,
                 std::size_t limit) const {
  const Model& model = *model_;
  auto& data = static_cast<Scratch&>(scratch);
  if (model.ignore_merges)
    if (const std::int32_t whole = vocabulary_.find(word); whole != kNone) return ids.push_back(whole);
  for (std::size_t begin = 0; begin < word.size() && ids.size() < limit;) {
    const bool cut = model.may_cut && word.size() > kLongWord;
    const std::size_t end = cut ? model.next_cut(word, begin) : word.size();
    const std::string_view piece = word.substr(begin, end - begin);
    begin = end;
    if (data.recall(piece, ids)) continue;
    model.read_symbols(piece, data.symbols);
    model.merge_all(data.symbols, data.heap);
    const auto before = static_cast<std::ptrdiff_t>(ids.size());
    for (std::int32_t i = data.symbols.empty() ? kNone : 0; i != kNone; i = data.symbols[i].next)
      ids.push_back(data.symbols[i].token);
    data.remember(piece, {ids.begin() + before, ids.end()});
  }
}

}  // namespace fp8::text
