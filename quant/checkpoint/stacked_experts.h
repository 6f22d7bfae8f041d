// SPDX-License-Identifier: Apache-2.0
// Experts of a mixture that a checkpoint stacks in one tensor: which tensors these are, and which modules, one per
// expert and projection, they become. Readers of fp8 take one weight with its scale per expert.
//
//   model.layers.0.mlp.experts.gate_up_proj  [E, 2 I, H]   ->   model.layers.0.mlp.experts.0.gate_proj  [I, H]
//                                                               model.layers.0.mlp.experts.0.up_proj    [I, H], ...
//   model.layers.0.mlp.experts.down_proj     [E, H, I]     ->   model.layers.0.mlp.experts.0.down_proj  [H, I], ...
//
// All experts of a layer are cast or none: engines run them as one product. What no row of expert_weights.h describes
// stays as it is. No torch here.
#pragma once
#include <unordered_set>

#include "fp8/quant/forms/form.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/plan/plan.h"

// The place of a weight's values in a checkpoint: a matrix of its own, or one expert's part of a tensor that stacks
// many.
//
// A weight is upright, [rows, cols] = [out, in]; its value (r, c) is value number first + r * row_stride + c *
// col_stride of the tensor:
//
//                                    first               row_stride   col_stride
//   a matrix [out, in]               0                   in           1
//   expert e of [E, out, in]         e * out * in        in           1
//   expert e of [E, in, out]         e * in * out        1            out
//   its "up" in fused [E, 2 I, H]    (2 e + 1) * I * H   H            1            gate's rows above up's
//   the same, interleaved            2 e * I * H + H     2 H          1            gate and up by turns
//   its "up" in fused [E, H, 2 I]    2 e * I * H + I     1            2 I
//   the same, interleaved            2 e * I * H + 1     2            2 I

namespace fp8::quant {

struct WeightSlice {
  std::string tensor;
  std::int64_t first = 0, rows = 0, cols = 0, row_stride = 0, col_stride = 1;
  std::int64_t expert = -1;  ///< whose it is, in a stack of many; -1: the tensor is no stack

  bool is_transposed() const { return col_stride != 1; }
  std::int64_t values() const { return rows * cols; }
  /// "TENSOR" or "TENSOR, expert 3", for messages.
  std::string place() const;
};

/// All of a tensor [rows, cols].
WeightSlice whole_weight(const io::TensorInfo& tensor);

/// Rows [first_row, first_row + rows) of a slice into `destination`, [rows, slice.cols] dense in the tensor's dtype.
/// Reads the bytes of these values (of interleaved columns: their neighbours too), each once. scratch keeps its memory
/// from call to call; no more of it is used than the rows take (interleaved columns: twice that). Throws io::Error.
void read_rows(const io::Checkpoint& checkpoint, const WeightSlice& slice, std::int64_t first_row, std::int64_t rows,
               void* destination, std::vector<std::uint8_t>& scratch);

/// NaN and Inf among the slice's values, chunk by chunk.
NonFinite count_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& slice);

/// Counts and throws io::Error "FOLDER: TENSOR, expert 3: expected finite weights, found NaN in ...".
[[noreturn]] void refuse_nonfinite(const io::Checkpoint& checkpoint, const WeightSlice& slice);

struct ExpertFamily;
struct ExpertSpelling;

/// The experts of one layer.
struct StackedMixture {
  std::string name;                               ///< as engines call them: "model.layers.0.mlp.experts"
  std::vector<std::string> tensors;               ///< the stacks, in file order
  std::vector<std::vector<std::size_t>> modules;  ///< of each of those, expert by expert: indices of their list
  std::string kept;                               ///< why they stay as they are; empty: they are to be cast
  bool packed = false;                            ///< in MXFP4 already
};

class StackedExperts {
 public:
  StackedExperts() = default;
  /// keep: tensors (without ".weight") and modules that stay in high precision, with the reason. Throws io::Error
  /// naming the tensor whose shape is not what its family stacks: no experts, an odd number of rows for gate and up,
  /// stacks that do not fit each other.
  StackedExperts(const io::Checkpoint& source, const io::Json& config, ExpertForm form,
                 const std::map<std::string, std::string>& keep);

  /// Those that are to be cast, Linear by Linear.
  std::vector<ModuleInfo> modules() const;
  const std::vector<StackedMixture>& mixtures() const { return mixtures_; }

  /// Those of a module that an expert's weight becomes; null for any other.
  const WeightSlice* slice_of(const std::string& module) const;
  /// True for a tensor that stacks experts, cast or not.
  bool is_stack(const std::string& tensor) const { return by_tensor_.contains(tensor); }
  /// The modules that a tensor becomes, in the order of its experts; empty if it stays.
  std::vector<std::string> modules_of(const std::string& tensor) const;
  /// The name of a tensor or module in the output: another one beside experts whose place is renamed there.
  std::string written_name(const std::string& name) const;
  /// A Linear as the output has it.
  WeightSpec written(const PlannedModule& m) const {
    return {written_name(m.info.name), m.info.shape[0], m.info.shape[1], m.scheme};
  }

  /// After planning: mixtures of which a module is missing in `modules` stay whole, and are listed by tensor instead of
  /// by module.
  void settle(std::vector<PlannedModule>& modules, std::vector<SkippedModule>& skipped);
  /// The mixtures that stay as they are.
  std::vector<std::string> kept() const;
  /// Those that are in MXFP4 already.
  std::vector<std::string> packed() const;
  /// Notes on them for the user, one line each.
  std::vector<std::string> notices() const;

 private:
  struct Module {
    std::string name;
    WeightSlice slice;
    std::size_t mixture = 0;
  };

  void find_family_stacks(const io::Checkpoint& source, const ExpertFamily& family);
  void find_other_stacks(const io::Checkpoint& source, const ExpertFamily* family);
  bool add_mixture(const io::Checkpoint& source, const ExpertSpelling& spelling, const std::string& down);
  std::string written_below(const std::string& below, const ExpertSpelling& spelling);
  std::string reason_to_keep(const StackedMixture& mixture, const std::unordered_set<std::string>& planned,
                             const std::unordered_map<std::string, std::string>& reasons) const;

  std::vector<StackedMixture> mixtures_;
  std::vector<Module> modules_;
  std::unordered_map<std::string, std::size_t> by_module_;                          // indices of modules_
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> by_tensor_;  // of mixtures_, and of its tensors
  std::map<std::string, std::string> renamed_;  // "model.layers.0.mlp." -> "model.layers.0.block_sparse_moe."
  std::string note_;                            // of the family
  std::size_t unknown_ = 0;                     // mixtures without a row
  std::string first_unknown_;
};

}  // namespace fp8::quant
