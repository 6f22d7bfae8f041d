// SPDX-License-Identifier: Apache-2.0
// What a model sees of --data, in forwards whose rows are all as long, so that no padding is ever seen or measured:
//
//   language models, encoders    chunks of one length                         logits of all columns
//   models that answer a source  [source | start, answer but its last token]  logits of the answer's columns
//
// The answer is shifted as in training: column i predicts its token i.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/options/input_options.h"
#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/text/dataset.h"

namespace fp8::commands {

/// Samples of one forward.
struct SampleBatch {
  at::Tensor ids;           ///< [B, columns] int64 on the CPU
  std::int64_t source = 0;  ///< columns in front that have no logits: CausalLM::forward()
  at::Tensor tokens;        ///< [B, 1 + predicted]: row i of the logits predicts tokens[i + 1]
};

class Samples {
 public:
  explicit Samples(text::Chunks chunks);
  /// start: what stands in front of an answer.
  Samples(std::vector<text::Pair> pairs, std::int64_t start);

  std::int64_t count() const;
  /// Columns of samples in front of `sample`; column(count()): of all.
  std::int64_t column(std::int64_t sample) const { return columns_[static_cast<std::size_t>(sample)]; }
  std::int64_t longest() const;  ///< columns of one sample, at most
  /// Rows of logits of all, tokens that are predicted, and tokens of the sources.
  std::int64_t rows() const { return rows_; }
  std::int64_t predicted() const { return predicted_; }
  std::int64_t sources() const { return column(count()) - rows_; }
  /// [samples, a checksum of their ids]: the same of the same samples, wherever their text lies.
  io::Json fingerprint() const;

  /// Samples from `first` on that may share a forward: `most` or fewer.
  std::int64_t together(std::int64_t first, std::int64_t most) const;
  /// Samples [first, first + count) alone.
  Samples part(std::int64_t first, std::int64_t count) const;
  /// Samples [first, first + count), which may.
  SampleBatch batch(std::int64_t first, std::int64_t count) const;

 private:
  text::Chunks chunks_;
  std::vector<text::Pair> pairs_;
  std::int64_t start_ = 0, rows_ = 0, predicted_ = 0;
  std::vector<std::int64_t> columns_ = {0};
};

/// Of --data, checked against the model in `folder`: at most max_position_embeddings tokens each, ids within the
/// vocabulary. Throws io::Error, also for a file of another kind than the model's task takes.
Samples load_samples(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape);

/// model.forward() of the batch on `device`, where the logits stay.
at::Tensor logits_of(models::CausalLM& model, const SampleBatch& batch, at::Device device);

}  // namespace fp8::commands
