// SPDX-License-Identifier: Apache-2.0
// Prompts continued token by token with key/value caches, greedily or by sampling at a temperature. Each prompt is read
// by itself, part after part; then all are continued together, a token of each a forward, where the family can
// (CausalLM::join()). Models that answer a source text (Task::answer) have the prompt for it and begin their answers as
// their configs say.
#pragma once

#include <random>

#include "fp8/tools/models/base/causal_lm.h"
#include "fp8/tools/text/tokenizer.h"

namespace fp8::commands {

struct Continuation {
  std::vector<std::int64_t> prompt;  ///< ids, at least one and at most the model's context
  std::vector<std::int64_t> ids;     ///< generated ids
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

// The next token from a row of logits, read where they lie and in their dtype:
//
//   greedy     the first of the largest, found in the pass that looks for NaN and infinities
//   sampling   w[i] = exp((logits[i] - largest) / temperature), f64;  the first i with w[0] + .. + w[i] > u * sum of w
//
// u is uniform in [0, 1), of 53 of the generator's bits; sums run in ascending order: a seed gives the same text
// whatever the number of threads.

/// n >= 1 logits in a row.
struct LogitsRow {
  const void* data = nullptr;
  kernels::FloatType type = kernels::FloatType::F32;
  std::int64_t n = 0;
};

struct LargestLogit {
  std::int64_t index = 0;
  float value = 0;
};

/// Nothing where one is NaN or infinite.
std::optional<LargestLogit> largest_of(const LogitsRow& logits);

/// Draws at a temperature > 0. Rows of one length share the memory for w.
class TokenDraw {
 public:
  explicit TokenDraw(double temperature) : temperature_(temperature) {}
  /// largest: what largest_of() found.
  std::int64_t draw(const LogitsRow& logits, float largest, std::mt19937_64& generator);

 private:
  double temperature_;
  at::Tensor weights_;  ///< w, f64 [n]
};

// Token ids in, whole pieces of UTF-8 out.

/// Decoding a token alone loses the space before it and breaks characters of several tokens, so each piece is what
/// decoding a window of ids gives beyond decoding the same window without the new ids; a piece that ends in U+FFFD
/// waits for the rest of its bytes.
class TextStream {
 public:
  /// prompt: the ids before the first appended one.
  TextStream(const text::Tokenizer& tokenizer, const std::vector<std::int64_t>& prompt);
  /// The text that became whole with this id; may be empty.
  std::string append(std::int64_t id);
  /// Returns the rest of the text, whose last character may be incomplete.
  std::string finish();

 private:
  std::string take(bool final);

  const text::Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;  ///< the window: `known_` ids whose text was given out, then the others
  std::size_t known_;
};

}  // namespace fp8::commands
