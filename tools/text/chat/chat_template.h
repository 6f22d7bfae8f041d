// SPDX-License-Identifier: Apache-2.0
// The chat template of a model's folder, from the first of these that has one:
//
//   chat_template.jinja           the template
//   tokenizer_config.json         key chat_template: the template, or [{"name": "default", "template": ...}, ...], of
//                                 which "tool_use" is taken for chats with tools and "default" for the others
//   chat_template.json            key chat_template
//
// It sees messages, tools, documents (none), add_generation_prompt, and bos_token and its like as the folder's
// tokenizer_config.json and special_tokens_map.json have them: what transformers' apply_chat_template() gives it.
#pragma once
#include <map>

#include "fp8/tools/text/jinja/machine.h"

namespace fp8::text {

class ChatTemplate {
 public:
  /// Empty if the folder has none. Throws io::Error for one that can't be read.
  static std::optional<ChatTemplate> read(const std::filesystem::path& folder);

  /// messages: an array of objects; tools: an array, or null. ask: of jinja::Limits. Throws io::Error for what the
  /// template refuses.
  std::string render(const io::Json& messages, const io::Json& tools, bool generation_prompt,
                     std::function<void()> ask = {}) const;

 private:
  ChatTemplate() = default;
  void add(const std::string& name, const std::string& source, const std::string& where);

  std::string where_;
  std::map<std::string, jinja::Template> named_;
  io::Json tokens_ = io::Json::object();  ///< bos_token and its like
};

// The text of a row of data, by the first of these that the row has:
//
//   "a string"                                     a document
//   {"text": ...}                                  a document
//   {"messages": [{"role", "content"}, ...]}       through the model's chat template; "tools" go to it too
//   {"conversations": [{"from", "value"}, ...]}    the same (ShareGPT), "system" goes in front
//   {"prompt": ..., "completion": ...}             one after the other; both may be lists of messages
//   {"instruction", "input" (or none), "output"}   a question and its answer through the chat template; without one as
//                                                  Alpaca wrote them
//
// A content of parts is the texts of its parts, one after the other; other parts than text are refused.

/// prompt: up to where the model's answer begins.
enum class RowUse : std::uint8_t { text, prompt };

struct RowText {
  std::string text;
  bool special = true;  ///< the tokenizer adds its special tokens; a chat template has written them
};

class RowTexts {
 public:
  /// folder: the model's; its chat template is read when the first row asks for it. ask: called again and again while
  /// a template runs; what it throws ends that.
  explicit RowTexts(std::filesystem::path folder, RowUse use = RowUse::text, std::function<void()> ask = {})
      : folder_(std::move(folder)), use_(use), ask_(std::move(ask)) {}

  /// where: stands in messages. Throws io::Error.
  RowText text_of(const io::Json& row, const std::string& where);

 private:
  const ChatTemplate* chat();
  RowText of_messages(const io::Json& row, const io::Json& messages, const std::string& where);
  RowText of_instruction(const io::Json& row, const std::string& where);

  std::filesystem::path folder_;
  RowUse use_;
  std::function<void()> ask_;
  bool looked_ = false;
  std::optional<ChatTemplate> chat_;
};

/// A source text and its answer: fields input and target, prompt and completion, or instruction, input and output.
std::pair<std::string, std::string> source_and_answer(const io::Json& row, const std::string& where);

}  // namespace fp8::text
