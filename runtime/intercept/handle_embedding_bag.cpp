// SPDX-License-Identifier: Apache-2.0
// embedding_bag with a weight of codes: the handler gives the rows that are asked for, each once; the bags are then
// made of those by the op itself.
//
//   indices  7 2 7 5    rows 2 5 7, decoded    bags of rows at  2 0 2 1
#include <ATen/ops/_unique.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/intercept/intercept.h"

namespace fp8::runtime {
namespace {

/// Where `index` stands among `rows` (sorted); nullopt if it does not.
std::optional<std::int64_t> position_of(std::int64_t index, const at::Tensor& rows) {
  const at::Tensor host = cpu_alias(rows).to(at::kLong);
  const auto* begin = host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < host.numel(); ++i) {
    if (begin[i] == index) return i;
  }
  return std::nullopt;
}

std::optional<std::int64_t> padding_of(const Arguments& arguments, std::int64_t embeddings) {
  const bool has_padding = arguments.op.schema().overload_name() == "padding_idx";
  if (!has_padding || arguments[8].isNone()) return std::nullopt;
  const std::int64_t index = arguments[8].toInt();
  TORCH_CHECK(index >= -embeddings && index < embeddings, "padding_idx must be within the number of embeddings, -",
              embeddings, " through ", embeddings - 1, ", but got ", index);
  return index < 0 ? index + embeddings : index;
}

}  // namespace

std::optional<torch::jit::Stack> handle_embedding_bag(const Arguments& arguments) {
  const auto w = tagged_operand(arguments, 0);
  if (!w.has_value() || !w->tag->handler->owns_values()) return std::nullopt;
  TORCH_CHECK(!w->view.transposed && w->view.batch == 0, "[aten::embedding_bag] the weight of module '",
              w->tag->module_names(), "' is ", w->tag->dtype, ": expected whole rows, got sizes ", w->tensor.sizes(),
              " and strides ", w->tensor.strides());
  const at::Tensor indices = arguments.tensor(1);
  const auto padding = padding_of(arguments, w->view.rows);
  auto [rows, places] = at::_unique(indices.reshape({-1}), /*sorted=*/true, /*return_inverse=*/true);
  if (rows.numel() == 0) rows = at::zeros({1}, indices.options());  // bags of nothing still want the row length
  const at::Tensor decoded = w->tag->handler->embedding(*w->tag, w->view, w->tensor, rows);
  const std::int64_t mode = arguments[4].toInt();
  auto [bags, bag_of, sizes, largest] = at::embedding_bag(
      decoded, places.reshape(indices.sizes()).to(indices.scalar_type()), arguments.tensor(2), false, mode, false,
      arguments.optional_tensor(6), arguments[7].toBool(), padding.has_value() ? position_of(*padding, rows) : padding);
  constexpr std::int64_t kMax = 2;
  if (mode == kMax && largest.numel() > 0) {  // rows of the weight, not of what was decoded; an empty bag's stay 0
    const at::Tensor original = at::index_select(rows, 0, largest.reshape({-1})).reshape(largest.sizes());
    largest = at::where(at::eq(sizes.unsqueeze(1), 0), largest, original.to(largest.scalar_type()));
  }
  return torch::jit::Stack{bags, bag_of, sizes, largest};
}

}  // namespace fp8::runtime
