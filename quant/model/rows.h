// SPDX-License-Identifier: Apache-2.0
// Converted weights cut into rows and put together anew: codes go with their scales. A checkpoint cuts and joins what a
// model has as one weight, or as several (stacked experts, gate and up). Numbers tell what goes where: all rows of some
// weights are counted one after the other, and what cuts and joins the weights does the same with their numbers.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace fp8::quant {

/// For each value of the weights the number of its row, int64 on cpu. [.., K] has a row for all indices before the
/// last, a vector for each element.
std::vector<at::Tensor> number_rows(at::TensorList weights);

/// Which of the weights have rows of these numbers; true if all values of each row are of one row.
std::tuple<std::vector<std::int64_t>, bool> weights_of_rows(at::TensorList weights, const at::Tensor& numbers);

/// A new weight of module `name` on hpu, of rows of `weights`. numbers: of its sizes. expected: the codes that it has
/// to have, as bytes. Scales of one tensor become scales of rows where they differ. Throws c10::Error naming `name` and
/// the weights: a part is in high precision or of another scheme, rows are not whole, blocks do not meet, the codes are
/// others.
at::Tensor gather_rows(at::TensorList weights, const at::Tensor& numbers, const std::string& name,
                       const std::optional<at::Tensor>& expected);

/// The way back: the weight whose rows have the numbers `wanted`, of pieces whose rows have these. Throws as
/// gather_rows() does.
at::Tensor join_rows(at::TensorList pieces, at::TensorList numbers, const at::Tensor& wanted, const std::string& name);

}  // namespace fp8::quant
