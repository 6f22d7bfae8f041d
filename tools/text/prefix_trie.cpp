// SPDX-License-Identifier: Apache-2.0
// See prefix_trie.h.
#include "fp8/tools/text/prefix_trie.h"

#include <algorithm>

namespace fp8::text {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, std::int32_t>> entries) {
  std::sort(entries.begin(), entries.end());
  // Of each node: the entries that pass through it, whose first `depth` bytes are its own.
  struct Range {
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges{{0, entries.size(), 0}};
  nodes_.emplace_back();
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const auto [begin, end, depth] = ranges[node];
    std::size_t i = begin;
    for (; i < end && entries[i].first.size() == depth; ++i) {
      if (depth > 0) nodes_[node].value = entries[i].second;
    }
    nodes_[node].first = static_cast<std::int32_t>(nodes_.size());
    while (i < end) {
      const char byte = entries[i].first[depth];
      std::size_t last = i;
      while (last < end && entries[last].first[depth] == byte) ++last;
      ranges.push_back({i, last, depth + 1});
      nodes_.emplace_back();
      nodes_.back().byte = static_cast<unsigned char>(byte);
      ++nodes_[node].children;
      i = last;
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
