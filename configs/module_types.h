// SPDX-License-Identifier: Apache-2.0
// The module classes that can be measured and quantized, by the class names that users write in allow- and blocklists:
// Intel Neural Compressor's (INC's) table, and what we add to it. No torch here.
//
//   kind                  inputs           weight  outputs                       outputs measured
//   linear                x                yes     y                             unless excluded
//   row_parallel_linear   x                yes     local y's maximum, reduced y  always
//   convolution           x                yes     y                             unless excluded   (INC: "linear")
//   recurrent             x (or h)         yes     gates                         unless excluded   (not in INC)
//   embedding             indices          yes     rows                          unless excluded
//   matmul                a, b             -       a . b                         unless excluded
//   b2b_matmul            a, b             -       a . b                         always
//   softmax               x                -       P                             always
//   fused_sdpa            q, k, v          -       o, amax of P                  always
//   kv_cache              current          -       the cache as read             unless excluded
//   dynamic_moe           hidden states    -       y, amax of each expert        always
//   no_quantize           passed through
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/base/enum_names.h"

namespace fp8::configs {

using fp8::name_of;

enum class ModuleKind : std::uint8_t {
  linear,
  row_parallel_linear,
  convolution,
  recurrent,
  embedding,
  matmul,
  b2b_matmul,
  softmax,
  fused_sdpa,
  kv_cache,
  dynamic_moe,
  no_quantize
};
constexpr auto names_of(ModuleKind) {
  using enum ModuleKind;
  return std::to_array<EnumName<ModuleKind>>({
      {linear, "linear"},
      {row_parallel_linear, "row_parallel_linear"},
      {convolution, "convolution"},
      {recurrent, "recurrent"},
      {embedding, "embedding"},
      {matmul, "matmul"},
      {b2b_matmul, "b2b_matmul"},
      {softmax, "softmax"},
      {fused_sdpa, "fused_sdpa"},
      {kv_cache, "kv_cache"},
      {dynamic_moe, "dynamic_moe"},
      {no_quantize, "no_quantize"},
  });
}

struct ModuleType {
  std::string_view name;  ///< exact class name: "QKVParallelLinear"
  ModuleKind kind;
  bool dynamic;        ///< scales may be computed at each call (dynamic_quantization)
  bool in_inc = true;  ///< false: INC has no such class, measurements of it are ours
};

/// What calibration sees of a module of a kind, and what it computes.
struct KindInfo {
  ModuleKind kind;
  int inputs, outputs;
  bool weight;
  bool outputs_always = false;  ///< measured even when measure_exclude leaves outputs out
  bool calls = true;            ///< false: calls are not watched, only the weight is
  bool linear = false;          ///< y = x . w^T
  bool product = false;         ///< a . b: the channels of b are its rows
};

/// A row for each kind, in their order.
std::span<const KindInfo> module_kinds();
const KindInfo& info_of(ModuleKind kind);

/// All known classes.
const std::vector<ModuleType>& module_types();

/// By exact name; nullptr if the class is not known.
const ModuleType* find_module_type(std::string_view class_name);

/// The class is known, and of that kind.
bool is_of_kind(std::string_view class_name, ModuleKind kind);
/// The class is known, and of a kind that is linear.
bool is_linear(std::string_view class_name);

}  // namespace fp8::configs
