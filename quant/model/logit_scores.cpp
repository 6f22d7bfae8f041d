// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/logit_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>

namespace fp8::quant {
namespace {

constexpr std::int64_t kSliceElements = 1 << 20;  // rows are scored in slices, so that f64 copies stay small

/// Rows [begin, end) of one chunk. logits and reference [L, V], ids [L].
void score_rows(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference, std::int64_t begin,
                std::int64_t end, ChunkScore& score) {
  const auto rows = logits.narrow(0, begin, end - begin);
  // The last row may predict a token outside the chunk.
  const auto predicting = ids.defined() ? std::min(end, ids.size(0) - 1) - begin : 0;
  if (predicting > 0) {
    const auto log_p = at::log_softmax(rows.narrow(0, 0, predicting).to(at::kFloat), -1);
    const auto targets = ids.narrow(0, begin + 1, predicting).unsqueeze(1);
    score.nll -= log_p.gather(1, targets).sum(at::kDouble).item<double>();
  }
  if (!reference.defined()) return;
  const auto other = reference.narrow(0, begin, end - begin);
  const auto p = at::log_softmax(other.to(at::kDouble), -1), q = at::log_softmax(rows.to(at::kDouble), -1);
  score.kl += (p.exp() * (p - q)).sum().item<double>();
  score.agree += rows.argmax(-1).eq(other.argmax(-1)).sum().item<std::int64_t>();
}

}  // namespace

std::vector<ChunkScore> score_chunks(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference) {
  std::vector<ChunkScore> scores(static_cast<std::size_t>(logits.size(0)));
  const auto length = logits.size(1);
  const auto step = std::max<std::int64_t>(1, kSliceElements / logits.size(2));
  for (std::int64_t b = 0; b < logits.size(0); ++b)
    for (std::int64_t begin = 0; begin < length; begin += step)
      score_rows(logits[b], ids.defined() ? ids[b] : at::Tensor(), reference.defined() ? reference[b] : at::Tensor(),
                 begin, std::min(length, begin + step), scores[static_cast<std::size_t>(b)]);
  return scores;
}

std::vector<double> score_logits(const at::Tensor& logits, const at::Tensor& ids,
                                 const std::optional<at::Tensor>& reference) {
  const at::Tensor other = reference.value_or(at::Tensor());
  TORCH_CHECK(logits.dim() == 3 && logits.is_cpu() && logits.numel() > 0,
              "[fp8::score_logits] logits: expected [B, L, V] ", "on cpu, found ", logits.sizes(), " on ",
              logits.device());
  TORCH_CHECK(ids.sizes() == logits.sizes().slice(0, 2) && ids.is_cpu() && ids.scalar_type() == at::kLong,
              "[fp8::score_logits] ids: expected Long [", logits.size(0), ", ", logits.size(1), "] on cpu, found ",
              ids.scalar_type(), " ", ids.sizes(), " on ", ids.device());
  TORCH_CHECK(!other.defined() || (other.sizes() == logits.sizes() && other.is_cpu()),
              "[fp8::score_logits] reference: expected ", logits.sizes(), " on cpu, found ", other.sizes());
  std::vector<double> sums(4);
  for (const ChunkScore& score : score_chunks(logits, ids, other)) {
    sums[0] += score.nll;
    sums[2] += score.kl;
    sums[3] += static_cast<double>(score.agree);
  }
  if (other.defined())
    for (const ChunkScore& score : score_chunks(other, ids, {})) sums[1] += score.nll;
  return sums;
}

}  // namespace fp8::quant
