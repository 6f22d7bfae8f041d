// SPDX-License-Identifier: Apache-2.0
// See normalizer.h.
#include "fp8/tools/text/normalizer.h"

#include <memory>
#include <utility>
#include <vector>

#include "fp8/tools/text/nfc.h"
#include "fp8/tools/text/pattern.h"

namespace fp8::text {
namespace {

Normalizer make_prepend(const JsonPart& part) {
  return [prefix = part.at("prepend").string()](std::string text) { return text.empty() ? text : prefix + text; };
}

Normalizer make_replace(const JsonPart& part) {
  const auto pattern = std::make_shared<const Pattern>(Pattern::from_json(part.at("pattern")));
  return [pattern, content = part.at("content").string()](std::string text) { return pattern->replace(text, content); };
}

Normalizer make_sequence(const JsonPart& part) {
  std::vector<Normalizer> steps;
  for (const JsonPart& step : part.at("normalizers").elements()) steps.push_back(make_normalizer(step));
  return [steps = std::move(steps)](std::string text) {
    for (const Normalizer& step : steps) text = step(std::move(text));
    return text;
  };
}

}  // namespace

Normalizer make_normalizer(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "Prepend") return make_prepend(part);
  if (type == "Replace") return make_replace(part);
  if (type == "NFC") return [](std::string text) { return to_nfc(text); };
  if (type == "Sequence") return make_sequence(part);
  part.unsupported_type("Prepend, Replace, NFC, Sequence");
}

}  // namespace fp8::text
