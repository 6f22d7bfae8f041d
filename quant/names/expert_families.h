// SPDX-License-Identifier: Apache-2.0
// How families of models stack the experts of a layer in one tensor, and what each expert's weights are called where
// readers take them one by one. Data alone. No torch here.
//
//   axes              gate with up                   down
//   out_in            [E, 2 I, H]                    [E, H, I]          I inner, H hidden size
//   in_out            [E, H, 2 I]                    [E, I, H]
//
// Gate and up share one tensor (halves: gate's I, then up's; interleaved: by turns) or have one each; some families
// have no gate.
#pragma once
#include <array>
#include <span>
#include <string_view>

#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

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
  std::string_view note = {};  ///< what to know of readers of the per-expert form; empty: transformers and vLLM load it
  std::string_view keep = {};  ///< why its experts stay as they are, whatever is asked for; empty: they need not
  bool listed = false;  ///< transformers makes modules of single experts that are in fp8, instead of joining them
  std::string_view unread = {};  ///< why transformers loads no quantized file of this family; empty: it does
};

/// The family of a config.json, by its own model_type or that of one of its parts; null without a row.
const ExpertFamily* expert_family(const io::Json& config);

/// All rows.
std::span<const ExpertFamily> expert_families();

}  // namespace fp8::quant
