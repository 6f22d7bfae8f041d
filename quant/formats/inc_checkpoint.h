// SPDX-License-Identifier: Apache-2.0
// The checkpoint form of Intel Neural Compressor (INC), format "huggingface" of its save() and load(). No torch here.
//
//   X.weight                  F8_E4M3 | F8_E5M2 [K, N]: transposed, [in, out]
//   X.scale_weight            [] | [N]      multiplies out of fp8          in quantize-dequantize mode: X.dequant_weights.scale
//   X.scale_input             []            multiplies out of fp8                                       X.quant_input.scale
//   X.quant_input.scale_inv   []            multiplies into fp8                                         X.quant_input.scale_inv
//   P.k_cache.quant_input.scale_inv, P.k_cache.dequant_output.scale, and v_cache       key-value caches, [] each
//   config.json               quantization_config {"mode": "LOAD", "fp8_config", "hp_dtype", "scale_method", lists, "world_size", ...}
//   quantization_config.json  the same
//
// Quantize-dequantize mode ("use_qdq") is the only one that INC runs on a CPU; per channel it also keeps zero points (0). INC's words are the
// other way round from ours: its "scale" is our scale_inv. Scales are stored in hp_dtype (bf16) where INC's rules made them, else in F32.
// A checkpoint of several ranks has X..._{rank}_{world} in place of the tensors that ranks share out (inc_ranks.h).
#pragma once
#include <string>
#include <vector>

#include "fp8/quant/formats/checkpoint_folder.h"
#include "fp8/quant/formats/compressed_tensors.h"

namespace fp8::quant::inc {

using StoredModule = compressed_tensors::StoredModule;

/// How the scales of one checkpoint are spelt and stored.
struct Layout {
  bool qdq = false;
  io::DType scale_dtype = io::DType::F32;
};

/// Scales that INC's rules made in hp_dtype are stored in it; all others in F32.
Layout layout_of(const Scheme& scheme, bool qdq);

/// Throws io::Error if INC has no such form: weights only.
void check_scheme(const Scheme& scheme, const std::string& module);

/// The tensors of a module with a weight [n, k]: the weight itself, then its scales.
std::vector<io::SafetensorsWriter::Entry> entries(const std::string& module, std::int64_t n, std::int64_t k,
                                                  const Scheme& scheme, const Layout& layout);

/// Rows [first_row, first_row + rows) of the codes [n, k] of X.weight, into the transposed tensor.
void write_rows(ShardedWriter& writer, const std::string& module, const std::uint8_t* codes, std::int64_t rows,
                std::int64_t k, std::int64_t first_row, std::int64_t n);

/// All but the weight.
void write_scales(ShardedWriter& writer, const std::string& module, const std::vector<float>& weight_scale_inv,
                  const Scheme& scheme, const Layout& layout);

/// Entries and values of a key-value cache module ("model.layers.0.self_attn.k_cache").
std::vector<io::SafetensorsWriter::Entry> cache_entries(const std::string& module, const Layout& layout);
void write_cache(ShardedWriter& writer, const std::string& module, float scale_inv, const Layout& layout);

/// quantization_config for modules that all have `scheme`. kept: modules that stay in high precision, though a Linear. scale_method: INC's
/// spelling, or anything else: then the spelling that has the same granularity.
io::Json make_config(const Scheme& scheme, const std::string& scale_method, const std::vector<std::string>& quantized,
                     const std::vector<std::string>& kept, const Layout& layout);

/// True for a quantization_config of this form.
bool is_config(const io::Json& quantization_config);

/// What a checkpoint of one rank holds, as compressed_tensors::read_modules(). Throws io::Error naming file, tensor or key; for a checkpoint of
/// several ranks, saying how to unify it.
std::vector<StoredModule> read_modules(const io::Checkpoint& checkpoint, const io::Json& config,
                                       const io::Json& sidecar);

/// The codes of a module upright, [n, k]: codes has room for n * k. Throws io::Error if the tensor is not [k, n].
void read_codes(const io::Checkpoint& checkpoint, const StoredModule& module, std::int64_t n, std::int64_t k,
                std::uint8_t* codes);

/// The tensors that belong to a module in the checkpoint: its weight and all of its scales.
std::vector<std::string> tensors_of(const io::Checkpoint& checkpoint, const std::string& module);

/// A key-value cache's stored scale_inv.
struct StoredCache {
  std::string name;  ///< "model.layers.0.self_attn.k_cache"
  float scale_inv = 1.0f;
};
std::vector<StoredCache> read_caches(const io::Checkpoint& checkpoint);

}  // namespace fp8::quant::inc
