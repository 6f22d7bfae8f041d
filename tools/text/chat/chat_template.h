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
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/text/jinja/template.h"

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

}  // namespace fp8::text
