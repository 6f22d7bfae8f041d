// SPDX-License-Identifier: Apache-2.0
// Parts that the readers and writers of all checkpoint forms use: messages, checked scale tensors, spellings of
// key-value scales. Used by forms/*.cpp alone. No torch here.
#pragma once

#include "fp8/quant/forms/form.h"

namespace fp8::quant::form_parts {

/// A value in one line of a message.
std::string in_message(const io::Json& value);
/// The string under a key; `fallback` if it is absent or null. Throws "WHERE: key 'k': expected a string, found ...".
std::string string_of(const io::Json& object, const char* key, const std::string& where,
                      const std::string& fallback = "");
/// A list of strings, empty if absent or null.
std::vector<std::string> strings_of(const io::Json& object, const char* key, const std::string& where);

/// "option assume = fp8", "--assume fp8": what takes codes that no config explains for those of a form, for messages.
std::string assume_option(const std::string& form);

/// The largest side of a block: no weight is larger.
inline constexpr std::int64_t kMaxBlock = std::int64_t{1} << 30;
/// One side of a block; 0 for anything that is not a whole number from 1 to kMaxBlock.
std::int64_t block_side(const io::Json& value);

/// "/folder/config.json: quantization_config", for messages.
std::string config_place(const io::Checkpoint& checkpoint);
/// "/folder: tensor", for messages.
std::string place(const io::Checkpoint& checkpoint, const std::string& tensor);

/// fp8.json, null if there is none. Throws io::Error if it is no object.
io::Json read_sidecar_file(const io::Checkpoint& checkpoint);
/// The key of a sidecar in memory, never of a file, that says true: weights in U8 and I8 with scales beside them are
/// E4M3 codes (assumed_form.h).
inline constexpr char kBytesAreCodes[] = "bytes are codes";
/// True if a sidecar says more than that: it was read from a file.
bool is_told(const io::Json& sidecar);
/// Dialect, convention and hp_dtype of a sidecar, ocp and our own without one.
Scheme base_scheme(const io::Checkpoint& checkpoint, const io::Json& sidecar);

/// The tensors that look like scales of `weight` ("X.weight", "X_blocks"), in the spelling of any tool.
std::vector<std::string> scales_beside(const io::Checkpoint& checkpoint, const std::string& weight);
/// True for a tensor of bytes (U8, I8) with such scales: codes or whole numbers, its dtype doesn't tell.
bool is_byte_weight(const io::Checkpoint& checkpoint, const io::TensorInfo& info);
/// True for one of wider whole numbers (I16 to U32) with such scales: several weights packed into each.
bool is_packed_weight(const io::Checkpoint& checkpoint, const io::TensorInfo& info);

/// The modules X whose X.weight is fp8, in file order; `packed`: tensors of bytes that are known to be none. Throws for
/// E5M2 unless allowed, AMD's FNUZ types, weights that are not two-dimensional, and byte weights unless the sidecar
/// says that they are codes.
std::vector<std::string> fp8_modules(const io::Checkpoint& checkpoint, const char* form, const io::Json& sidecar,
                                     bool e5m2_allowed = false, const std::vector<std::string>& packed = {});
/// The tensors X.ending that stand beside an X.weight in high precision, and the marks that tools for diffusion models
/// leave: "scaled_fp8" of at most two codes, X.comfy_quant.
std::vector<std::string> stray_scales(const io::Checkpoint& checkpoint, std::initializer_list<const char*> endings);
/// True for the first of these marks.
bool is_fp8_mark(const io::TensorInfo& info);

/// The scale of an upright weight, by any tool's name for it; empty if there is none.
std::string upright_scale(const io::Checkpoint& checkpoint, const std::string& module);
/// The endings of static activation scales, all of which multiply out of fp8.
inline constexpr const char* kInputScales[] = {".input_scale", ".activation_scale", ".scale_input"};

/// A weight's own tensor [N, K] and its scale; spec.scheme = `scheme`. Where an upright weight has no tensor `scale`,
/// upright_scale() counts; ".scale" of blocks alone.
StoredWeight stored_weight(const io::Checkpoint& checkpoint, const std::string& module, const Scheme& scheme,
                           const std::string& scale, bool transposed = false);

/// The scale tensor is there, F32, BF16 or F16 (or E8M0, of blocks in U8 too), and of one of these shapes. Throws
/// naming what was found and what is allowed.
void check_scale(const io::Checkpoint& checkpoint, const StoredWeight& weight,
                 const std::vector<std::vector<std::int64_t>>& shapes, bool e8m0_allowed = false);

/// The values of a scale tensor, whatever dtype it has; bytes_are_exponents: U8 too, as in E8M0. Throws for values that
/// are not finite and > 0.
std::vector<float> read_scales(const io::Checkpoint& checkpoint, const std::string& tensor,
                               bool bytes_are_exponents = false);
/// One value, of shape [], [1] or [1, 1].
float read_scale(const io::Checkpoint& checkpoint, const std::string& tensor);
// The spelling of most forms: X.weight and X.weight_scale (of MXFP8 exponents in U8), with static activations
// X.input_scale.
std::vector<io::SafetensorsWriter::Entry> plain_entries(const WeightSpec& weight,
                                                        const std::vector<std::int64_t>& scale_shape,
                                                        const std::vector<std::int64_t>& input_shape = {});
StoredWeight read_plain_weight(const CheckpointForm& form, const io::Checkpoint& checkpoint, const std::string& module,
                               const Scheme& scheme);

/// Fills in the static input scale and notes its tensor: `preferred`, else what kInputScales call it.
void read_input_scale(const io::Checkpoint& checkpoint, StoredWeight& weight, const std::string& preferred);

/// Powers of two as E8M0 bytes: 2^(byte - 127). Throws std::invalid_argument naming `tensor` for a value that is none.
std::vector<std::uint8_t> e8m0_bytes(const std::vector<float>& values, const std::string& tensor);
void write_f32(TensorSink& sink, const std::string& tensor, const std::vector<float>& values);
/// The same as such bytes.
void write_e8m0(TensorSink& sink, const std::string& tensor, const std::vector<float>& values);

/// The names of keys' and values' scales below an attention module: {"k_scale", "v_scale"}.
struct KvNames {
  std::string k, v;
};
/// All that the field has; "k_scale" fits "k_proj.k_scale" too, and comes last.
const std::vector<KvNames>& kv_spellings();
/// Finds the scales of key-value caches under any of these spellings; `shared` (may be empty): one for both. Throws for
/// one of two missing, shapes other than [], [1], [1, 1], [H], [H, 1, 1], two spellings at once. promised: that the
/// config says that caches have scales; without, they are left of something and not read, which is a warning. key:
/// where the config promises them, for the warning if no tensor holds any; empty: none is given.
void read_kv(const io::Checkpoint& checkpoint, const std::vector<KvNames>& spellings, const std::string& shared,
             bool promised, StoredCheckpoint& out, const std::string& key = "");
/// True for the name of a scale of keys, values or both, in the spelling of any tool.
bool is_cache_scale(const std::string& tensor);

/// True if the config's kv_cache_scheme says that caches have scales in the file: there, and not dynamic.
bool promises_kv(const io::Json& config);

/// vLLM puts q, k and v (gate and up) into one matrix: each but the last must be whole blocks high. Empty, or why this
/// one is not.
std::string fused_rows_problem(const WeightSpec& weight);

/// vLLM has kernels on CUDA for one size of blocks: for any other it takes Marlin's, which asserts another layout
/// (model_executor/kernels/linear). Empty, or why the scheme's are not of that size.
std::string block_problem(const Scheme& scheme);

/// The problem of one scale each: empty, or why per head scales have no place in `form`.
std::string one_each(const KvScales& kv, const char* form);

}  // namespace fp8::quant::form_parts
