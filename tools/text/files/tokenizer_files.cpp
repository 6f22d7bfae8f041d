// SPDX-License-Identifier: Apache-2.0
// See tokenizer_files.h.
#include "fp8/tools/text/files/tokenizer_files.h"

#include <algorithm>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/text/files/sentence_piece_file.h"
#include "fp8/tools/text/files/tekken_file.h"
#include "fp8/tools/text/files/tiktoken_file.h"
#include "fp8/tools/text/files/vocab_files.h"

namespace fp8::text {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxFile = std::uint64_t{64} << 20;

// The *.tiktoken of a folder, or nothing.
fs::path tiktoken_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".tiktoken") found.push_back(entry.path());
  }
  if (found.size() > 1)
    io::fail(folder, "has " + std::to_string(found.size()) + " files *.tiktoken and no tokenizer.json, allowed: one");
  return found.empty() ? fs::path() : found.front();
}

std::string name_of(const fs::path& file) { return io::printable(file.string(), 4096); }

// The file's bytes for `from`, which makes the JSON of them.
template <class From>
TokenizerFile read_with(const From& from, const fs::path& file, const TokenSettings& settings) {
  const std::string bytes = io::read_file(io::source_file(file.parent_path(), file.filename()), kMaxFile);
  return {from(NamedBytes{name_of(file), bytes}, settings), name_of(file)};
}

// A sentencepiece model starts with the tag of its first piece, a line of base64 never so.
io::Json from_model(const NamedBytes& file, const TokenSettings& settings) {
  if (file.bytes.empty()) io::fail_at(file.name, "is empty");
  return file.bytes[0] == '\n' ? from_sentence_piece(file, settings) : from_tiktoken(file, settings);
}

}  // namespace

TokenizerFile read_tokenizer(const fs::path& folder) {
  const fs::path whole = folder / "tokenizer.json", merges = folder / "merges.txt", vocab = folder / "vocab.txt";
  if (io::is_there(whole)) return {io::read_python_json(io::source_file(folder, "tokenizer.json")), name_of(whole)};
  const TokenSettings settings(folder);
  if (io::is_there(folder / "tekken.json")) return read_with(from_tekken, folder / "tekken.json", settings);
  for (const char* const name : {"tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model"}) {
    if (io::is_there(folder / name)) return read_with(from_model, folder / name, settings);
  }
  const fs::path ranks = io::is_there(folder / "tiktoken.model") ? folder / "tiktoken.model" : tiktoken_in(folder);
  if (!ranks.empty()) return read_with(from_tiktoken, ranks, settings);
  if (io::is_there(folder / "vocab.json") && io::is_there(merges)) {
    const auto from = [&](const NamedBytes& file, const TokenSettings& named) {
      const std::string lines = io::read_file(io::source_file(folder, "merges.txt"), kMaxFile);
      return from_vocab_and_merges(file, {name_of(merges), lines}, named);
    };
    return read_with(from, folder / "vocab.json", settings);
  }
  if (io::is_there(vocab)) return read_with(from_vocab_txt, vocab, settings);
  io::fail(folder,
           "has no tokenizer, allowed: tokenizer.json, tekken.json, tokenizer.model, spiece.model, spm.model, "
           "sentencepiece.bpe.model, *.tiktoken, vocab.json with merges.txt, vocab.txt");
}

}  // namespace fp8::text
