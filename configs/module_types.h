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

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/base/registry.h"

namespace fp8::configs {

using fp8::name_of;

/// The kinds built in. Numbers above are given to kinds of one's own (KindRegistration), each once.
enum class ModuleKind : std::uint32_t {
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
FP8_ENUM_NAMES(ModuleKind, {linear, "linear"}, {row_parallel_linear, "row_parallel_linear"},
               {convolution, "convolution"}, {recurrent, "recurrent"}, {embedding, "embedding"}, {matmul, "matmul"},
               {b2b_matmul, "b2b_matmul"}, {softmax, "softmax"}, {fused_sdpa, "fused_sdpa"}, {kv_cache, "kv_cache"},
               {dynamic_moe, "dynamic_moe"}, {no_quantize, "no_quantize"});

/// Of one's own kinds too; "unknown" once they are gone.
const char* name_of(ModuleKind kind);

struct ModuleType {
  std::string_view name;  ///< exact class name: "QKVParallelLinear"
  ModuleKind kind;
  bool dynamic;        ///< scales may be computed at each call (dynamic_quantization)
  bool in_inc = true;  ///< false: INC has no such class, measurements of it are ours
  /// Its module adds its ranks' results by itself. Where row_parallel_linear_allreduce_quantization asks for it,
  /// calibration sees them as those of a row_parallel_linear.
  bool adds_ranks = false;
};

/// The traits of a kind of modules: what calibration sees of them, what they compute, how they are quantized.
struct KindInfo {
  ModuleKind kind = ModuleKind::no_quantize;
  int inputs = 0, outputs = 0;
  bool weight = false;
  bool outputs_always = false;   ///< measured even when measure_exclude leaves outputs out
  bool reduces = false;          ///< outputs are y of this process, and y after the all-reduce
  bool linear = false;           ///< y = x . w^T
  bool stacks_experts = false;   ///< a weight [E, N, K] is one of E experts, each with a result of its own
  bool convolution = false;      ///< channels are the dimension after the batch; a weight is [C_out, ...]
  bool several_weights = false;  ///< "weight_*", each a module of its own
  bool lookup = false;      ///< rows by index: calls are not watched, only the weight is, and nothing is multiplied
  bool product = false;     ///< a . b: the channels of b are its rows
  bool attention = false;   ///< a piece of attention that is computed anew at each call
  bool cache = false;       ///< keeps keys or values: what is read has the scale of what was stored
  bool experts = false;     ///< follows the weights of its experts, and measures each
  bool fake_quant = false;  ///< has a simulation in high precision
  bool quantized = true;    ///< false: known, and left as it is
};

/// A row for each kind that is built in, in their order.
std::span<const KindInfo> module_kinds();
/// nullptr if there is no such kind, or no more.
const KindInfo* find_kind(ModuleKind kind);
/// Throws std::invalid_argument where find_kind() has none.
const KindInfo& info_of(ModuleKind kind);

/// All known classes, registered ones last.
std::vector<ModuleType> module_types();

/// By exact name; nullptr if the class is not known.
const ModuleType* find_module_type(std::string_view class_name);

/// The class is known, and of that kind.
bool is_of_kind(std::string_view class_name, ModuleKind kind);
/// The class is known, and of a kind of which that is true: type_is("KVCache", &KindInfo::cache).
bool type_is(std::string_view class_name, bool KindInfo::*what);
/// The class is known, and its modules add their ranks' results by themselves.
bool adds_ranks(std::string_view class_name);
/// The class is known, and of a kind that is linear.
bool is_linear(std::string_view class_name);

/// A row for each kind of modules, for a folder that treats kinds in different ways.
template <class Row>
using KindTable = io::Registry<Row, ModuleKind>;

/// A kind without a weight.
struct OwnKind {
  std::string name;                  ///< [a-z0-9_]+: stands in descriptions and messages
  std::vector<std::string> classes;  ///< class names, as users write them in allow- and blocklists
  bool dynamic = false;              ///< scales may be computed at each call
  KindInfo info = {};                ///< its `kind` is given to it
};

/// Its row, with the classes as module_types() lists them: their names are views of the kind's.
struct KindRow {
  OwnKind kind;
  std::vector<ModuleType> types = {};
};

/// Your own kind and its classes, known while this object lives; any thread. No row of it may be in use when the object
/// ends. quant::NodeKindRegistration adds the rest of a kind: the tensors that calibration sees, scales, handler.
class KindRegistration {
 public:
  /// Throws std::invalid_argument for a kind that has a weight, no class or no inputs, and for names that can't stand
  /// or are taken.
  explicit KindRegistration(OwnKind kind);

  ModuleKind kind() const { return entry_.row().kind.info.kind; }

 private:
  io::Registry<KindRow>::Entry entry_;
};

}  // namespace fp8::configs
