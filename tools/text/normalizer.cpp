// SPDX-License-Identifier: Apache-2.0
// See normalizer.h.
#include "fp8/tools/text/normalizer.h"

#include <memory>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/text/growth.h"
#include "fp8/tools/text/nfc.h"
#include "fp8/tools/text/pattern.h"

namespace fp8::text {
namespace {

/// limit: the most bytes that the whole chain may make of the text that it was given.
using Step = std::function<std::string(std::string text, std::size_t limit)>;

Step make_prepend(const JsonPart& part) {
  return [prefix = part.at("prepend").string()](std::string text, std::size_t limit) {
    if (text.empty()) return text;
    check_bytes(prefix.size() + text.size(), limit, "prepending " + io::in_quotes(prefix));
    return prefix + text;
  };
}

Step make_replace(const JsonPart& part) {
  const auto pattern = std::make_shared<const Pattern>(Pattern::from_json(part.at("pattern")));
  return [pattern, content = part.at("content").string()](std::string text, std::size_t limit) {
    return pattern->replace(text, content, limit);
  };
}

Step make_step(const JsonPart& part) {
  const std::string& type = part.type();
  if (type == "Prepend") return make_prepend(part);
  if (type == "Replace") return make_replace(part);
  if (type == "NFC") return [](std::string text, std::size_t) { return to_nfc(text); };
  if (type != "Sequence") part.unsupported_type("Prepend, Replace, NFC, Sequence");
  std::vector<Step> steps;
  for (const JsonPart& step : part.at("normalizers").elements()) steps.push_back(make_step(step));
  return [steps = std::move(steps)](std::string text, std::size_t limit) {
    for (const Step& step : steps) text = step(std::move(text), limit);
    return text;
  };
}

}  // namespace

Normalizer make_normalizer(const JsonPart& part) {
  check_steps(part, "normalizers");
  return [step = make_step(part)](std::string text) {
    const std::size_t limit = most_bytes_of(text.size());
    return step(std::move(text), limit);
  };
}

}  // namespace fp8::text
