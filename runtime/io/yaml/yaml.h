// SPDX-License-Identifier: Apache-2.0
// YAML as a tree of JSON with the line of each value, for files that people write. No torch here.
//
//   trainer:                       {"trainer": {"max_steps": 100, "callbacks": ["a"]}}
//     max_steps: 100               lines: "/trainer" 1, "/trainer/max_steps" 2, "/trainer/callbacks" 3,
//     callbacks: [a]                      "/trainer/callbacks/0" 3
//
// Plain scalars mean what PyYAML takes them for (YAML 1.1), and a number with an exponent (1e-3) is one as in
// YAML 1.2: null ~ true yes on false no off 12 1_000 0x1F 0o17 1.5 .inf .nan; in quotes everything is text. Anchors,
// aliases and merge keys (<<) are followed. Refused by line: what is no YAML, a key or an anchor twice, keys that are
// no text, tags other than those of JSON's types, more than one document, an alias within its own anchor, and what is
// larger than the limits below.
#pragma once
#include <map>

#include "fp8/runtime/io/json/json.h"

namespace fp8::io {

/// The value, and the line (from 1) on which each part of it begins, by JSON pointer (RFC 6901); a member's is its
/// key's, and what an alias stands for has the alias' line.
struct LocatedJson {
  Json value;
  std::map<std::string, std::int64_t> lines;
  std::string name;  ///< of the file

  /// "run.yaml:3", or the line of the nearest part that encloses it; without lines the name alone.
  std::string place(std::string pointer) const;
};

/// `pointer` with one more key: "/a" and "b/c": "/a/b~1c".
std::string json_pointer(const std::string& pointer, std::string_view key);

/// Parses one document; an empty text is null. `name` stands in messages: "run.yaml:3:7: ...". Throws io::Error. Depth
/// <= 64; with what aliases repeat at most 2^18 values and 16 MiB of text.
LocatedJson parse_yaml(std::string_view text, const std::string& name);

/// Reads a file of at most 1 MiB: .json strictly (parse_json), anything else as YAML.
LocatedJson read_yaml(const std::filesystem::path& path);

/// The text of one plain scalar as parse_yaml() takes it: "5" is 5, "a" is "a".
Json yaml_scalar(const std::string& text);

/// Block style, in the order of the keys, text in quotes wherever it would be taken for something else. comments:
/// behind the line of the part with that JSON pointer. Parsed again it is `value`.
std::string yaml_text(const Json& value, const std::map<std::string, std::string>& comments = {});

}  // namespace fp8::io
