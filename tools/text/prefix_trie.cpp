// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/prefix_trie.h"

#include <algorithm>
#include <string>

namespace fp8::text {

PrefixTrie::PrefixTrie(const JsonPart& part, Entries entries) {
  std::size_t bytes = 0;
  for (const auto& [word, value] : entries) {
    if (word.size() > kLongest)
      part.fail("has a token of " + std::to_string(word.size()) + " bytes, allowed " + std::to_string(kLongest));
    bytes += word.size();
  }
  if (bytes > kMost) part.fail("has " + std::to_string(bytes) + " bytes of tokens, allowed " + std::to_string(kMost));
  *this = PrefixTrie(std::move(entries));
}

PrefixTrie::PrefixTrie(Entries entries) {
  std::sort(entries.begin(), entries.end());
  // Of each node of a level: the entries that pass through it, whose first `depth` bytes are its own.
  struct Range {
    std::size_t begin, end;
  };
  std::vector<Range> ranges{{0, entries.size()}}, next;
  nodes_.emplace_back();
  for (std::size_t node = 0, depth = 0; node < nodes_.size(); ++depth, ranges.swap(next), next.clear()) {
    for (const auto& [begin, end] : ranges) {
      std::size_t i = begin;
      for (; i < end && entries[i].first.size() == depth; ++i) {
        if (depth > 0) nodes_[node].value = entries[i].second;
      }
      nodes_[node].first = static_cast<std::int32_t>(nodes_.size());
      while (i < end) {
        const char byte = entries[i].first[depth];
        std::size_t last = i;
        while (last < end && entries[last].first[depth] == byte) ++last;
        next.push_back({i, last});
        nodes_.emplace_back();
        nodes_.back().byte = static_cast<unsigned char>(byte);
        ++nodes_[node].children;
        i = last;
      }
      ++node;
    }
  }
  std::fill(std::begin(of_byte_), std::end(of_byte_), kNone);
  for (std::int32_t i = nodes_[kRoot].first; i < nodes_[kRoot].first + nodes_[kRoot].children; ++i)
    of_byte_[nodes_[i].byte] = i;
}

PrefixTrie::Found PrefixTrie::longest(std::string_view text) const {
  Found found;
  std::int32_t node = kRoot;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == kNone) break;
    if (value(node) != kNone) found = {i + 1, value(node)};
  }
  return found;
}

std::int32_t PrefixTrie::walk(std::string_view text) const {
  std::int32_t node = kRoot;
  for (std::size_t i = 0; i < text.size() && node != kNone; ++i)
    node = child(node, static_cast<unsigned char>(text[i]));
  return node;
}

}  // namespace fp8::text
