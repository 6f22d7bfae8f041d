// SPDX-License-Identifier: Apache-2.0
// See steps.h.
#include <string>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/text/steps.h"
#include "fp8/tools/text/vocabulary.h"

namespace fp8::text {
namespace {

constexpr std::size_t kMost = 1024;  // parts of a template, and ids around a text

void check_count(const JsonPart& part, std::size_t count, const char* of) {
  if (count > kMost) part.fail("has " + std::to_string(count) + of + ", allowed " + std::to_string(kMost));
}

// special_tokens: {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
std::vector<std::int64_t> special_ids(const JsonPart& part, const JsonPart& name) {
  const auto tokens = part.find("special_tokens");
  const auto token = tokens ? tokens->find(name.string()) : std::nullopt;
  if (!token) name.fail("is " + io::in_quotes(name.string()) + ", which special_tokens does not define");
  std::vector<std::int64_t> ids;
  check_count(token->at("ids"), token->at("ids").json().size(), " ids");
  for (const JsonPart& id : token->at("ids").elements()) ids.push_back(id.integer(0, Vocabulary::kMaxId));
  return ids;
}

// single: [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
PostProcessor make_template(const JsonPart& part) {
  PostProcessor result;
  int sequences = 0;
  const JsonPart single = part.at("single");
  check_count(single, single.json().size(), " parts");
  for (const JsonPart& piece : single.elements()) {
    if (const auto sequence = piece.find("Sequence")) {
      const JsonPart id = sequence->at("id");
      if (id.string() != "A") id.unsupported(id.string(), "A");
      ++sequences;
    } else {
      const auto ids = special_ids(part, piece.at("SpecialToken").at("id"));
      auto& side = sequences == 0 ? result.before : result.after;
      side.insert(side.end(), ids.begin(), ids.end());
      check_count(single, side.size(), " ids");
    }
  }
  if (sequences != 1) single.fail("has the sequence A " + std::to_string(sequences) + " times, expected once");
  return result;
}

// sep: ["[SEP]", 102], cls: ["[CLS]", 101]
PostProcessor make_bert(const JsonPart& part) {
  const auto id_of = [&part](const char* key) {
    const JsonPart pair = part.at(key);
    const auto elements = pair.elements();
    if (elements.size() != 2) pair.fail("has " + std::to_string(elements.size()) + " members, expected [token, id]");
    elements[0].string();
    return elements[1].integer(0, Vocabulary::kMaxId);
  };
  return {{id_of("cls")}, {id_of("sep")}};
}

PostProcessor make_sequence(const JsonPart& part) {
  PostProcessor result;
  check_count(part.at("processors"), part.at("processors").json().size(), " steps");
  for (const JsonPart& step : part.at("processors").elements()) {  // a later one wraps an earlier one
    const PostProcessor outer = make_post_processor(step);
    result.before.insert(result.before.begin(), outer.before.begin(), outer.before.end());
    result.after.insert(result.after.end(), outer.after.begin(), outer.after.end());
    check_count(part, result.before.size() + result.after.size(), " ids");
  }
  return result;
}

}  // namespace

PostProcessor make_post_processor(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "TemplateProcessing") return make_template(part);
  if (type == "BertProcessing" || type == "RobertaProcessing") return make_bert(part);
  if (type == "ByteLevel") return {};
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type("TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, Sequence");
}

}  // namespace fp8::text
