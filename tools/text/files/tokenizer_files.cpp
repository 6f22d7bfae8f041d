// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/files/tokenizer_files.h"

#include <charconv>
#include <set>

namespace fp8::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

// The *.tiktoken of a folder, or nothing.
fs::path tiktoken_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".tiktoken") found.push_back(entry.path());
  if (found.size() > 1) io::fail(folder, "has {} files *.tiktoken and no tokenizer.json, allowed: one", found.size());
  return found.empty() ? fs::path() : found.front();
}

std::string name_of(const fs::path& file) { return io::printable(file.string(), 4096); }

// The file's bytes for `from`, which makes the JSON of them.
template <class From>
TokenizerFile read_with(const From& from, const fs::path& file, const TokenSettings& settings) {
  const std::string bytes = io::read_file(io::source_file(file.parent_path(), file.filename()), kMaxFile);
  return {from(NamedBytes{name_of(file), bytes}, settings), name_of(file)};
}

// A sentencepiece model starts with the tag of its first piece, a line of base64 never so.
io::Json from_model(const NamedBytes& file, const TokenSettings& settings) {
  if (file.bytes.empty()) io::fail_at(file.name, "is empty");
  return file.bytes[0] == '\n' ? from_sentence_piece(file, settings) : from_tiktoken(file, settings);
}

}  // namespace

TokenizerFile read_tokenizer(const fs::path& folder) {
  const fs::path whole = folder / "tokenizer.json", merges = folder / "merges.txt", vocab = folder / "vocab.txt";
  if (io::is_there(whole)) return {io::read_python_json(io::source_file(folder, "tokenizer.json")), name_of(whole)};
  const TokenSettings settings(folder);
  if (io::is_there(folder / "tekken.json")) return read_with(from_tekken, folder / "tekken.json", settings);
  for (const char* const name : {"tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model"})
    if (io::is_there(folder / name)) return read_with(from_model, folder / name, settings);
  const fs::path ranks = io::is_there(folder / "tiktoken.model") ? folder / "tiktoken.model" : tiktoken_in(folder);
  if (!ranks.empty()) return read_with(from_tiktoken, ranks, settings);
  if (io::is_there(folder / "vocab.json") && io::is_there(merges)) {
    const auto from = [&](const NamedBytes& file, const TokenSettings& named) {
      const std::string lines = io::read_file(io::source_file(folder, "merges.txt"), kMaxFile);
      return from_vocab_and_merges(file, {name_of(merges), lines}, named);
    };
    return read_with(from, folder / "vocab.json", settings);
  }
  if (io::is_there(vocab)) return read_with(from_vocab_txt, vocab, settings);
  io::fail(folder,
           "has no tokenizer, allowed: tokenizer.json, tekken.json, tokenizer.model, spiece.model, spm.model, "
           "sentencepiece.bpe.model, *.tiktoken, vocab.json with merges.txt, vocab.txt");
}

namespace {

constexpr std::int64_t kMostSpecial = 1 << 16;

// The special tokens that files up to version v7 leave out.
constexpr const char* kFirstSpecial =
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]";

// {token in the alphabet of bytes: id}
TokenTable read_vocab(const JsonPart& part, std::int64_t count, std::int64_t first_id) {
  constexpr std::size_t kLongest = 1024;
  const auto& list = part.json();
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) < count)
    part.fail(
        io::message("has {} tokens, expected an array of {} or more (default_vocab_size - default_num_special_tokens)",
                    list.is_array() ? list.size() : 0, count));
  TokenTable vocab;
  const auto parts = part.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const JsonPart& token = parts[static_cast<std::size_t>(i)];
    token.at("rank").integer(i, i);
    const JsonPart spelled = token.at("token_bytes");
    const auto bytes = from_base64(spelled.string());
    const bool is_byte = bytes && bytes->size() == 1 && static_cast<unsigned char>(bytes->front()) == i;
    if (!bytes || bytes->empty() || bytes->size() > kLongest || (i < 256 && !is_byte))
      spelled.fail(
          io::message("is {}, expected {} in base64", io::in_quotes(spelled.string()),
                      i < 256 ? "the byte " + std::to_string(i) : "1 to " + std::to_string(kLongest) + " bytes"));
    std::string letters;
    append_byte_letters(letters, *bytes);
    if (vocab.contains(letters)) spelled.fail("repeats an earlier token");
    vocab.set(letters, first_id + i);
  }
  return vocab;
}

// The special tokens by their ids, all `count` of them.
std::vector<std::string> read_special(const JsonPart& top, const JsonPart& config, std::int64_t count) {
  std::vector<std::string> special(static_cast<std::size_t>(count));
  if (const auto list = top.find("special_tokens")) {
    for (const JsonPart& token : list->elements()) {
      std::string& place = special[static_cast<std::size_t>(token.at("rank").integer(0, count - 1))];
      if (!place.empty()) token.at("rank").fail("repeats that of " + io::in_quotes(place));
      place = token.at("token_str").string();
    }
  } else {
    const JsonPart version = config.at("version");
    if (!std::set<std::string>{"v1", "v2", "v3", "v7"}.contains(version.string()))
      version.fail("is " + io::in_quotes(version.string()) +
                   ", whose files list their special_tokens; missing they are "
                   "allowed with v1, v2, v3, v7");
    const auto known = io::words(kFirstSpecial);
    std::copy_n(known.begin(), std::min(special.size(), known.size()), special.begin());
  }
  for (std::size_t i = 0; i < special.size(); ++i)
    if (special[i].empty()) special[i] = "<SPECIAL_" + std::to_string(i) + ">";
  return special;
}

// A tokenizer of ranks: what follows its vocabulary and its added tokens.
void add_ranked_model(io::Json& result, const std::string& expression, TokenTable vocab,
                      const std::vector<std::int64_t>& ranks) {
  result["pre_tokenizer"] = chain("pretokenizers", {split_at(expression), byte_level(false, false)});
  result["decoder"] = {{"type", "ByteLevel"}};
  result["model"] = {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocab.take()}, {"ranks", ranks}};
}

}  // namespace

io::Json from_tekken(const NamedBytes& file, const TokenSettings& settings) {
  const io::Json json = io::parse_json(file.bytes, file.name);
  const JsonPart top(json, file.name);
  const JsonPart config = top.at("config");
  const std::int64_t special_count = config.at("default_num_special_tokens").integer(1, kMostSpecial);
  const std::int64_t count =
      config.at("default_vocab_size").integer(special_count + 256, Vocabulary::kMaxId) - special_count;
  TokenTable vocab = read_vocab(top.at("vocab"), count, special_count);
  io::Json added = io::Json::array(), result;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(special_count), -1);
  for (std::int64_t i = 0; i < count; ++i) ranks.push_back(i);
  for (const std::string& content : read_special(top, config, special_count)) {
    if (vocab.contains(content))
      io::fail_at(file.name, "has the special token {} in its vocab too", io::in_quotes(content));
    added.push_back({{"id", added.size()}, {"content", content}, {"special", true}, {"normalized", false}});
  }
  std::vector<std::string> before, after;
  if (settings.boolean_or("add_bos_token", true)) before.push_back(settings.token("bos_token").value_or("<s>"));
  if (settings.boolean_or("add_eos_token", false)) after.push_back(settings.token("eos_token").value_or("</s>"));
  result["post_processor"] = surround(file.name, vocab, added, before, after);
  result["added_tokens"] = std::move(added);
  add_ranked_model(result, config.at("pattern").string(), std::move(vocab), ranks);
  return result;
}

namespace {

struct Split {
  const char* start;  // of the file's name
  const char* expression;
  bool nfc;
};
constexpr Split kSplits[] = {
    {"qwen", kQwenPattern, true},
    {"hy", kQwenPattern, false},
    {"o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false},
    // Llama 3, GLM-4, cl100k_base
    {"",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
     R"(\s+(?!\S)|\s+)",
     false}};

const Split& split_of(const std::string& name) {
  const Split* split = std::begin(kSplits);
  while (!name.starts_with(split->start)) ++split;
  return *split;
}

// {token in the alphabet of bytes: rank}
TokenTable read_ranks(const NamedBytes& file) {
  constexpr std::size_t kLongest = 1024;
  TokenTable vocab;
  const auto lines = vocabulary_lines(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line.empty()) continue;
    const auto fail = [&](const std::string& expected) {
      io::fail_at(file.name, "line {} is {}, expected {}", i + 1, io::in_quotes(line), expected);
    };
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) fail("BASE64 RANK");
    const auto bytes = from_base64(std::string_view(line).substr(0, space));
    std::int64_t rank = -1;
    const char* const last = line.data() + line.size();
    const auto [end, error] = std::from_chars(line.data() + space + 1, last, rank);
    if (!bytes || bytes->empty() || error != std::errc() || end != last) fail("BASE64 RANK");
    if (rank < 0 || rank > Vocabulary::kMaxId) fail("a rank from 0 to " + std::to_string(Vocabulary::kMaxId));
    if (bytes->size() > kLongest) fail("a token of at most " + std::to_string(kLongest) + " bytes");
    std::string letters;
    append_byte_letters(letters, *bytes);
    if (vocab.contains(letters)) fail("a token that no earlier line has");
    vocab.set(letters, rank);
  }
  return vocab;
}

// The tokens that Qwen's first tokenizer adds behind its ranks, where no file lists it.
void add_qwen_tokens(io::Json& added, std::int64_t next) {
  const auto add = [&](const std::string& content) {
    added.push_back({{"id", next++}, {"content", content}, {"special", true}, {"normalized", false}});
  };
  for (const char* const content : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) add(content);
  for (int i = 0; i < 205; ++i) add("<|extra_" + std::to_string(i) + "|>");
}

}  // namespace

io::Json from_tiktoken(const NamedBytes& file, const TokenSettings& settings) {
  const Split& split = split_of(file.name.substr(file.name.rfind('/') + 1));
  TokenTable vocab = read_ranks(file);
  io::Json result;
  std::vector<std::int64_t> ranks;
  for (const auto& [token, rank] : vocab.object()) {
    const auto id = rank.get<std::size_t>();
    if (ranks.size() <= id) ranks.resize(id + 1, -1);
    ranks[id] = rank.get<std::int64_t>();
  }
  io::Json added = settings.added_tokens(vocab, {});
  if (added.empty() && split.nfc) add_qwen_tokens(added, static_cast<std::int64_t>(ranks.size()));
  std::vector<std::string> before, after;
  const auto bos = settings.token("bos_token"), eos = settings.token("eos_token");
  if (bos && settings.boolean_or("add_bos_token", !split.nfc)) before.push_back(*bos);
  if (eos && settings.boolean_or("add_eos_token", false)) after.push_back(*eos);
  result["post_processor"] = surround(file.name, vocab, added, before, after);
  result["added_tokens"] = std::move(added);
  if (split.nfc) result["normalizer"] = {{"type", "NFC"}};
  add_ranked_model(result, split.expression, std::move(vocab), ranks);
  return result;
}

}  // namespace fp8::text
