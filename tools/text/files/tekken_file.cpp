// SPDX-License-Identifier: Apache-2.0
// See tekken_file.h.
#include "fp8/tools/text/files/tekken_file.h"

#include <algorithm>
#include <set>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/text/base64.h"
#include "fp8/tools/text/byte_alphabet.h"
#include "fp8/tools/text/vocabulary.h"

namespace fp8::text {
namespace {

constexpr std::int64_t kMostSpecial = 1 << 16;

// What files up to version v7 leave out.
constexpr const char* kFirstSpecial[] = {"<unk>",
                                         "<s>",
                                         "</s>",
                                         "[INST]",
                                         "[/INST]",
                                         "[AVAILABLE_TOOLS]",
                                         "[/AVAILABLE_TOOLS]",
                                         "[TOOL_RESULTS]",
                                         "[/TOOL_RESULTS]",
                                         "[TOOL_CALLS]",
                                         "[IMG]",
                                         "<pad>",
                                         "[IMG_BREAK]",
                                         "[IMG_END]",
                                         "[PREFIX]",
                                         "[MIDDLE]",
                                         "[SUFFIX]",
                                         "[SYSTEM_PROMPT]",
                                         "[/SYSTEM_PROMPT]",
                                         "[TOOL_CONTENT]"};

// {token in the alphabet of bytes: id}
TokenTable read_vocab(const JsonPart& part, std::int64_t count, std::int64_t first_id) {
  constexpr std::size_t kLongest = 1024;
  const auto& list = part.json();
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) < count)
    part.fail("has " + std::to_string(list.is_array() ? list.size() : 0) + " tokens, expected an array of " +
              std::to_string(count) + " or more (default_vocab_size - default_num_special_tokens)");
  TokenTable vocab;
  const auto parts = part.elements();
  for (std::int64_t i = 0; i < count; ++i) {
    const JsonPart& token = parts[static_cast<std::size_t>(i)];
    token.at("rank").integer(i, i);
    const JsonPart spelled = token.at("token_bytes");
    const auto bytes = from_base64(spelled.string());
    const bool is_byte = bytes && bytes->size() == 1 && static_cast<unsigned char>(bytes->front()) == i;
    if (!bytes || bytes->empty() || bytes->size() > kLongest || (i < 256 && !is_byte))
      spelled.fail("is " + io::in_quotes(spelled.string()) + ", expected " +
                   (i < 256 ? "the byte " + std::to_string(i) : "1 to " + std::to_string(kLongest) + " bytes") +
                   " in base64");
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
    const auto known = std::min(special.size(), std::size(kFirstSpecial));
    std::copy_n(std::begin(kFirstSpecial), known, special.begin());
  }
  for (std::size_t i = 0; i < special.size(); ++i)
    if (special[i].empty()) special[i] = "<SPECIAL_" + std::to_string(i) + ">";
  return special;
}

io::Json pre_tokenizer(const std::string& expression) {
  const io::Json cut = {
      {"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
  const io::Json letters = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {cut, letters}}};
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
      io::fail_at(file.name, "has the special token " + io::in_quotes(content) + " in its vocab too");
    added.push_back({{"id", added.size()}, {"content", content}, {"special", true}, {"normalized", false}});
  }
  std::vector<std::string> before, after;
  if (settings.boolean_or("add_bos_token", true)) before.push_back(settings.token("bos_token").value_or("<s>"));
  if (settings.boolean_or("add_eos_token", false)) after.push_back(settings.token("eos_token").value_or("</s>"));
  result["post_processor"] = surround(file.name, vocab, added, before, after);
  result["added_tokens"] = std::move(added);
  result["pre_tokenizer"] = pre_tokenizer(config.at("pattern").string());
  result["decoder"] = {{"type", "ByteLevel"}};
  result["model"] = {{"type", "BPE"}, {"ignore_merges", true}, {"vocab", vocab.take()}, {"ranks", ranks}};
  return result;
}

}  // namespace fp8::text
