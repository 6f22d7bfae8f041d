// SPDX-License-Identifier: Apache-2.0
// A model whose weights are cut and joined otherwise in its checkpoint (rows.h), written and loaded.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <tuple>
#include <vector>

namespace fp8::quant {

/// What a model has, and what becomes of the numbers of its rows by the names of a checkpoint.
struct RowsOfModel {
  at::TensorList state;  ///< parameters and buffers, themselves
  std::vector<std::string> names;
  std::vector<std::string> transposed;  ///< those of `names` that are [inputs, outputs]
  at::TensorList given;                 ///< of each its number_rows(), as the model has it
  at::TensorList numbers;         ///< these by the names of the checkpoint; those that nothing cut are the ones given
  std::vector<std::string> keys;  ///< their names there
};

/// Those of `names` whose codes the checkpoint cuts or joins.
std::vector<std::string> cut_weights(const RowsOfModel& model);

/// The tensors of the checkpoint by `keys`, and their modules' types; codes with their scales. types: of the state;
/// values: what the checkpoint has by each key, of cut weights their codes as bytes. Throws c10::Error naming the
/// module for codes that no reader takes so, and as gather_rows() does.
std::tuple<std::vector<at::Tensor>, std::vector<std::string>> written_by_rows(const RowsOfModel& model,
                                                                              const std::vector<std::string>& types,
                                                                              at::TensorList values);

/// Puts all codes of the checkpoint, with their scales, in the place of the model's weights, which may hold anything.
/// Returns the tensors that are done with. Throws c10::Error naming folder and tensor: the model has no such tensor, or
/// its rows are not rows of the model's; c10::ValueError: a weight is not on hpu.
std::vector<std::string> load_by_rows(const RowsOfModel& model, const std::string& folder);

/// Copies all tensors of the checkpoint but `done` to those of the same names, which are no codes. Throws c10::Error
/// naming folder and tensor for one that the model has not, and for one of the model's that gets none; tied ones need
/// one of their names.
void load_others(at::TensorList state, const std::vector<std::string>& names, const std::string& folder,
                 const std::vector<std::string>& done);

}  // namespace fp8::quant
