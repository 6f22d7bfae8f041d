// SPDX-License-Identifier: Apache-2.0
//
// A document longer than needed is read in part. Where a text is cut, only the last tokens can differ (the cut may fall
// within a word), so a part counts as enough when kMargin tokens more than wanted came out of it.
#include "fp8/tools/text/dataset.h"

#include <cstring>

#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::text {
namespace {

constexpr std::int64_t kEverything = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMargin = 1024;                              // tokens
constexpr std::uint64_t kBytesPerToken = 8, kLeastBytes = 1 << 20;  // how much of a document is read first

/// Collects tokens, forgets those of skipped chunks, knows how many are still wanted.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ChunkOptions& options) : length_(options.seq_len), shorter_(options.shorter) {
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

  Chunks finish(const std::string& file) {
    if (shorter_ && skip_ == 0 && seen_ > 0 && seen_ < length_) length_ = seen_;
    const std::int64_t chunks = seen_ / length_, skipped = skip_ / length_;
    if (seen_ == 0) io::fail(file, "holds no text");
    const std::string tokens = std::to_string(seen_) + (seen_ == 1 ? " token" : " tokens");
    if (chunks == 0) io::fail(file, io::message("{}, fewer than one chunk of {} (--seq-len)", tokens, length_));
    if (chunks <= skipped)
      io::fail(file, io::message("{}, {} chunks of {}, none left after skipping {} (--skip)", tokens, chunks, length_,
                                 skipped));
    Chunks result;
    result.count = chunks - skipped;
    result.length = length_;
    kept_.resize(static_cast<std::size_t>(result.count * length_));
    result.ids = std::move(kept_);
    return result;
  }

 private:
  std::int64_t length_;
  bool shorter_;
  std::int64_t skip_ = 0, end_ = 0, seen_ = 0;
  std::vector<std::int64_t> kept_;
};

void check_options(const std::string& file, const ChunkOptions& options) {
  const auto fail = [&](const char* name, std::int64_t found, const char* allowed) {
    io::fail(file, io::message("{} is {}, allowed: {}", name, found, allowed));
  };
  if (options.seq_len < 1) fail("--seq-len", options.seq_len, "at least 1");
  if (options.samples < -1 || options.samples == 0) fail("--samples", options.samples, "at least 1, or -1 for all");
  if (options.skip < 0) fail("--skip", options.skip, "at least 0");
}

std::size_t token_limit(std::int64_t missing) {
  return missing > kEverything - kMargin ? std::numeric_limits<std::size_t>::max()
                                         : static_cast<std::size_t>(missing + kMargin);
}

Chunks load_documents(const DataFiles& files, const Tokenizer& tokenizer, const ChunkOptions& options,
                      const std::filesystem::path& folder) {
  Documents documents(files, folder, RowUse::text, options.ask);
  ChunkWriter writer(options);
  Document document;
  std::uint64_t cap = 0;
  while (writer.missing() > 0) {
    const std::size_t limit = token_limit(writer.missing());
    const std::uint64_t all = std::numeric_limits<std::uint64_t>::max() / 2;
    cap = std::max({cap, kLeastBytes, limit > all / kBytesPerToken ? all : limit * kBytesPerToken});
    if (!documents.read(cap, document)) break;
    std::vector<std::int64_t> ids;
    if (!document.text.empty()) ids = tokenizer.encode(document.text, document.special, limit);
    if (!document.complete && ids.size() < limit) {
      cap = cap > all / 4 ? all : cap * 4;
      continue;
    }
    writer.add(ids);
    if (!document.complete) break;  // then all that is wanted is there
    documents.advance();
  }
  return writer.finish(data_name(files));
}

/// Rows of `name`, I64 [N, L], as many as options ask for; the ids of one with a tokenizer are in its vocabulary.
Chunks load_rows(const std::filesystem::path& file, const io::SafetensorsFile& tensors, const std::string& name,
                 const Tokenizer* tokenizer, const ChunkOptions& options) {
  const std::string quoted = "'" + name + "'";
  const io::TensorInfo* const tensor = tensors.find(name);
  if (!tensor) io::fail(file, "has no tensor {}", quoted);
  if (tensor->dtype != io::DType::I64 || tensor->shape.size() != 2)
    io::fail(file, "{} is {} with {} dimensions, expected I64 [chunks, length]", quoted, io::name_of(tensor->dtype),
             tensor->shape.size());
  const std::int64_t rows = tensor->shape[0], length = tensor->shape[1];
  if (rows < 1 || length < 1) io::fail(file, "{} is empty: [{}, {}]", quoted, rows, length);
  if (rows <= options.skip) io::fail(file, "{} chunks, none left after skipping {} (--skip)", rows, options.skip);
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
    io::fail(file, "{}[{}, {}] is {}, {}", name, row, column, result.ids[i], allowed);
  }
  return result;
}

/// Rows [first, first + count) of whole numbers of any width.
std::vector<std::int64_t> whole_rows(const io::SafetensorsFile& tensors, const io::TensorInfo& info, std::int64_t first,
                                     std::int64_t count) {
  const std::int64_t length = info.shape[1], size = io::size_of(info.dtype);
  std::vector<char> bytes(static_cast<std::size_t>(count * length * size));
  tensors.read(info, bytes.data(), static_cast<std::uint64_t>(first * length * size), bytes.size());
  std::vector<std::int64_t> values(static_cast<std::size_t>(count * length));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const char* at = bytes.data() + i * static_cast<std::size_t>(size);
    const auto load = [&](auto value) {
      std::memcpy(&value, at, sizeof value);
      return static_cast<std::int64_t>(value);
    };
    values[i] = size == 8 ? load(std::int64_t{}) : size == 4 ? load(std::int32_t{}) : load(std::int8_t{});
  }
  return values;
}

/// Refuses tensors beside the ids that would change their meaning. A mask of ones, labels that are the ids, positions
/// from 0 on and token types of 0 say nothing and pass; all else is refused. answers: the file's labels are read.
void refuse_unread(const std::filesystem::path& file, const io::SafetensorsFile& tensors, const Chunks& ids,
                   std::int64_t skip, bool answers) {
  for (const auto& info : tensors.tensors()) {
    if (info.name == "input_ids" || (answers && info.name == "labels")) continue;
    const std::string quoted = io::in_quotes(info.name);
    for (const char* other : {"inputs_embeds", "pixel_values", "input_features"})
      if (info.name == other) io::fail(file, "holds {}, which is not read; allowed: input_ids", quoted);
    const bool whole = info.dtype == io::DType::I64 || info.dtype == io::DType::I32 || info.dtype == io::DType::U8 ||
                       info.dtype == io::DType::I8 || info.dtype == io::DType::BOOL;
    if (!whole || info.shape.size() != 2) continue;
    const auto fail = [&](const std::string& allowed) {
      io::fail(file, "{} is not read, allowed beside input_ids: {} (rows without padding, of one length)", quoted,
               allowed);
    };
    if (info.shape[0] < skip + ids.count || info.shape[1] != ids.length) fail("as many rows and columns as they have");
    const auto values = whole_rows(tensors, info, skip, ids.count);
    const auto require = [&](const char* allowed, const auto& fits) {
      for (std::int64_t i = 0; i < std::ssize(values); ++i)
        if (!fits(values[static_cast<std::size_t>(i)], i)) fail(allowed);
    };
    if (info.name == "attention_mask")
      require("a mask of ones", [](auto value, auto) { return value != 0; });
    else if (info.name == "labels")
      require("labels equal to them",
              [&](auto value, auto i) { return value == ids.ids[static_cast<std::size_t>(i)]; });
    else if (info.name == "position_ids")
      require("positions from 0 on in each row", [&](auto value, auto i) { return value == i % ids.length; });
    else if (info.name == "token_type_ids")
      require("token types of 0", [](auto value, auto) { return value == 0; });
    else
      fail("attention_mask, labels, position_ids, token_type_ids that change nothing");
  }
}

/// Special tokens that end a text end one that is cut too.
void cut(std::vector<std::int64_t>& ids, std::int64_t length) {
  if (static_cast<std::int64_t>(ids.size()) <= length) return;
  const auto last = ids.back();
  ids.resize(static_cast<std::size_t>(length));
  ids.back() = last;
}

std::vector<Pair> load_row_pairs(const DataFiles& files, const Tokenizer& tokenizer, const ChunkOptions& options) {
  std::vector<Pair> pairs;
  std::int64_t seen = 0;
  const auto wanted = [&] { return options.samples < 0 || static_cast<std::int64_t>(pairs.size()) < options.samples; };
  for (const auto& file : files) {
    JsonRows rows(file);
    io::Json row;
    std::string where;
    while (wanted() && rows.next(row, where)) {
      if (options.ask) options.ask();
      if (seen++ < options.skip) continue;
      const auto [source, answer] = source_and_answer(row, where);
      Pair pair{tokenizer.encode(source), tokenizer.encode(answer)};
      if (pair.source.empty() || pair.answer.empty())
        io::fail_at(where, "pair {}: field '{}' has no tokens", seen, pair.source.empty() ? "input" : "target");
      cut(pair.source, options.seq_len);
      cut(pair.answer, options.seq_len);
      pairs.push_back(std::move(pair));
    }
  }
  const std::string name = data_name(files);
  if (seen == 0) io::fail(name, "holds no text");
  if (pairs.empty()) io::fail(name, io::message("{} pairs, none left after skipping {} (--skip)", seen, options.skip));
  return pairs;
}

std::vector<Pair> load_safetensors_pairs(const std::filesystem::path& file, const Tokenizer* tokenizer,
                                         const ChunkOptions& options) {
  const io::SafetensorsFile tensors(file);
  const auto sources = load_rows(file, tensors, "input_ids", tokenizer, options),
             answers = load_rows(file, tensors, "labels", tokenizer, options);
  refuse_unread(file, tensors, sources, options.skip, /*answers=*/true);
  if (sources.count != answers.count)
    io::fail(file, "'labels' has {} rows, expected as many as 'input_ids', {}", answers.count, sources.count);
  std::vector<Pair> pairs;
  const auto row = [](const Chunks& chunks, std::int64_t i) {
    const auto begin = chunks.ids.begin() + i * chunks.length;
    return std::vector<std::int64_t>(begin, begin + chunks.length);
  };
  for (std::int64_t i = 0; i < sources.count; ++i) pairs.push_back({row(sources, i), row(answers, i)});
  return pairs;
}

void require_tokenizer(const DataFiles& files, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr)
    io::fail(data_name(files),
             "is text, which needs a tokenizer beside the model; without one, pass token ids as .safetensors");
}

}  // namespace

std::vector<Pair> load_pairs(const DataFiles& files, const Tokenizer* tokenizer, const ChunkOptions& options) {
  check_options(data_name(files), options);
  if (const DataKind kind = data_kind(files); kind == DataKind::tensors)
    return load_safetensors_pairs(files[0], tokenizer, options);
  for (const auto& file : files)
    if (data_kind(file) != DataKind::rows)
      io::fail(
          data_name(file),
          "is text, allowed: .jsonl, .json (fields input and target), .safetensors (input_ids and labels), for the "
          "model answers a source text");
  require_tokenizer(files, tokenizer);
  return load_row_pairs(files, *tokenizer, options);
}

Chunks load_chunks(const DataFiles& files, const Tokenizer* tokenizer, const ChunkOptions& options,
                   const std::filesystem::path& folder) {
  check_options(data_name(files), options);
  if (data_kind(files) == DataKind::tensors) {
    const io::SafetensorsFile tensors(files[0]);
    Chunks chunks = load_rows(files[0], tensors, "input_ids", tokenizer, options);
    refuse_unread(files[0], tensors, chunks, options.skip, /*answers=*/false);
    return chunks;
  }
  require_tokenizer(files, tokenizer);
  return load_documents(files, *tokenizer, options, folder);
}

}  // namespace fp8::text
