// SPDX-License-Identifier: Apache-2.0
// README.md of a written checkpoint, the card that hubs show. No torch here.
//
//   ---
//   license: apache-2.0                 whatever the source's card says stays, but for what is only the source's
//   base_model: Qwen/Qwen3-0.6B         (model-index, base_model_relation)
//   base_model_relation: quantized
//   quantized_by: fp8 0.1.0
//   library_name: transformers
//   tags: [...the source's, fp8, compressed-tensors]
//   ---
//   <!-- fp8: this checkpoint --> ... <!-- fp8: end -->     how it was made and what that costs
//   the source's text
//
// A card that has such a section gets another in its place. Nothing in it differs between runs, ranks or folders of the
// output: no date, no path, no time.
#pragma once

#include "fp8/quant/forms/folder.h"

namespace fp8::quant {

inline constexpr char kCardName[] = "README.md";

/// What is said of a checkpoint.
struct CardFacts {
  std::string source;        ///< the name of what it was made of: model_name()
  std::string form, scheme;  ///< form empty: in high precision, and `scheme` its dtype
  std::string how;           ///< "quantized", "converted from compressed-tensors"
  std::size_t modules = 0;   ///< in fp8; of a conversion to high precision: that were
  std::vector<SkippedModule> kept = {};
  std::vector<std::pair<std::string, std::string>> more = {};  ///< further rows: "key-value cache", "fp8, ..."
  std::vector<std::string> costs = {};                         ///< what was measured, sentences; none: nothing was
  std::uint64_t source_bytes = 0, weights_bytes = 0;
};

/// The card; source_card: the source's, may be empty.
std::string model_card(std::string_view source_card, const CardFacts& facts);

/// Puts a section into the source's card, which has been carried through. warnings: where it is too large for that.
void write_card(OutputFolder& folder, const CardFacts& facts, std::vector<std::string>& warnings);

}  // namespace fp8::quant
