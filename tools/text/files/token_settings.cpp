// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/tools/text/files/tokenizer_files.h"

namespace fp8::text {
namespace {

io::Json read_or_empty(const std::filesystem::path& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return io::Json::object();
  io::Json json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
  if (!json.is_object()) io::fail_at(io::printable(file.string(), 4096), "holds no JSON object");
  return json;
}

std::string content_of(const JsonPart& token) {
  return token.json().is_object() ? token.at("content").string() : token.string();
}

// Collects added tokens, each content once.
class Collection {
 public:
  explicit Collection(const TokenTable& vocab) : vocab_(vocab) {
    for (const auto& [token, id] : vocab.object()) note(id.get<std::int64_t>());
  }

  void add(const std::string& content, std::int64_t id, const JsonPart& flags, bool special) {
    if (content.empty() || !seen_.insert(content).second) return;
    io::Json entry = {{"id", id}, {"content", content}, {"special", special}, {"normalized", !special}};
    if (flags.json().is_object()) {
      for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"})
        entry[key] = flags.boolean_or(key, entry.value(key, false));
    }
    note(id);
    tokens_.push_back(std::move(entry));
  }
  /// A special token by its content alone.
  void add_named(const std::string& content, const JsonPart& flags) {
    add(content, vocab_.find(content).value_or(next_), flags, true);
  }
  bool in_vocabulary(const std::string& content) const { return vocab_.contains(content); }
  io::Json take() { return std::move(tokens_); }

 private:
  void note(std::int64_t id) { next_ = std::max(next_, id + 1); }

  const TokenTable& vocab_;
  io::Json tokens_ = io::Json::array();
  std::set<std::string> seen_;
  std::int64_t next_ = 0;
};

// {"32000": {"content": "<|user|>", "special": true}}
void add_listed(const JsonPart& list, Collection& collection) {
  if (!list.json().is_object()) list.fail("is a JSON " + std::string(list.json().type_name()) + ", expected an object");
  std::map<std::int64_t, JsonPart> by_id;  // "10" is behind "9"
  for (const auto& [key, value] : list.json().items()) {
    const auto id = io::parse_integer(key, 0, Vocabulary::kMaxId);
    if (!id)
      list.fail(io::message("has the key {}, expected an id from 0 to {}", io::in_quotes(key), Vocabulary::kMaxId));
    by_id.insert_or_assign(*id, list.member(key, value));
  }
  for (const auto& [id, token] : by_id)
    collection.add(content_of(token), id, token, token.json().is_object() && token.boolean_or("special", false));
}

}  // namespace

TokenSettings::TokenSettings(const std::filesystem::path& folder)
    : folder_(io::printable(folder.string(), 4096)),
      config_(read_or_empty(folder / "tokenizer_config.json")),
      map_(read_or_empty(folder / "special_tokens_map.json")),
      added_(read_or_empty(folder / "added_tokens.json")),
      model_(read_or_empty(folder / "config.json")) {}

std::optional<JsonPart> TokenSettings::find(const std::string& key) const {
  if (auto part = JsonPart(config_, folder_ + "/tokenizer_config.json").find(key)) return part;
  return JsonPart(map_, folder_ + "/special_tokens_map.json").find(key);
}

std::string TokenSettings::kind() const {
  const auto named = JsonPart(config_, folder_ + "/tokenizer_config.json").find("tokenizer_class");
  if (!named) {
    const auto model = JsonPart(model_, folder_ + "/config.json").find("model_type");
    return model ? model->string() : "";
  }
  std::string name = named->string();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

void TokenSettings::refuse(const std::string& file, std::initializer_list<const char*> others) const {
  const std::string name = kind();
  for (const char* const other : others)
    if (name.starts_with(other))
      io::fail<io::Error>("{}: is of a {}, which is supported with its tokenizer.json alone", file,
                          io::in_quotes(name));
}

std::optional<bool> TokenSettings::boolean(const char* key) const {
  const auto part = find(key);
  return part ? std::optional(part->boolean()) : std::nullopt;
}

bool TokenSettings::boolean_or(const char* key, bool otherwise) const { return boolean(key).value_or(otherwise); }

std::optional<std::string> TokenSettings::token(const std::string& key) const {
  const auto part = find(key);
  return part ? std::optional(content_of(*part)) : std::nullopt;
}

io::Json TokenSettings::added_tokens(const TokenTable& vocab, const TokenNames& defaults) const {
  Collection collection(vocab);
  if (const auto list = find("added_tokens_decoder")) add_listed(*list, collection);
  const JsonPart added(added_, folder_ + "/added_tokens.json");
  std::map<std::int64_t, std::string> by_id;
  for (const auto& [content, id] : added_.items())
    by_id[added.member(content, id).integer(0, Vocabulary::kMaxId)] = content;
  std::set<std::string> named;
  for (const char* const key : kTokenNames) named.insert(token(key).value_or(""));
  const io::Json none;
  const JsonPart no_flags(none, folder_);
  for (const auto& [id, content] : by_id) collection.add(content, id, no_flags, named.contains(content));
  for (const char* const key : kTokenNames) {
    const auto part = find(key);
    const auto known = defaults.find(key);
    if (part)
      collection.add_named(content_of(*part), *part);
    else if (known != defaults.end() && collection.in_vocabulary(known->second))
      collection.add_named(known->second, no_flags);
  }
  for (const auto& [name, content] : defaults) {  // those of other names
    const bool known =
        std::any_of(std::begin(kTokenNames), std::end(kTokenNames), [&](const char* key) { return name == key; });
    if (!known && collection.in_vocabulary(content)) collection.add_named(content, no_flags);
  }
  for (const char* const key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = find(key);
    if (!list || !list->json().is_array()) continue;
    for (const JsonPart& token : list->elements()) collection.add_named(content_of(token), token);
  }
  return collection.take();
}

io::Json surround(const std::string& file, const TokenTable& vocab, const io::Json& added_tokens,
                  const std::vector<std::string>& before, const std::vector<std::string>& after) {
  io::Json single = io::Json::array(), tokens = io::Json::object();
  const auto put = [&](const std::string& content) {
    std::int64_t id = vocab.find(content).value_or(-1);
    for (const auto& token : added_tokens)
      if (id < 0 && token.at("content") == content) id = token.at("id").get<std::int64_t>();
    if (id < 0)
      io::fail<io::Error>("{}: has no token {}, which a text begins or ends with", file, io::in_quotes(content));
    single.push_back({{"SpecialToken", {{"id", content}}}});
    tokens[content] = {{"ids", {id}}};
  };
  for (const std::string& content : before) put(content);
  single.push_back({{"Sequence", {{"id", "A"}}}});
  for (const std::string& content : after) put(content);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
}

}  // namespace fp8::text
