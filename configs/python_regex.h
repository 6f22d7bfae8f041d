// SPDX-License-Identifier: Apache-2.0
// Python's re.search on UTF-8 text, through PCRE2. The two languages agree on what module names need; where they
// don't, the pattern is translated first:
//
//   \Z -> \z     \v -> \x0b     {,n} -> {0,n}     [[:alpha:]] -> [\[:alpha:]     \uXXXX, \UXXXXXXXX -> \x{XXXX}
//
// What Python rejects as a bad escape (\h, \K, \Q, ...), an unknown extension ((?R), (?&name), ...) or as nothing to
// repeat ("(*VERB)") is an error here too. \d \w \s \b and case folding follow Unicode, as for Python's str.
//
// What remains different: the flags a, L, u are not known; a reference to a group that opens later is accepted; \B
// matches an empty text (as in Python from 3.14 on).
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace fp8::configs {

/// A compiled pattern. Copies share it; searching is thread-safe.
class PythonRegex {
 public:
  /// Throws io::Error "WHERE: pattern 'a(b': missing closing parenthesis, at offset 3". `where` is the file and key,
  /// or the option. Patterns are at most 64 KiB.
  PythonRegex(std::string_view pattern, std::string_view where);

  /// True if the pattern matches anywhere in `text` (re.search). Throws io::Error naming the pattern and the text if
  /// matching takes more than a million steps or 32 MiB, or if `text` is not UTF-8.
  bool search(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }
  const std::string& where() const { return where_; }

 private:
  std::string pattern_, where_;
  std::shared_ptr<const void> code_;
};

}  // namespace fp8::configs
