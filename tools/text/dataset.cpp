// SPDX-License-Identifier: Apache-2.0
// See dataset.h.
//
// A document longer than needed is read in part. Where a text is cut, only the last tokens can differ (the cut may fall
// within a word), so a part counts as enough when kMargin tokens more than wanted came out of it.
#include "fp8/tools/text/dataset.h"

#include <algorithm>
#include <limits>
#include <string>

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/tools/text/text_file.h"

namespace fp8::text {
namespace {

constexpr std::int64_t kEverything = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMargin = 1024;                              // tokens
constexpr std::uint64_t kBytesPerToken = 8, kLeastBytes = 1 << 20;  // how much of a document is read first

/// Collects tokens, forgets those of skipped chunks, knows how many are still wanted.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ChunkOptions& options) : length_(options.seq_len) {
    const std::int64_t room = kEverything / length_;
    skip_ = std::min(options.skip, room) * length_;
    const std::int64_t chunks = options.samples < 0 || options.samples > room - std::min(options.skip, room)
                                    ? kEverything
                                    : options.skip + options.samples;
    end_ = chunks == kEverything ? kEverything : chunks * length_;
  }

  std::int64_t missing() const { return end_ - seen_; }
  std::int64_t seen() const { return seen_; }

  void add(const std::vector<std::int64_t>& ids) {
    const auto count = std::min(static_cast<std::int64_t>(ids.size()), missing());
    const auto from = std::clamp<std::int64_t>(skip_ - seen_, 0, count);
    kept_.insert(kept_.end(), ids.begin() + from, ids.begin() + count);
    seen_ += count;
  }

  Chunks finish(const std::filesystem::path& file) {
    const std::int64_t chunks = seen_ / length_, skipped = skip_ / length_;
    if (seen_ == 0) io::fail(file, "holds no text");
    const std::string tokens = std::to_string(seen_) + (seen_ == 1 ? " token" : " tokens");
    if (chunks == 0) io::fail(file, tokens + ", fewer than one chunk of " + std::to_string(length_) + " (--seq-len)");
    if (chunks <= skipped) {
      io::fail(file, tokens + ", " + std::to_string(chunks) + " chunks of " + std::to_string(length_) +
                         ", none left after skipping " + std::to_string(skipped) + " (--skip)");
    }
    Chunks result;
    result.count = chunks - skipped;
    result.length = length_;
    kept_.resize(static_cast<std::size_t>(result.count * length_));
    result.ids = std::move(kept_);
    return result;
  }

 private:
  std::int64_t length_, skip_ = 0, end_ = 0, seen_ = 0;
  std::vector<std::int64_t> kept_;
};

void check_options(const std::filesystem::path& file, const ChunkOptions& options) {
  const auto fail = [&](const char* name, std::int64_t found, const char* allowed) {
    io::fail(file, std::string(name) + " is " + std::to_string(found) + ", allowed: " + allowed);
  };
  if (options.seq_len < 1) fail("--seq-len", options.seq_len, "at least 1");
  if (options.samples < -1 || options.samples == 0) fail("--samples", options.samples, "at least 1, or -1 for all");
  if (options.skip < 0) fail("--skip", options.skip, "at least 0");
}

std::size_t token_limit(std::int64_t missing) {
  return missing > kEverything - kMargin ? std::numeric_limits<std::size_t>::max()
                                         : static_cast<std::size_t>(missing + kMargin);
}

Chunks load_txt(const std::filesystem::path& file, const Tokenizer& tokenizer, const ChunkOptions& options) {
  TextFile text(file);
  ChunkWriter writer(options);
  Document document;
  std::uint64_t cap = 0;
  while (writer.missing() > 0) {
    const std::size_t limit = token_limit(writer.missing());
    const std::uint64_t all = std::numeric_limits<std::uint64_t>::max() / 2;
    cap = std::max({cap, kLeastBytes, limit > all / kBytesPerToken ? all : limit * kBytesPerToken});
    if (!text.read(cap, document)) break;
    std::vector<std::int64_t> ids;
    if (!document.text.empty()) ids = tokenizer.encode(document.text, true, limit);
    if (!document.complete && ids.size() < limit) {
      cap = cap > all / 4 ? all : cap * 4;
      continue;
    }
    writer.add(ids);
    if (!document.complete) break;  // then all that is wanted is there
    text.advance();
  }
  return writer.finish(file);
}

Chunks load_jsonl(const std::filesystem::path& file, const Tokenizer& tokenizer, const ChunkOptions& options) {
  JsonLines lines(file);
  ChunkWriter writer(options);
  std::string text;
  while (writer.missing() > 0 && lines.next(text)) {
    if (!text.empty()) writer.add(tokenizer.encode(text, true, token_limit(writer.missing())));
  }
  return writer.finish(file);
}

Chunks load_safetensors(const std::filesystem::path& file, const Tokenizer* tokenizer, const ChunkOptions& options) {
  const io::SafetensorsFile tensors(file);
  const io::TensorInfo* const tensor = tensors.find("input_ids");
  if (!tensor) io::fail(file, "has no tensor 'input_ids'");
  if (tensor->dtype != io::DType::I64 || tensor->shape.size() != 2) {
    io::fail(file, std::string("'input_ids' is ") + io::name_of(tensor->dtype) + " with " +
                       std::to_string(tensor->shape.size()) + " dimensions, expected I64 [chunks, length]");
  }
  const std::int64_t rows = tensor->shape[0], length = tensor->shape[1];
  if (rows < 1 || length < 1)
    io::fail(file, "'input_ids' is empty: [" + std::to_string(rows) + ", " + std::to_string(length) + "]");
  if (rows <= options.skip)
    io::fail(file,
             std::to_string(rows) + " chunks, none left after skipping " + std::to_string(options.skip) + " (--skip)");
  Chunks result;
  result.length = length;
  result.count = options.samples < 0 ? rows - options.skip : std::min(options.samples, rows - options.skip);
  result.ids.resize(static_cast<std::size_t>(result.count * length));
  const auto row_bytes = static_cast<std::uint64_t>(length) * sizeof(std::int64_t);
  tensors.read(*tensor, result.ids.data(), static_cast<std::uint64_t>(options.skip) * row_bytes,
               static_cast<std::uint64_t>(result.count) * row_bytes);
  const std::int64_t end = tokenizer ? tokenizer->vocab_size() : kEverything;
  for (std::size_t i = 0; i < result.ids.size(); ++i) {
    if (result.ids[i] >= 0 && result.ids[i] < end) continue;
    const auto row = options.skip + static_cast<std::int64_t>(i) / length,
               column = static_cast<std::int64_t>(i) % length;
    const std::string allowed = tokenizer ? "allowed: 0 to " + std::to_string(end - 1) + " (the tokenizer's vocabulary)"
                                          : "allowed: at least 0";
    io::fail(file, "input_ids[" + std::to_string(row) + ", " + std::to_string(column) + "] is " +
                       std::to_string(result.ids[i]) + ", " + allowed);
  }
  return result;
}

}  // namespace

Chunks load_chunks(const std::filesystem::path& file, const Tokenizer* tokenizer, const ChunkOptions& options) {
  check_options(file, options);
  const std::string suffix = file.extension().string();
  const bool text = suffix == ".txt" || suffix == ".jsonl";
  if (!text && suffix != ".safetensors") {
    io::open_regular(file);  // a folder or a missing file is the better complaint
    io::fail(file, "has the suffix " + io::in_quotes(suffix) + ", allowed: .txt, .jsonl, .safetensors");
  }
  if (!text) return load_safetensors(file, tokenizer, options);
  io::open_regular(file);
  if (!tokenizer)
    io::fail(file,
             "is text, which needs a tokenizer.json beside the model; without one, pass token ids as .safetensors");
  return suffix == ".txt" ? load_txt(file, *tokenizer, options) : load_jsonl(file, *tokenizer, options);
}

}  // namespace fp8::text
