// SPDX-License-Identifier: Apache-2.0
// The numbers of `fp8 evaluate` in words, for its table and for pages. What they are made of is its --json:
//
//   {"model", "reference"?, "perplexity"?, "reference_perplexity"?, "perplexity_change"?, "kl"?, "top1_agreement"?,
//    "cosine"?, "tokens", "chunks", "seq_len", "stride"?, "data": [names], "dtype", ...,
//    "intervals": {KEY: [low, high] | null, ..., "level": 0.95}}
#pragma once
#include <array>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

/// A number of an evaluation: its key, its name to people and above a column, and how it is written.
struct QualityNumber {
  const char *key, *label, *column, *format, *in_interval;
  double times = 1;

  /// "2.655440", "+0.087 %".
  std::string text(const io::Json& numbers) const;
  /// "2.5958 to 2.7164"; empty of a single chunk.
  std::string interval(const io::Json& numbers) const;
};
inline constexpr std::array<QualityNumber, 6> kQualityNumbers = {{
    {"perplexity", "perplexity", "perplexity", "{:.6f}", "{:.4f}"},
    {"reference_perplexity", "reference perplexity", "reference", "{:.6f}", "{:.4f}"},
    {"perplexity_change", "perplexity change", "change", "{:+.3f} %", "{:+.3f} %", 100},
    {"kl", "KL to the reference", "KL", "{:.4e}", "{:.2e}"},
    {"top1_agreement", "top-1 agreement", "top-1", "{:.2f} %", "{:.2f} %", 100},
    {"cosine", "cosine to the reference", "cosine", "{:.6f}", "{:.6f}"},
}};
const QualityNumber& quality_number(const std::string& key);

/// "kjv_heldout_16k.txt", "a.txt and 2 more".
std::string data_text(const io::Json& numbers);
/// "32 of 512 tokens", of windows "61 of 512 tokens, 256 apart", of answers their number.
std::string chunks_text(const io::Json& numbers);

}  // namespace fp8::commands
