// SPDX-License-Identifier: Apache-2.0
// Names tell the modules of a checkpoint apart: one table of model families, and a general rule for what has no
// row. No torch here.
//
// A pattern is a run of whole parts of a dotted name, in which `*` stands for any characters of one part:
//
//   embed_in              the name's last parts                   gpt_neox.embed_in
//   mlp.gate              the same, of two parts                  model.layers.0.mlp.gate, not mlp.gate_proj
//   visual.               whatever stands below such a part       visual.blocks.0.attn.qkv
//   ^lm_head              the whole name, from its start          lm_head, not language_model.lm_head
//   layers.*.router       any one part in between
//
// A cell of the table is a list of patterns, separated by spaces.
#pragma once
#include <map>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

/// The role of a module with a weight in the models that read it.
enum class Role {
  linear,      ///< nn.Linear, [out, in]
  embedding,   ///< rows are looked up: of words, of positions, of buckets
  head,        ///< the last product, into the vocabulary or into labels
  router,      ///< chooses experts
  tower,       ///< part of a vision or audio tower, or of the projector behind it
  transposed,  ///< Conv1D, [in, out]
  cut,         ///< readers cut it, merge it or use it without its module: its scale would be lost
  other,       ///< no product at all: convolutions, norms, tables
};
FP8_ENUM_NAMES(Role, {linear, "Linear"}, {embedding, "embedding"}, {head, "head"}, {router, "router"}, {tower, "tower"},
               {transposed, "Conv1D"}, {cut, "cut on load"}, {other, "other"});
using fp8::name_of;

/// A row of the table. Whatever a cell leaves open, the general rule decides.
struct Family {
  std::string_view model_types;   ///< of config.json, separated by spaces
  std::string_view linears = {};  ///< Linear, though the general rule says otherwise
  /// Modules that readers load in fp8 though they stand outside of the blocks that the config counts (model_stacks.h)
  std::string_view outside = {};
  std::string_view embeddings = {};
  std::string_view heads = {};
  /// HEAD=EMBEDDING: the head that readers build of the embedding (a pattern) where the file has none
  std::string_view tied = {};
  std::string_view routers = {};
  std::string_view towers = {};
  std::string_view transposed = {};
  std::string_view cut = {};  ///< whose scale readers lose
  /// MODULE>PART+PART+...: that readers split or join by rows, with their scales where these fit the parts; "!" before
  /// it: no file of the family may lack it or keep it in high precision, because transformers asks for its scales; "~":
  /// the parts' rows stand by turns.
  std::string_view split = {};
  std::string_view built = {};  ///< Linear modules that readers build of tensors of another name than NAME.weight
  std::string_view others = {};
  /// FIRST+SECOND+...: last parts that engines run as one product, besides those that all families share
  std::string_view fused = {};
  /// FROM>TO: parts of names that readers change on load, in that order; prefixes that come or go are not named
  std::string_view renamed = {};
  bool towers_stay = false;       ///< no reader loads its towers in fp8
  bool stable = false;            ///< readers call every module as the file does
  std::string_view refused = {};  ///< why no reader can have it in fp8
};

/// All rows, and the row of one model_type; null if it has none.
const std::vector<Family>& model_families();
const Family* family_of(std::string_view model_type);
/// The model_types whose classes have a head of their own where config.json says nothing of tying it.
std::string_view untied_types();

/// True if a name matches a pattern, or any of a cell's.
bool matches_pattern(std::string_view pattern, std::string_view name);
bool matches_any(std::string_view patterns, std::string_view name);
/// True if `part` (one part or several) is a run of whole parts of a name: "experts" of "mlp.experts.3.up_proj", not of
/// "mlp.shared_experts.up_proj".
bool has_part(std::string_view name, std::string_view part);

/// How readers split a module's rows.
struct PartsOnLoad {
  std::int64_t count = 0;  ///< of the modules that they split it into; 0: they do not, 1: they join it with others
  bool whole = false;      ///< they can do so in fp8 only
  bool by_turns = false;   ///< each part has every count-th row, so a scale of several rows fits none
};

/// The names that one config.json implies: the row of its model_type, then those of its parts (text_config,
/// vision_config, ...).
class ModelNames {
 public:
  ModelNames() = default;
  explicit ModelNames(const io::Json& config);

  /// config.json's model_type; empty without one.
  const std::string& model_type() const { return model_type_; }
  /// True if the table has a row of it.
  bool known() const { return known_; }
  const std::vector<const Family*>& rows() const { return rows_; }
  /// True if readers are known to call every module as the file does.
  bool stable() const { return known_ && !rows_.empty() && rows_.front()->stable; }
  /// True if a config of this type that says nothing of it means a head of its own.
  bool unties() const;

  /// HEAD and a pattern of EMBEDDING: the heads that readers build of an embedding, as the rows say, else as most
  /// models do.
  std::vector<std::pair<std::string, std::string>> tied() const;
  /// The group of modules that engines run as one product, all in fp8 or none: that of fuse_group_of(), a row's, or all
  /// experts of a layer; empty for others.
  std::string product_group_of(const std::string& module) const;
  PartsOnLoad parts_on_load(std::string_view module) const;
  /// Modules that readers build without a tensor of their name.
  std::vector<std::string> built() const;
  /// True if towers stay in high precision, whatever asks for them.
  bool towers_stay() const;
  /// Why no reader can have a model of these modules in fp8; empty if one can.
  std::string refused(const std::vector<std::string>& modules) const;
  /// True if some row calls a module's name so, in the cell given: says(&Family::routers, "model.layers.0.mlp.gate").
  bool says(std::string_view Family::*cell, std::string_view module) const;
  /// The part of a name that a tower stands under, dotted if it is of several: "vision_tower"; empty outside of towers.
  std::string tower_of(std::string_view module) const;
  /// The names of a module to readers: its checkpoint name, and that after the rows' changes where it is another.
  std::vector<std::string> names_on_load(const std::string& module) const;

 private:
  std::string model_type_;
  bool known_ = false;
  std::vector<const Family*> rows_;
};

/// "model.layers.0.mlp.experts" of "model.layers.0.mlp.experts.3.up_proj"; empty for what is no single expert's.
std::string mixture_of(const std::string& module);

// By name alone, for models in memory and for what no row decides.

bool is_embedding_name(std::string_view module);
bool is_head_name(std::string_view module);
bool is_router_name(std::string_view module);
bool is_tower_name(std::string_view module);
/// As GPT-2 calls its Conv1D: c_attn, q_attn, c_proj, c_fc.
bool is_conv1d_name(std::string_view module);
/// Of keys, or of queries, keys and values at once: its parent is an attention module.
bool is_key_projection(std::string_view module);
/// Of a layer's way back, so that ranks share out its input, not its output: o_proj, out_proj, down_proj,
/// dense_4h_to_h, fc2, w2, c_proj.
bool is_row_parallel_name(std::string_view module);
/// Where a forward meets a module of a layer, as far as its name tells: attention before the rest, ways in before the
/// way back, routers first, q before k before v. Less is earlier.
std::array<int, 3> place_in_layer(std::string_view module);
/// Part of a LoRA adapter: "q_proj.lora_A.default".
bool is_adapter_name(std::string_view module);

/// The one tied head that readers are known to take as a tensor of its own, and its embedding.
inline constexpr char kTiedHead[] = "lm_head", kTiedEmbedding[] = "model.embed_tokens";

/// The group that a module shares its weight scale with (and that engines run as one product): "PARENT.q_proj" for q, k
/// and v, "PARENT.gate_proj" for gate and up; empty for others.
std::string fuse_group_of(const std::string& module);
/// True for the last of such a group: its rows need not be whole blocks.
bool is_last_of_group(std::string_view module);

/// The quantized modules that engines run as one product with one of `kept`, and that one.
std::map<std::string, std::string> halved_groups(const ModelNames& names, const std::vector<std::string>& quantized,
                                                 const std::vector<std::string>& kept);

}  // namespace fp8::quant
