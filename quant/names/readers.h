// SPDX-License-Identifier: Apache-2.0
// The programs whose rules on fp8 checkpoints are known here, the release of each whose source these rules were read
// from, and the models that it has a class of. Data alone. No torch here.
#pragma once

#include "fp8/quant/names/model_names.h"

namespace fp8::quant {

enum class CheckpointReader : std::uint8_t { transformers, vllm, neural_compressor };
FP8_ENUM_NAMES(CheckpointReader, {transformers, "transformers"}, {vllm, "vLLM"},
               {neural_compressor, "neural-compressor"});
using fp8::name_of;

/// How a reader has a weight: as a Linear of its own, or joined with those of the other experts of its layer.
enum class WeightPlace : std::uint8_t { linear, joined };

/// The release whose source the rules were read from: "5.23.0".
std::string_view version_of(CheckpointReader reader);
/// "transformers 5.23.0".
std::string rules_of(CheckpointReader reader);
/// The same for sentences, without the last number: "transformers 5.23".
std::string release_of(CheckpointReader reader);

/// Why nothing is known of how the reader loads this model: a family without a row, or one that its release has no
/// class of (vLLM may run such a model through transformers' class). Empty: its rules are known.
std::string why_not_known(CheckpointReader reader, const ModelNames& names, const io::Json& config);

/// True for models whose towers take a cache in transformers: a form that describes caches in its config alone
/// (compressed-tensors) then asks for scales of theirs, which no engine has.
bool has_cached_towers(const ModelNames& names);
/// True for models whose weights transformers wants in float32 here and there, which form "fp8" does not tell it:
/// products of these with bfloat16 fail.
bool mixes_floats(const ModelNames& names);
/// True for models whose config in transformers counts no key-value heads, which compressed-tensors asks for.
bool lacks_kv_heads(const ModelNames& names, const io::Json& config);

}  // namespace fp8::quant
