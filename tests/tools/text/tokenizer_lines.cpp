// SPDX-License-Identifier: Apache-2.0
// tokenizer_lines: our tokenizers for comparisons with other people's, which scripts make.
//
//   tokenizer_lines FOLDER LINES.json OUT.json   LINES: ["text", ...]; OUT: {"ids": [[id, ...], ...],
//                                                "decoded": ["text of these ids", ...]}
//   tokenizer_lines FOLDER TEXT.txt              encodes each line of TEXT; prints {"seconds": s, "lines": n, "ids": n}
#include <chrono>
#include <exception>
#include <fstream>

#include "fp8/tools/text/tokenizer.h"

namespace {

using namespace fp8;

void compare(const text::Tokenizer& tokenizer, const char* from, const char* to) {
  io::Json ids = io::Json::array(), decoded = io::Json::array();
  for (const auto& line : io::read_json(from)) {
    const auto found = tokenizer.encode(line.get_ref<const std::string&>());
    decoded.push_back(tokenizer.decode(found));
    ids.push_back(found);
  }
  std::ofstream(to) << io::Json{{"ids", ids}, {"decoded", decoded}}.dump() << "\n";
}

void time_lines(const text::Tokenizer& tokenizer, const char* from) {
  constexpr std::uint64_t kMost = std::uint64_t{4} << 30;
  const std::string all = io::read_file(from, kMost);
  std::size_t lines = 0, ids = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\n', begin), all.size());
    ids += tokenizer.encode(std::string_view(all).substr(begin, end - begin)).size();
    ++lines;
    begin = end + 1;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("{\"seconds\": %.3f, \"lines\": %zu, \"ids\": %zu}\n", seconds.count(), lines, ids);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3 && argc != 4)
    throw std::invalid_argument("usage: tokenizer_lines FOLDER LINES.json OUT.json | FOLDER TEXT.txt");
  const text::Tokenizer tokenizer(argv[1]);
  if (argc == 4) {
    compare(tokenizer, argv[2], argv[3]);
  } else {
    time_lines(tokenizer, argv[2]);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tokenizer_lines: %s\n", error.what());
  return 1;
}
