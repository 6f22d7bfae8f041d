// SPDX-License-Identifier: Apache-2.0
// The names of experts' weights in a checkpoint. Our parameters, below P = "model.layers.N.mlp":
//
//   P.experts.moe_op.w13_list.E.weight   gate of expert E above its up, [2 I, H]
//   P.experts.moe_op.w2_list.E.weight    down, [H, I]
//
// In checkpoints, P being named as there or "block_sparse_moe", "mlp" or "feed_forward":
//
//   one by one   P.experts.E.{gate_proj, up_proj, down_proj}.weight   or {w1, w3, w2}
//   stacked      P.experts.{gate_up_proj [E, 2 I, H], down_proj [E, H, I]}, of some families [E, H, 2 I], [E, I, H]
//                P.{input_linear [E, 2 I, H], output_linear [E, H, I]}.weight
#pragma once

#include "fp8/measure/files/measurement_file.h"
#include "fp8/quant/names/readers.h"

namespace fp8::quant {

/// One piece of a parameter: a tensor of the checkpoint, or one matrix of a stacked one. Pieces follow each other in
/// dimension 0.
struct WeightPiece {
  std::string tensor;
  std::optional<std::int64_t> index = {};
  bool of_expert = false;
};

/// The pieces of parameter `name`; it is a piece itself unless it belongs to experts. Of forms that the checkpoint
/// lacks the first is returned, for the message about what is missing.
std::vector<WeightPiece> pieces_of(const std::string& name, const io::Checkpoint& checkpoint);

/// Measurements of a model in memory, in the names of its checkpoint: of each mixture of experts, hidden states are the
/// input of gate and up, the activation of expert E that of down. Heads that are the word table are left out. All else
/// comes back as it is.
/// An expert that no token came to takes the largest amax of the others' intermediate values; `warnings` names it.
measure::MeasurementFile in_names_of_checkpoint(measure::MeasurementFile file, const io::Checkpoint& checkpoint,
                                                std::vector<std::string>& warnings);

struct ExpertFamily;

/// What the modules of a model in memory are called in its checkpoint: so all that users see and type calls them.
class NamesInCheckpoint {
 public:
  explicit NamesInCheckpoint(std::shared_ptr<const io::Checkpoint> checkpoint);

  /// One name; of an expert's gate above its up those of both, as they are written one by one; of a mixture
  /// "P.experts".
  std::vector<std::string> of(const std::string& module) const;
  /// These, and the tensors that stack it; of a mixture also the names of its experts.
  std::vector<std::string> all_of(const std::string& module) const;
  /// All that the file has, be it in the model or not.
  std::vector<std::string> everything() const;

 private:
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  const ExpertFamily* family_;  ///< null: none with a row
};

// How families of models stack the experts of a layer in one tensor, and what each expert's weights are called where
// readers take them one by one. Data alone. No torch here.
//
//   axes              gate with up                   down
//   out_in            [E, 2 I, H]                    [E, H, I]          I inner, H hidden size
//   in_out            [E, H, 2 I]                    [E, I, H]
//
// Gate and up share one tensor (halves: gate's I, then up's; interleaved: by turns) or have one each; some families
// have no gate.

enum class ExpertAxes {
  out_in,
  in_out,
  by_shapes
};  ///< by_shapes: the family's files have either; gate with up and down together tell which
enum class GateUp { halves, interleaved };

/// The stacks of a layer, by the ends of their names (".weight" may follow), and the modules that they become. Empty:
/// there is no such stack.
struct ExpertSpelling {
  std::string_view gate_up = {}, gate = {}, up = {}, down = {};
  ExpertAxes axes = ExpertAxes::out_in;
  GateUp order = GateUp::halves;
  /// Stands between what is before those ends and the expert's number.
  std::string_view experts = "experts";
  std::string_view gate_proj = "gate_proj", up_proj = "up_proj", down_proj = "down_proj";
  /// The module that holds the experts is called so in memory, and otherwise in files: ".mlp" and ".block_sparse_moe".
  /// All below it is renamed.
  std::string_view parent = {}, written_parent = {};
  std::string_view router = {}, written_router = {};  ///< below it
};

struct ExpertFamily {
  std::string_view model_types = {};             ///< of config.json, separated by spaces
  std::array<ExpertSpelling, 2> spellings = {};  ///< the first that fits; one without `down` is none
  bool vllm_only = false;                        ///< transformers does not load the per-expert form
  std::string_view keep = {};  ///< why its experts stay as they are, whatever is asked for; empty: they need not
  bool listed = false;  ///< transformers makes modules of single experts in compressed-tensors, instead of joining them
  std::string_view unread = {};  ///< why transformers loads no quantized file of this family; empty: it does

  /// A warning for readers of the per-expert form; empty: transformers and vLLM load it.
  std::string note() const;
};

/// How a reader has a checkpoint's module of this name: engines join the experts of a layer, transformers those of the
/// families that it has stacked. family: that of the config; may be null.
WeightPlace place_on_load(CheckpointReader reader, const std::string& module, const ExpertFamily* family);

/// The family of a config.json, by its own model_type or that of one of its parts; null without a row.
const ExpertFamily* expert_family(const io::Json& config);

/// All rows.
std::span<const ExpertFamily> expert_families();

// The names of a mixture's weights in the model that runs, and so by a QUANT_CONFIG's lists, where checkpoints call
// them otherwise. No torch here.
//
//   checkpoint                                  in memory, as vLLM's Gaudi plugin names them
//   P.block_sparse_moe.experts.E.w1 and .w3     P.block_sparse_moe.experts.moe_op.w13_list.E    MoeMatmul
//   P.block_sparse_moe.experts.E.w2             P.block_sparse_moe.experts.moe_op.w2_list.E     MoeMatmul
//   -                                           P.block_sparse_moe.experts.moe_op               VllmMixtureOfExpertsOp

struct ExpertInMemory {
  std::string mixture;  ///< "P.block_sparse_moe.experts.moe_op"
  std::string name;     ///< "P.block_sparse_moe.experts.moe_op.w2_list.3"
};
inline constexpr char kExpertType[] = "MoeMatmul", kMixtureType[] = "VllmMixtureOfExpertsOp";

/// Of a checkpoint's module; nothing if it is no expert of a Mixtral's.
std::optional<ExpertInMemory> expert_in_memory(const std::string& module);

/// The parts of an expert's weight's name in memory.
struct ExpertWeight {
  std::string mixture;
  std::size_t expert = 0;
  bool down = false;  ///< w2_list
};

/// Nothing if it is not MIXTURE.w13_list.E or MIXTURE.w2_list.E, E of up to six digits.
std::optional<ExpertWeight> expert_weight(const std::string& name);

}  // namespace fp8::quant
