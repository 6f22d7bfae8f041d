// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/evaluate/text_stream.h"

#include <algorithm>
#include <string_view>

namespace fp8::commands {
namespace {

constexpr std::size_t kWindow =
    8;  // ids before the new ones: enough for a character of four byte tokens and its neighbours
constexpr std::size_t kMaxPending = 16;  // invalid bytes never become whole

/// Length of the longest common prefix of whole characters: all of a, unless a ended inside a character that b
/// completes.
std::size_t common_prefix(const std::string& a, const std::string& b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  while (n > 0 && n < b.size() && (b[n] & 0xC0) == 0x80) --n;
  return n;
}

}  // namespace

TextStream::TextStream(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt)
    : tokenizer_(tokenizer) {
  const auto skip = prompt.size() - std::min(prompt.size(), kWindow);
  ids_.assign(prompt.begin() + static_cast<std::ptrdiff_t>(skip), prompt.end());
  known_ = ids_.size();
}

std::string TextStream::append(std::int64_t id) {
  ids_.push_back(id);
  return take(ids_.size() - known_ > kMaxPending);
}

std::string TextStream::finish() { return take(true); }

std::string TextStream::take(bool final) {
  const auto known_end = ids_.begin() + static_cast<std::ptrdiff_t>(known_);
  const auto before = tokenizer_.decode({ids_.begin(), known_end});
  const auto after = tokenizer_.decode(ids_);
  if (!final && (after.size() <= before.size() || after.ends_with("\xEF\xBF\xBD"))) return {};
  auto piece = after.substr(common_prefix(before, after));
  if (ids_.size() > kWindow) ids_.erase(ids_.begin(), ids_.end() - static_cast<std::ptrdiff_t>(kWindow));
  known_ = ids_.size();
  return piece;
}

}  // namespace fp8::commands
