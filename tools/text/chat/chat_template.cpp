// SPDX-License-Identifier: Apache-2.0
// See chat_template.h.
#include "fp8/tools/text/chat/chat_template.h"

#include <utility>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::text {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostTemplate = std::uint64_t{1} << 20;  // bytes, of all of a file
constexpr const char* kTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                   "pad_token", "cls_token", "mask_token"};

/// An object, empty where the file is not there.
io::Json object_in(const fs::path& file) {
  if (!io::is_there(file)) return io::Json::object();
  io::Json json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
  if (!json.is_object()) io::fail(file, std::string("holds a JSON ") + json.type_name() + ", expected an object");
  return json;
}

void take_tokens(const io::Json& from, io::Json& tokens) {
  for (const char* const name : kTokens) {
    const auto found = from.find(name);
    if (found == from.end() || tokens.contains(name)) continue;
    if (found->is_string()) tokens[name] = *found;
    if (found->is_object() && found->contains("content") && (*found)["content"].is_string())
      tokens[name] = (*found)["content"];
  }
}

}  // namespace

void ChatTemplate::add(const std::string& name, const std::string& source, const std::string& where) {
  where_ = where;
  // Of two with one name the last counts, as where a dictionary is made of them.
  named_.erase(name);
  named_.emplace(name, jinja::Template(source, where + (name == "default" ? "" : " " + io::in_quotes(name))));
}

std::optional<ChatTemplate> ChatTemplate::read(const fs::path& folder) {
  ChatTemplate chat;
  const io::Json config = object_in(folder / "tokenizer_config.json");
  take_tokens(config, chat.tokens_);
  take_tokens(object_in(folder / "special_tokens_map.json"), chat.tokens_);
  if (const auto file = folder / "chat_template.jinja"; io::is_there(file)) {
    chat.add("default", io::read_file(io::source_file(folder, file.filename()), kMostTemplate),
             io::printable(file.string(), 4096));
    return chat;
  }
  for (const char* const name : {"tokenizer_config.json", "chat_template.json"}) {
    const io::Json json = name == std::string("tokenizer_config.json") ? config : object_in(folder / name);
    const auto found = json.find("chat_template");
    if (found == json.end() || found->is_null()) continue;
    const std::string where = io::printable((folder / name).string(), 4096) + ": chat_template";
    if (found->is_string()) {
      chat.add("default", found->get<std::string>(), where);
      return chat;
    }
    std::size_t bytes = 0;
    for (const auto& one : found->is_array() ? *found : io::Json::array({nullptr})) {
      if (!one.is_object() || !one.contains("name") || !one["name"].is_string() || !one.contains("template") ||
          !one["template"].is_string())
        throw io::Error(where + ": expected a template, or an array of objects with name and template");
      bytes += one["template"].get_ref<const std::string&>().size();
      if (bytes > kMostTemplate)
        throw io::Error(where + ": has templates of more than " + std::to_string(kMostTemplate) + " bytes");
      chat.add(one["name"].get<std::string>(), one["template"].get<std::string>(), where);
    }
    if (!chat.named_.empty()) return chat;
  }
  return std::nullopt;
}

std::string ChatTemplate::render(const io::Json& messages, const io::Json& tools, bool generation_prompt,
                                 std::function<void()> ask) const {
  auto found = tools.is_null() ? named_.end() : named_.find("tool_use");
  if (found == named_.end()) found = named_.find("default");
  if (found == named_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, one] : named_) names.push_back(io::in_quotes(name));
    throw io::Error(where_ + ": has no template 'default', found " + io::joined_first(names));
  }
  io::Json variables = tokens_;
  variables["messages"] = messages;
  variables["tools"] = tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = generation_prompt;
  return found->second.render(variables, {.ask = std::move(ask)});
}

}  // namespace fp8::text
