// SPDX-License-Identifier: Apache-2.0
// Prompts continued token by token with key/value caches, greedily or by sampling at a temperature. Each prompt is read
// by itself, part after part; then all are continued together, a token of each a forward, where the family can
// (CausalLM::join()). Models that answer a source text (Task::answer) have the prompt for it and begin their answers as
// their configs say.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/text/tokenizer.h"

namespace fp8::commands {

struct Continuation {
  std::vector<std::int64_t> prompt;  ///< ids, at least one and at most the model's context
  std::vector<std::int64_t> ids;     ///< what was added
  std::string text;
  const char* stopped = "tokens";  ///< "tokens" (as many as asked), "eos" or "context" (max_position_embeddings)
};

struct ContinuationOptions {
  std::int64_t tokens = 128;  ///< most to add to each
  double temperature = 0;     ///< 0: the most likely token
  std::uint64_t seed = 0;     ///< prompt i draws with seed + i
  at::Device device = at::kCPU;
  std::string model;  ///< the name that errors tell
  /// Tokens of a prompt that a forward sees, where the family reads in parts: what it needs beside weights and cache
  /// does not grow with the prompt, and products are at full speed. Empty: 256, or 512 beside 1 GiB of weights and
  /// more. Dynamic scales of whole tensors are those of a part: with them the numbers depend on it.
  std::optional<std::int64_t> part;
  /// Told before forwards: the numbers of the prompts that the next ones see.
  std::function<void(std::int64_t first, std::int64_t count)> begin;
};

/// Seconds until the first token of each was picked, and of all.
struct ContinuationSeconds {
  double prompts = 0, all = 0;
};

/// A text that became whole, of prompt i.
using Emit = std::function<void(std::size_t i, const std::string& piece)>;

/// Fills `all`. first: the number of the first one, for its seed. Throws io::Error where logits are NaN or infinite,
/// and when the program is interrupted.
ContinuationSeconds continue_prompts(models::CausalLM& model, const text::Tokenizer& tokenizer,
                                     const ContinuationOptions& options, std::size_t first,
                                     std::vector<Continuation>& all, const Emit& emit);

}  // namespace fp8::commands
