// SPDX-License-Identifier: Apache-2.0
// Which modules are quantized and how: one decision, used for models in memory and for checkpoint files alike, so that
// both give the same bytes. No torch here.
//
// Modules with a weight (Linear, convolutions, embeddings, recurrent weights, experts) and modules without one
// (products, softmax, attention, key-value caches, mixtures of experts: "nodes") are planned together: an expert's
// input scale is its mixture's measurement.
#pragma once

#include "fp8/configs/configs.h"
#include "fp8/quant/names/model_names.h"
#include "fp8/quant/scale_file/scale_file.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// A module of the model, as the plan sees it.
struct ModuleInfo {
  std::string name;
  std::string type;                 ///< "Linear", "Conv2d", "Embedding", ...
  std::vector<std::int64_t> shape;  ///< of the weight
  /// Why it stays in high precision unless it is included; empty: it need not. Not given: its name decides.
  std::optional<std::string> kept = {};
};

enum class MeasuredWeight : std::uint8_t {
  amax,
  threshold,  ///< a clipping observer's: at most the weight's amax
  of_whole,   ///< in a rank's file, which may be that of one process (expand): the weight here may be a part
};

struct PlannedModule {
  ModuleInfo info;
  Scheme scheme;
  /// Modules of one group share the weight's amax (per-tensor scales of q/k/v, of gate/up): vLLM requantizes them to
  /// the largest anyway.
  std::string fuse_group;
  std::vector<float>
      stored_weight_scale_inv;  ///< from a scale file: one, or one per output channel; empty: made of the weight
  /// Of a module that adds its ranks' results as fp8 codes: scale_inv of what each rank adds, and of the sum. Empty:
  /// each message has its own.
  std::vector<float> reduced_scale_inv;
  std::optional<float> measured_weight_amax;  ///< to tell a measurement of another model; no scale is made of it
  MeasuredWeight measured_weight = MeasuredWeight::amax;  ///< what that is
};

/// A module without a weight, as the plan sees it.
struct NodeInfo {
  std::string name;
  std::string type;  ///< "Matmul", "Softmax", "ModuleFusedSDPA", "KVCache", ...
  /// One of several ways to write the attention that the node belongs to: "fused", "eager". Where it was not measured,
  /// the model ran another way, and nothing is said of the node. Empty: the model has it in any case.
  std::string way = {};
};

struct PlannedNode {
  NodeInfo info;
  NodeScheme scheme;
};

struct SkippedModule {
  std::string name, reason;
  std::uint64_t bytes = 0;  ///< of its weight in the source, where that is known
};

struct Plan {
  std::vector<PlannedModule> modules;
  std::vector<PlannedNode> nodes;
  std::vector<SkippedModule> skipped;
  std::vector<std::string> warnings;
  std::string scale_method;  ///< "amax" or INC's spelling
  std::string measurements;  ///< fingerprint, empty without
  const PlannedModule* find(const std::string& name) const;
  /// Puts names of options into reasons and warnings.
  void spell(io::Spelling spelling);
};

/// " ('include' quantizes it)": what the reason of a module ends in that stays only as long as nobody includes it.
std::string include_hint();

/// The treatment of a checkpoint's experts, stacked in one tensor or not.
enum class ExpertForm {
  each,  ///< fp8, one weight with its scale per expert
  keep,  ///< as they are, in high precision
};
FP8_ENUM_NAMES(ExpertForm, {each, "each"}, {keep, "keep"});

struct PlanOptions {
  ActivationScaling activations = ActivationScaling::dynamic_token;
  /// Default: tensor with measurements, channel else. block: dynamic activations are per group of block.cols then.
  std::optional<Granularity> weights;
  Block block;                              ///< granularity block
  bool power_of_two = false;                ///< granularity block: scales are powers of two (E8M0)
  ScaleSearch search = ScaleSearch::amax;   ///< of weights
  std::optional<recipes::Dialect> dialect;  ///< default: ocp in files, that of the device for models in memory
  bool fuse_scales = true;
  /// Attention (products, softmax, fused) in fp8 too. A config selects it by its lists instead.
  bool attention = false;
  /// Key-value caches in fp8 too. Not given: as the config's lists say, without a config no.
  std::optional<bool> kv_cache;
  Granularity kv_scales = Granularity::tensor;  ///< of key-value caches
  bool query_scale = false;                     ///< beside those of caches: one for the queries too
  ExpertForm experts = ExpertForm::each;        ///< of checkpoints only
  /// Python regular expressions, searched in the module's name. One that is found in none is an error.
  std::vector<std::string> include, exclude;
  /// Modules that stay in high precision, as llm-compressor's word means them: names, "re:EXPRESSION", class names.
  std::vector<std::string> ignore;
  std::vector<std::string> other_names;  ///< that the model has besides its modules: `exclude` may name them
  /// The names that patterns and `keep` mean a module by, where it is called otherwise here: of a model in memory those
  /// of its checkpoint. Null: its name.
  std::function<std::vector<std::string>(const std::string& module)> called = nullptr;
  std::vector<std::string> checkpoint_names;  ///< of a model in memory: patterns may mean what it has no module of
  std::map<std::string, std::string>
      keep;  ///< modules that stay in high precision, with the reason; whatever else selects them
  /// Modules whose activations stay in high precision, with the reason; not with a config.
  std::map<std::string, std::string> weights_only;
  /// INC's rules instead of ours: methods, lists, hp_dtype. `dialect` above is the device in use.
  std::optional<configs::QuantConfig> config;
  std::optional<measure::MeasurementFile> measurements;
  /// Scales that were made before, INC's convention only: a module found here takes them instead of its measurement.
  std::optional<ScaleFile> scales;
  /// The spelling of options in reasons and warnings.
  io::Spelling spelling = nullptr;

  std::vector<std::string> names_of(const std::string& module) const {
    return called ? called(module) : std::vector<std::string>{module};
  }
  recipes::Dialect dialect_or_ocp() const { return dialect.value_or(recipes::Dialect::ocp); }
};

/// Decides. Without a config, what the measurement's list of modules does not name is skipped. Throws io::Error or
/// std::invalid_argument naming module or key: a selected module without measurement, measurements of a weight (or only
/// of nodes) that this model has not or that keep no amax (observers shape, save), bad patterns, block scales with
/// static activations, with a config or with an empty block.
Plan make_plan(const std::vector<ModuleInfo>& modules, const std::vector<NodeInfo>& nodes, const PlanOptions& options);
inline Plan make_plan(const std::vector<ModuleInfo>& modules, const PlanOptions& options) {
  return make_plan(modules, {}, options);
}

/// Why a config leaves a module or node in high precision; empty: it is quantized (if it was measured, where its method
/// asks for that). Asks `filter` of everything, so that it knows its unused entries.
std::string reason_against(const configs::QuantConfig& config, configs::ModuleFilter& filter, const std::string& name,
                           const std::string& type);

/// Throws io::Error if the weight's amax is not the measured one (beyond the rounding of hp_dtype), or is below the
/// measured threshold: a measurement of another model.
void check_measured_weight(const PlannedModule& module, float amax);

}  // namespace fp8::quant
