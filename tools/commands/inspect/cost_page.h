// SPDX-License-Identifier: Apache-2.0
// One page on what fp8 costs and what it saves, of `fp8 quantize --html` and `fp8 evaluate --html`: the report page
// (inspect.h) of the weights' damage, below quality with its intervals, sizes, modules by precision, the worst modules
// and how all of it was made. Names stand on it without the folders they lie in. No torch here.
#pragma once

#include "fp8/quant/damage/checkpoint_damage.h"

namespace fp8::commands {

// The numbers of `fp8 evaluate` in words, for its table and for pages. What they are made of is its --json:
//
//   {"model", "reference"?, "perplexity"?, "reference_perplexity"?, "perplexity_change"?, "kl"?, "top1_agreement"?,
//    "cosine"?, "tokens", "chunks", "seq_len", "stride"?, "data": [names], "dtype", ...,
//    "intervals": {KEY: [low, high] | null, ..., "level": 0.95}}

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

/// Modules whose weights are stored alike.
struct PrecisionShare {
  std::string precision;
  std::size_t modules = 0;
  std::uint64_t bytes = 0;
};

/// One checkpoint, as far as it was looked at.
struct Cost {
  std::string name;
  std::string form;                        ///< empty: in high precision
  std::uint64_t bytes = 0, of_bytes = 0;   ///< of its tensors, and of those it is compared with; 0: with none
  std::vector<PrecisionShare> precisions;  ///< the largest first; modules 0: tensors that are no module's weight
  quant::CheckpointDamage damage;          ///< sorted by damage
  std::string no_sqnr;                     ///< why there is no comparison; empty: there is one, or none was asked for
  io::Json numbers;                        ///< of evaluate --json; null: not evaluated
  std::vector<std::pair<std::string, std::string>> more;  ///< further facts: name and text
};

struct CostPage {
  std::string command;    ///< as it was given: shown_command()
  std::string reference;  ///< name of what all are compared with; empty: nothing
  std::vector<Cost> costs = {};
};

/// Looks at the checkpoint's files, beside a reference (empty: none). Throws io::Error and Interrupted.
Cost cost_of(const std::filesystem::path& model, const std::filesystem::path& reference);

/// The whole page; date: as it shall stand there.
std::string cost_page(const CostPage& page, const std::string& date);
/// Writes it, with the day's date. Throws io::Error.
void write_cost_page(const std::filesystem::path& file, const CostPage& page);

}  // namespace fp8::commands
