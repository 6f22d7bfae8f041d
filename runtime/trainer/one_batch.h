// SPDX-License-Identifier: Apache-2.0
// A batch and its loss, checked: shared by training, validation and test. Not for users.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "fp8/runtime/trainer/batch_source.h"

namespace fp8::trainer {

inline std::int64_t weight_of(const Batch& batch) { return batch.tokens > 0 ? batch.tokens : batch.samples; }

/// The next batch; the source promised it.
inline Batch take(BatchSource& source, std::int64_t index, std::int64_t count, const char* what) {
  auto batch = source.next();
  if (!batch)
    throw std::invalid_argument("[trainer] " + std::string(what) + " data: ended after " + std::to_string(index) +
                                " of " + std::to_string(count) + " batches");
  if (batch->samples < 1)
    throw std::invalid_argument("[trainer] " + std::string(what) + " data: batch " + std::to_string(index) +
                                " is empty, allowed: 1 sample or more");
  return std::move(*batch);
}

inline at::Tensor check_loss(at::Tensor loss, const char* step) {
  if (!loss.defined() || loss.numel() != 1 || !at::isFloatingType(loss.scalar_type()))
    throw std::invalid_argument("[trainer] " + std::string(step) + ": found " +
                                (loss.defined() ? "a tensor of " + std::to_string(loss.numel()) + " elements of " +
                                                      c10::toString(loss.scalar_type())
                                                : "no tensor") +
                                ", allowed: a loss of one floating point element");
  return loss;
}

}  // namespace fp8::trainer
