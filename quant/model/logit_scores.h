// SPDX-License-Identifier: Apache-2.0
// How well logits predict a text and how far they are from other logits, per chunk so that sums do not depend on the
// batch.
//
//   nll   = sum over positions 1..L-1 of -log softmax(logits[position - 1])[ids[position]]     f32 log-softmax, f64 sum
//   kl    = sum over all L positions of KL(softmax(reference) || softmax(logits))              f64, nats
//   agree = positions where both have the same largest logit
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace fp8::quant {

struct ChunkScore {
  double nll = 0, kl = 0;
  std::int64_t agree = 0;
};

/// logits [B, L, V] of any float dtype, ids [B, L] (or L + 1: the last row predicts one too) int64 in [0, V) or
/// undefined (then nll is 0), reference [B, L, V] or undefined (then kl and agree are 0); all on the CPU. Returns B
/// scores; NaN or infinite logits give a NaN or infinite nll.
std::vector<ChunkScore> score_chunks(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference);

/// Their sums as an operator: nll, that of the reference, kl, agree. Throws c10::Error for other sizes and devices.
std::vector<double> score_logits(const at::Tensor& logits, const at::Tensor& ids,
                                 const std::optional<at::Tensor>& reference);

}  // namespace fp8::quant
