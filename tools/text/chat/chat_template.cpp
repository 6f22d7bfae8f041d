// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/chat/chat_template.h"

#include "fp8/tools/text/files/tokenizer_files.h"

namespace fp8::text {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostTemplate = std::uint64_t{1} << 20;  // bytes, of all of a file

/// An object, empty where the file is not there.
io::Json object_in(const fs::path& file) {
  if (!io::is_there(file)) return io::Json::object();
  io::Json json = io::read_python_json(io::source_file(file.parent_path(), file.filename()));
  if (!json.is_object()) io::fail(file, "holds a JSON {}, expected an object", json.type_name());
  return json;
}

void take_tokens(const io::Json& from, io::Json& tokens) {
  for (const char* const name : kTokenNames) {
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
        io::fail<io::Error>("{}: expected a template, or an array of objects with name and template", where);
      bytes += one["template"].get_ref<const std::string&>().size();
      if (bytes > kMostTemplate) io::fail<io::Error>("{}: has templates of more than {} bytes", where, kMostTemplate);
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
    io::fail<io::Error>("{}: has no template 'default', found {}", where_, io::joined_first(names));
  }
  io::Json variables = tokens_;
  variables["messages"] = messages;
  variables["tools"] = tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = generation_prompt;
  return found->second.render(variables, {.ask = std::move(ask)});
}

namespace {

constexpr const char* kShapes = "text, messages, conversations, prompt and completion, instruction and output";
constexpr std::string_view kAlpaca = "Below is an instruction that describes a task",
                           kAlpacaInput = ", paired with an input that provides further context",
                           kAlpacaTask = ". Write a response that appropriately completes the request.\n\n";

/// For a message: "'txt', 'id'".
std::string fields_of(const io::Json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(io::in_quotes(name));
  return names.empty() ? "none" : io::joined_first(names);
}

const io::Json* field_of(const io::Json& row, const char* name) {
  const auto found = row.find(name);
  return found == row.end() || found->is_null() ? nullptr : &*found;
}

std::string string_of(const io::Json& row, const char* name, const std::string& where) {
  const io::Json* const field = field_of(row, name);
  if (!field) io::fail_at(where, "has no field '{}', found {}", name, fields_of(row));
  if (!field->is_string()) io::fail_at(where, "field '{}' is a JSON {}, expected a string", name, field->type_name());
  return field->get<std::string>();
}

std::string string_or_empty(const io::Json& row, const char* name, const std::string& where) {
  return field_of(row, name) ? string_of(row, name, where) : "";
}

void require_object(const io::Json& row, const std::string& where, const std::string& expected) {
  if (!row.is_object()) io::fail_at(where, "is a JSON {}, expected {}", row.type_name(), expected);
}

/// The texts of a content of parts.
std::string text_of_parts(const io::Json& parts, const std::string& where) {
  std::string text;
  for (const auto& part : parts) {
    if (part.is_string()) {
      text += part.get<std::string>();
      continue;
    }
    require_object(part, where, "an object or a string");
    const std::string type = string_of(part, "type", where);
    if (type != "text") io::fail_at(where, "holds a part of type {}, allowed: text", io::in_quotes(type));
    text += string_of(part, "text", where);
  }
  return text;
}

/// ShareGPT's names of who speaks.
std::string role_of(const std::string& from, const std::string& where) {
  constexpr std::pair<std::string_view, const char*> kRoles[] = {
      {"system", "system"},   {"human", "user"},          {"user", "user"},
      {"gpt", "assistant"},   {"assistant", "assistant"}, {"chatgpt", "assistant"},
      {"model", "assistant"}, {"tool", "tool"},           {"observation", "tool"}};
  for (const auto& [name, role] : kRoles)
    if (name == from) return role;
  io::fail_at(where, "'from' is {}, allowed: system, human, gpt, tool", io::in_quotes(from));
}

/// Adds "reasoning_content" under its other names, as transformers does.
void alias_reasoning(io::Json& message) {
  for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
    const io::Json* const found = field_of(message, name);
    if (!found) continue;
    io::Json aliased = {{"thinking", *found}};
    const io::Json reasoning = *found;
    auto& all = aliased.get_ref<io::Json::object_t&>();  // whose push_back() looks through no other keys
    for (const auto& [key, value] : message.items())
      key == "thinking" ? void(aliased[key] = value) : all.push_back({key, value});
    aliased["reasoning_content"] = reasoning;
    message = std::move(aliased);
    return;
  }
}

/// {"role", "content", ...} of {"from", "value"} or of itself, its content one text.
io::Json message_of(const io::Json& given, const std::string& where) {
  require_object(given, where, "an object with role and content");
  io::Json message = given;
  if (!given.contains("role") && given.contains("from"))
    message = {{"role", role_of(string_of(given, "from", where), where)},
               {"content", given.value("value", io::Json())}};
  string_of(message, "role", where);
  const io::Json* const content = field_of(message, "content");
  if (content && content->is_array()) message["content"] = text_of_parts(*content, where);
  if (content && !content->is_array() && !content->is_string())
    io::fail_at(where, "its content is a JSON {}, expected a string or parts", content->type_name());
  if (!content && message.size() <= 2) io::fail_at(where, "has no content");  // with calls of tools it may have none
  alias_reasoning(message);
  return message;
}

/// An array, or null where there are none; datasets hold it as a string, too.
io::Json tools_of(const io::Json& row, const std::string& where) {
  const io::Json* const given = field_of(row, "tools");
  if (!given || *given == "") return {};
  const io::Json tools = given->is_string() ? io::parse_json(given->get<std::string>(), where + ": tools") : *given;
  if (!tools.is_array() && !tools.is_null())
    io::fail_at(where, "field 'tools' is a JSON {}, expected an array", tools.type_name());
  return tools;
}

}  // namespace

const ChatTemplate* RowTexts::chat() {
  if (!looked_ && !folder_.empty()) chat_ = ChatTemplate::read(folder_);
  looked_ = true;
  return chat_ ? &*chat_ : nullptr;
}

RowText RowTexts::of_messages(const io::Json& row, const io::Json& messages, const std::string& where) {
  if (!messages.is_array() || messages.empty()) io::fail_at(where, "expected an array of messages");
  io::Json all = io::Json::array();
  if (const std::string system = string_or_empty(row, "system", where); !system.empty())
    all.push_back({{"role", "system"}, {"content", system}});
  for (std::size_t i = 0; i < messages.size(); ++i)
    all.push_back(message_of(messages[i], where + ": message " + std::to_string(i + 1)));
  if (!chat())
    io::fail_at(where,
                "holds messages, which go through a chat template, and the model has none: {} has no "
                "chat_template.jinja, and no chat_template in tokenizer_config.json",
                folder_.empty() ? "no folder" : folder_.string());
  const bool prompt = use_ == RowUse::prompt;
  if (prompt && all.size() > 1 && all.back()["role"] == "assistant") all.erase(all.size() - 1);
  try {
    return {chat()->render(all, tools_of(row, where), prompt && all.back()["role"] != "assistant", ask_), false};
  } catch (const io::Error& error) {
    io::fail<io::Error>("{}: {}", where, io::raw_message(error));
  }
}

RowText RowTexts::of_instruction(const io::Json& row, const std::string& where) {
  const std::string instruction = string_of(row, "instruction", where), input = string_or_empty(row, "input", where),
                    output = use_ == RowUse::prompt ? "" : string_of(row, "output", where);
  if (chat()) {
    io::Json messages = {{{"role", "user"}, {"content", input.empty() ? instruction : instruction + "\n\n" + input}}};
    if (use_ == RowUse::text) messages.push_back({{"role", "assistant"}, {"content", output}});
    return of_messages(row, messages, where);
  }
  std::string text(kAlpaca);
  text.append(input.empty() ? "" : kAlpacaInput).append(kAlpacaTask).append("### Instruction:\n").append(instruction);
  if (!input.empty()) text.append("\n\n### Input:\n").append(input);
  return {text.append("\n\n### Response:\n").append(output)};
}

RowText RowTexts::text_of(const io::Json& row, const std::string& where) {
  if (row.is_string()) return {row.get<std::string>()};
  require_object(row, where, std::string("a string, or an object with the field 'text' (or ") + kShapes + ")");
  if (field_of(row, "text")) return {string_of(row, "text", where)};
  for (const char* const name : {"messages", "conversations"})
    if (const io::Json* const messages = field_of(row, name)) return of_messages(row, *messages, where);
  if (const io::Json* const prompt = field_of(row, "prompt")) {
    const io::Json* const completion = field_of(row, "completion");
    const bool continued = use_ == RowUse::text;
    if (prompt->is_array()) {
      io::Json messages = *prompt;
      if (continued && !completion) string_of(row, "completion", where);  // says that it is missing
      if (continued && !completion->is_array())
        io::fail_at(where, "field 'completion' is a JSON {}, expected messages, as 'prompt' is",
                    completion->type_name());
      if (continued) messages.insert(messages.end(), completion->begin(), completion->end());
      return of_messages(row, messages, where);
    }
    return {string_of(row, "prompt", where) + (continued ? string_of(row, "completion", where) : "")};
  }
  if (field_of(row, "instruction")) return of_instruction(row, where);
  io::fail_at(where, "has no field 'text', found {}, allowed: {}", fields_of(row), kShapes);
}

std::pair<std::string, std::string> source_and_answer(const io::Json& row, const std::string& where) {
  require_object(row, where, "an object with the field 'input'");
  if (field_of(row, "instruction") && field_of(row, "output")) {
    const std::string input = string_or_empty(row, "input", where), instruction = string_of(row, "instruction", where);
    return {input.empty() ? instruction : instruction + "\n\n" + input, string_of(row, "output", where)};
  }
  if (field_of(row, "prompt") && field_of(row, "completion"))
    return {string_of(row, "prompt", where), string_of(row, "completion", where)};
  std::string source = string_of(row, "input", where);
  return {std::move(source), string_of(row, "target", where)};
}

}  // namespace fp8::text
