// SPDX-License-Identifier: Apache-2.0
// Which files of a folder make its tokenizer. The first of these that is there:
//
//   tokenizer.json                                             as it is
//   tekken.json                                                Mistral's ranks
//   tokenizer.model, spiece.model, spm.model,                  sentencepiece, the first one and
//   sentencepiece.bpe.model, tiktoken.model, *.tiktoken        the last two tiktoken's ranks
//   vocab.json with merges.txt, vocab.txt                      plain vocabularies
//
// Special tokens and options then come from tokenizer_config.json and its neighbours (TokenSettings).
#pragma once
#include <map>

#include "fp8/tools/text/steps/vocabulary.h"
#include "fp8/tools/text/unicode/characters.h"

namespace fp8::text {

// The "vocab" of a tokenizer.json, token -> id, made token by token: io::Json alone looks for each among all of them.

class TokenTable {
 public:
  TokenTable() = default;
  /// json: an object of ids.
  explicit TokenTable(io::Json json) : json_(std::move(json)) {
    std::size_t place = 0;
    for (const auto& item : object()) places_.emplace(item.first, place++);
  }

  bool contains(const std::string& token) const { return places_.contains(token); }
  std::optional<std::int64_t> find(const std::string& token) const {
    const auto found = places_.find(token);
    if (found == places_.end()) return std::nullopt;
    return (object().begin() + static_cast<std::ptrdiff_t>(found->second))->second.get<std::int64_t>();
  }
  /// Of two ids of one token the later counts.
  void set(const std::string& token, std::int64_t id) {
    auto& all = json_.get_ref<io::Json::object_t&>();
    const auto [found, added] = places_.try_emplace(token, all.size());
    if (added)
      all.push_back({token, id});
    else
      (all.begin() + static_cast<std::ptrdiff_t>(found->second))->second = id;
  }
  const io::Json::object_t& object() const { return json_.get_ref<const io::Json::object_t&>(); }
  /// It is empty afterwards.
  io::Json take() {
    places_.clear();
    return std::exchange(json_, io::Json::object());
  }

 private:
  io::Json json_ = io::Json::object();
  StringMap<std::size_t> places_;
};

// The files beside a vocabulary: tokenizer_config.json, and where that is silent special_tokens_map.json,
// added_tokens.json and config.json's model_type. A file that is not there says nothing.

/// The special tokens that a file may name.
inline constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};
/// Tokens by their names: {"bos_token", "<s>"}.
using TokenNames = std::map<std::string, std::string>;

class TokenSettings {
 public:
  TokenSettings() = default;  ///< no file
  explicit TokenSettings(const std::filesystem::path& folder);

  /// tokenizer_class without "Fast" ("BertTokenizer"), else model_type ("bert"), else nothing.
  std::string kind() const;
  /// Throws io::Error naming `file` where kind() starts as one of `others`: their files are read in another way.
  void refuse(const std::string& file, std::initializer_list<const char*> others) const;
  bool boolean_or(const char* key, bool otherwise) const;
  /// null or missing: nothing.
  std::optional<bool> boolean(const char* key) const;
  /// The token that `key` ("bos_token") names.
  std::optional<std::string> token(const std::string& key) const;

  /// The "added_tokens" of a tokenizer.json: those listed with their ids, then the special ones that are named, in
  /// `vocab` or behind it. defaults: names where the files give none, of tokens in `vocab` alone.
  io::Json added_tokens(const TokenTable& vocab, const TokenNames& defaults) const;

 private:
  std::optional<JsonPart> find(const std::string& key) const;

  std::string folder_;
  io::Json config_ = io::Json::object(), map_ = config_, added_ = config_, model_ = config_;
};

/// A post-processor that puts tokens before and after a text, by their names. ids: of the vocabulary and of the added
/// ones. Throws io::Error naming `file` where a token has none.
io::Json surround(const std::string& file, const TokenTable& vocab, const io::Json& added_tokens,
                  const std::vector<std::string>& before, const std::vector<std::string>& after);

/// A tokenizer as the JSON of a tokenizer.json.
struct TokenizerFile {
  io::Json json;
  std::string name;  ///< of the file, fit for messages
};

/// Throws io::Error naming the file, the key or line, what was found and what is allowed, or the folder that has none.
TokenizerFile read_tokenizer(const std::filesystem::path& folder);

// Tokenizers of plain vocabularies, as the JSON of a tokenizer.json:
//
//   vocab.txt                 one token a line, its id the line's number from 0: WordPiece as BERT has it
//   vocab.json + merges.txt   {token: id}, and one merge "LEFT RIGHT" a line: BPE over bytes, as GPT-2, RoBERTa and
//                             BART, CLIP or Qwen have it (which one: tokenizer_class, else model_type)

/// The bytes of a file, with its name for messages.
struct NamedBytes {
  std::string name;
  std::string_view bytes;
};

/// Qwen's expression to cut texts by.
inline constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Steps of a tokenizer.json.
io::Json split_at(const std::string& expression, const char* behavior = "Isolated", bool invert = false);
io::Json byte_level(bool prefix, bool regex);
/// list: the key of the steps.
io::Json chain(const char* list, io::Json steps);

/// Throw io::Error naming the file, the line and what is wrong.
io::Json from_vocab_txt(const NamedBytes& file, const TokenSettings& settings);
io::Json from_vocab_and_merges(const NamedBytes& vocab, const NamedBytes& merges, const TokenSettings& settings);

/// The lines of a vocabulary, their ends (\n or \r\n) left out. Throws io::Error where there are none, more than 2^21,
/// or one is not UTF-8.
std::vector<std::string> vocabulary_lines(const NamedBytes& file);

// Tokenizers of Mistral's tekken.json, as the JSON of a tokenizer.json. Ranks as tiktoken's, with
// the expression beside them:
//
//   config          pattern, default_vocab_size V, default_num_special_tokens S, version
//   vocab           [{rank, token_bytes (base64), token_str}], rank i at index i; the first V - S are used
//   special_tokens  [{rank, token_str, is_control}], missing up to version v7; those up to S are <SPECIAL_rank>
//   ids             special ones 0 .. S-1, the others S + rank
//
// A text begins with <s>. As in other tokenizers special tokens are found in texts (mistral-common's take them apart).

/// Throws io::Error naming the file, the key and what is wrong.
io::Json from_tekken(const NamedBytes& file, const TokenSettings& settings);

// Tokenizers of tiktoken's files (Llama 3's tokenizer.model, qwen.tiktoken, cl100k_base.tiktoken), as the JSON of a
// tokenizer.json.
//
//   one token a line: its bytes in base64, a space, its rank, which is also its id
//
// Any two neighbours whose bytes together are a token are joined, those of the lowest rank first. The file has no
// expression to split texts: its name and tokenizer_class tell which one it is.

/// file: its name's last part tells the expression. Throws io::Error naming the file, the line and what is wrong.
io::Json from_tiktoken(const NamedBytes& file, const TokenSettings& settings);

// Tokenizers of sentencepiece models (tokenizer.model, spiece.model, spm.model, sentencepiece.bpe.model), as the JSON
// of a tokenizer.json. Texts between special tokens get the ids that sentencepiece gives; of Llama
// and its like "legacy" and "add_prefix_space" of tokenizer_config.json say where a space is put before them, as for
// transformers. Where "legacy" is missing it is true.

/// Throws io::Error naming the file and what is wrong (sentence_piece.h).
io::Json from_sentence_piece(const NamedBytes& file, const TokenSettings& settings);

}  // namespace fp8::text
