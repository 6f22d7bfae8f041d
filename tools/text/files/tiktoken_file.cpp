// SPDX-License-Identifier: Apache-2.0
// See tiktoken_file.h.
#include "fp8/tools/text/files/tiktoken_file.h"

#include <charconv>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/text/base64.h"
#include "fp8/tools/text/byte_alphabet.h"
#include "fp8/tools/text/vocabulary.h"

namespace fp8::text {
namespace {

struct Split {
  const char* start;  // of the file's name
  const char* expression;
  bool nfc;
};
constexpr const char* kOneDigit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr Split kSplits[] = {
    {"qwen", kOneDigit, true},
    {"hy", kOneDigit, false},
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
      io::fail_at(file.name, "line " + std::to_string(i + 1) + " is " + io::in_quotes(line) + ", expected " + expected);
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

// What Qwen's first tokenizer adds behind its ranks, where no file lists it.
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
  const io::Json cut = {
      {"type", "Split"}, {"pattern", {{"Regex", split.expression}}}, {"behavior", "Isolated"}, {"invert", false}};
  const io::Json letters = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  result["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {cut, letters}}};
  result["decoder"] = {{"type", "ByteLevel"}};
  result["model"] = {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocab.take()}, {"ranks", ranks}};
  return result;
}

}  // namespace fp8::text
