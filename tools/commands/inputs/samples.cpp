// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/samples.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/inputs/model_input.h"

namespace fp8::commands {
namespace {

std::int64_t length_of(const std::vector<std::int64_t>& ids) { return static_cast<std::int64_t>(ids.size()); }

/// Of one part of a pair: "input", "target".
void check_part(const std::vector<std::int64_t>& ids, const char* part, std::size_t pair, const std::string& file,
                const models::ModelShape& shape) {
  if (length_of(ids) > shape.context)
    throw io::Error(fmt::format("{}: pair {}: {} of {} tokens, allowed: up to max_position_embeddings {}", file,
                                pair + 1, part, ids.size(), shape.context));
  for (const auto id : ids)
    if (id < 0 || id >= shape.vocab)
      throw io::Error(fmt::format("{}: pair {}: found token id {} in its {}, allowed: 0 to {} (vocab_size)", file,
                                  pair + 1, id, part, shape.vocab - 1));
}

Samples load_answers(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape) {
  std::optional<text::Tokenizer> tokenizer;
  if (text::data_kind(options.data) != text::DataKind::tensors) tokenizer.emplace(folder);
  auto pairs = text::load_pairs(
      options.data, tokenizer ? &*tokenizer : nullptr,
      {.seq_len = options.seq_len, .samples = options.samples, .skip = options.skip, .ask = check_interrupted});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    check_part(pairs[i].source, "input", i, text::data_name(options.data), shape);
    check_part(pairs[i].answer, "target", i, text::data_name(options.data), shape);
  }
  return {std::move(pairs), start_of_answers(folder, shape)};
}

}  // namespace

Samples::Samples(text::Chunks chunks) : chunks_(std::move(chunks)) {
  for (std::int64_t i = 0; i < chunks_.count; ++i) columns_.push_back(columns_.back() + chunks_.length);
  rows_ = columns_.back();
  predicted_ = chunks_.count * (chunks_.length - 1);
}

Samples::Samples(std::vector<text::Pair> pairs, std::int64_t start) : pairs_(std::move(pairs)), start_(start) {
  for (const auto& pair : pairs_) {
    columns_.push_back(columns_.back() + length_of(pair.source) + length_of(pair.answer));
    rows_ += length_of(pair.answer);
  }
  predicted_ = rows_;
}

std::int64_t Samples::count() const { return length_of(columns_) - 1; }

std::int64_t Samples::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, column(i + 1) - column(i));
  return most;
}

io::Json Samples::fingerprint() const {
  io::Checksum ids;
  for (std::int64_t i = 0; i < count(); ++i) {
    const auto sample = batch(i, 1);
    for (const at::Tensor& part : {sample.ids, sample.tokens}) ids.update(part.const_data_ptr(), part.nbytes());
    ids.update(&sample.source, sizeof sample.source);
  }
  return {count(), io::checksum_text(ids.value())};
}

std::int64_t Samples::together(std::int64_t first, std::int64_t most) const {
  const auto end = std::min(first + most, count());
  if (pairs_.empty()) return end - first;
  const auto& one = pairs_[static_cast<std::size_t>(first)];
  std::int64_t next = first + 1;
  const auto fits = [&](const text::Pair& other) {
    return other.source.size() == one.source.size() && other.answer.size() == one.answer.size();
  };
  while (next < end && fits(pairs_[static_cast<std::size_t>(next)])) ++next;
  return next - first;
}

Samples Samples::part(std::int64_t first, std::int64_t count) const {
  if (!pairs_.empty()) return {std::vector<text::Pair>(pairs_.begin() + first, pairs_.begin() + first + count), start_};
  const auto begin = chunks_.ids.begin() + first * chunks_.length, end = begin + count * chunks_.length;
  return Samples(text::Chunks{{begin, end}, count, chunks_.length});
}

SampleBatch Samples::batch(std::int64_t first, std::int64_t count) const {
  if (pairs_.empty()) {
    const auto begin = chunks_.ids.begin() + first * chunks_.length;
    const std::vector<std::int64_t> part(begin, begin + count * chunks_.length);
    const auto ids = at::tensor(part, at::kLong).view({count, chunks_.length});
    return {ids, 0, ids};
  }
  std::vector<std::int64_t> ids, tokens;
  for (auto i = first; i < first + count; ++i) {
    const auto& [source, answer] = pairs_[static_cast<std::size_t>(i)];
    ids.insert(ids.end(), source.begin(), source.end());
    ids.push_back(start_);
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
    tokens.push_back(start_);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
  }
  return {at::tensor(ids, at::kLong).view({count, -1}), length_of(pairs_[static_cast<std::size_t>(first)].source),
          at::tensor(tokens, at::kLong).view({count, -1})};
}

Samples load_samples(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape) {
  if (shape.task == models::Task::answer) return load_answers(options, folder, shape);
  return Samples(load_chunks_for(options, folder, shape));
}

at::Tensor logits_of(models::CausalLM& model, const SampleBatch& batch, at::Device device) {
  return model.forward(batch.ids.to(device), nullptr, models::CausalLM::Logits::all, batch.source);
}

}  // namespace fp8::commands
