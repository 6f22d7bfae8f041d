// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/weight_tag.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "fp8/runtime/intercept/quantized_parameter.h"

namespace fp8::runtime {
namespace {

bool same_geometry(const WeightTag& tag, const at::Tensor& t) {
  return t.scalar_type() == tag.dtype && t.sizes() == at::IntArrayRef(tag.sizes) &&
         t.strides() == at::IntArrayRef(tag.strides) && t.storage_offset() == tag.offset;
}

bool spans_block(const at::Tensor& t) {
  const Block* block = block_of(t);
  return block != nullptr && t.is_contiguous() && t.storage_offset() == 0 && t.nbytes() <= block->bytes;
}

QuantizedParameter* learning(const WeightTag* tag) { return tag == nullptr ? nullptr : dynamic_cast<QuantizedParameter*>(tag->handler.get()); }

const WeightTag* tag_in(const Block* block) { return block == nullptr ? nullptr : dynamic_cast<const WeightTag*>(block->tag.get()); }

/// Codes go from one parameter that learns in fp8 into another, which has a scale of its own.
bool between_learning(const at::Tensor& to, const at::Tensor& from) {
  auto *a = learning(tag_in(block_of(to))), *b = learning(tag_in(block_of(from)));
  return a != nullptr && b != nullptr && a != b;
}

}  // namespace

std::string WeightTag::module_names() const {
  std::string names;
  for (const auto& name : modules) names += (names.empty() ? "" : ", ") + name;
  return names;
}

void WeightTag::check_access(const std::string& op, const at::Tensor& tensor) const {
  if (!handler->owns_values() || tensor.scalar_type() != dtype) return;
  TORCH_CHECK(false, "[", op, "] the weight of module '", module_names(), "' is ", dtype, " (", handler->describe(),
              ") and this op has no handler: it would take codes for values");
}

void WeightTag::check_copy(const at::Tensor& to, const at::Tensor& from) const {
  if (!handler->owns_values()) return;
  if (to.scalar_type() == from.scalar_type()) {
    const Block* source = block_of(from);
    const bool leaves =
        source != nullptr && source->tag.get() == this && block_of(to) != nullptr && block_of(to) != source;
    const auto view = leaves ? view_of(*this, from) : std::nullopt;
    TORCH_CHECK(!view.has_value() || !view->whole || !view->transposed, "[copy] the weight of module '", module_names(),
                "' is ", dtype, " (", handler->describe(), "): a transposed copy would hold codes without their scale; ",
                "torch::jit::optimize_for_inference() makes such copies, use torch::jit::freeze()");
    TORCH_CHECK(!between_learning(to, from) || (same_geometry(*tag_in(block_of(to)), to) && same_geometry(*tag_in(source), from)), "[copy] the weight of module '",
                module_names(), "' is ", dtype, " (", handler->describe(), "): expected a copy of the whole weight, got sizes ", to.sizes(), " and ", from.sizes(),
                "; a part would have another scale than the rest");
    return;
  }
  TORCH_CHECK(false, "[copy] the weight of module '", module_names(), "' is ", dtype, " (", handler->describe(),
              "): expected a copy of the same dtype, got ", from.scalar_type(), " -> ", to.scalar_type(),
              "; its codes are no values without the scale");
}

void WeightTag::copied(const at::Tensor& to, const at::Tensor& from) const {
  Block* block = block_of(to);
  if (between_learning(to, from)) return quantized_parameter(to)->adopt(*quantized_parameter(from));
  if (block == nullptr || block->tag || !same_geometry(*this, from) || to.sizes() != from.sizes() || !spans_block(to) ||
      to.scalar_type() != dtype) {
    return;
  }
  if (!handler->owns_values()) return;  // a watched weight's copy is another weight
  auto tag = c10::make_intrusive<WeightTag>(*this);
  tag->strides = to.strides().vec();
  tag->offset = 0;
  block->tag = tag;
  to.unsafeGetTensorImpl()->set_backend_meta(tag);
}

void WeightTag::check_replace(const at::Tensor& self, at::ScalarType other) const {
  if (!handler->owns_values() || other == dtype) return;
  TORCH_CHECK(false, "[set_] the weight of module '", module_names(), "' is ", dtype, " (", handler->describe(),
              "): expected data of the same dtype, got ", other,
              "; convert the module after loading, or load before converting");
}

void WeightTag::replaced(const at::Tensor& self) {
  Block* block = block_of(self);
  if (block != nullptr && !block->tag && same_geometry(*this, self))
    block->tag = c10::intrusive_ptr<BlockTag>::reclaim_copy(this);
}

void tag_weight(const at::Tensor& weight, const std::string& module, std::shared_ptr<OpHandler> handler) {
  Block* block = block_of(weight);
  TORCH_CHECK(block != nullptr, "[tag_weight] ", module, ": expected a weight in hpu memory, got one on ",
              weight.device());
  TORCH_CHECK(weight.is_contiguous(), "[tag_weight] ", module, ": expected a contiguous weight, got strides ",
              weight.strides());
  auto tag = c10::make_intrusive<WeightTag>();
  if (const auto* old = dynamic_cast<const WeightTag*>(block->tag.get());
      old != nullptr && old->handler == handler && same_geometry(*old, weight)) {
    tag->modules = old->modules;
  }
  if (std::find(tag->modules.begin(), tag->modules.end(), module) == tag->modules.end()) tag->modules.push_back(module);
  tag->sizes = weight.sizes().vec();
  tag->strides = weight.strides().vec();
  tag->offset = weight.storage_offset();
  tag->dtype = weight.scalar_type();
  tag->handler = std::move(handler);
  block->tag = tag;
  weight.unsafeGetTensorImpl()->set_backend_meta(tag);
}

void untag_weight(const at::Tensor& weight) {
  if (Block* block = block_of(weight)) block->tag.reset();
  weight.unsafeGetTensorImpl()->set_backend_meta(nullptr);
}

const WeightTag* find_tag(const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block == nullptr) return nullptr;
  if (!block->tag) {
    auto* meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
    if (meta == nullptr) return nullptr;
    auto* tag = dynamic_cast<WeightTag*>(meta);
    if (tag == nullptr || !same_geometry(*tag, tensor)) return nullptr;
    block->tag = c10::intrusive_ptr<BlockTag>::reclaim_copy(tag);
  }
  return static_cast<const WeightTag*>(block->tag.get());
}

std::optional<WeightView> view_of(const WeightTag& tag, const at::Tensor& tensor) {
  if (tensor.scalar_type() != tag.dtype || tag.sizes.empty()) return std::nullopt;
  WeightView view;
  const std::int64_t total = std::accumulate(tag.sizes.begin(), tag.sizes.end(), std::int64_t{1}, std::multiplies<>());
  view.whole = same_geometry(tag, tensor);
  const bool stacked = tag.sizes.size() == 3 && tensor.dim() <= 3;
  const std::int64_t cols = tag.sizes.size() == 1 ? 1
                            : stacked             ? tag.sizes[2]
                                                  : total / std::max<std::int64_t>(tag.sizes[0], 1);
  if (view.whole && tag.sizes.size() != 2 && !stacked) {  // a convolution's: seen as [C_out, rest]
    view.rows = tag.sizes[0];
    view.cols = cols;
    return view;
  }
  if (tensor.dim() < 2 || tensor.dim() > 3 || cols == 0) return std::nullopt;
  const std::int64_t a = tensor.size(-2), b = tensor.size(-1), sa = tensor.stride(-2), sb = tensor.stride(-1);
  // [N, K] has strides (K, 1); its transpose [K, N] has (1, K); the stride of a dimension of 1 says nothing. Where both
  // fit (K = 1: a column against a row) the shape decides; a single element is its own transpose.
  const bool plain = (sb == 1 || b == 1) && (sa == cols || a == 1) && b <= cols;
  const bool turned = (sa == 1 || a == 1) && (sb == cols || b == 1) && a <= cols;
  if (!plain && !turned) return std::nullopt;
  view.transposed = plain && turned ? cols == 1 && b != 1 : turned;
  const std::int64_t rows = view.transposed ? b : a;
  view.cols = view.transposed ? a : b;
  const std::int64_t from = tensor.storage_offset() - tag.offset;
  if (from < 0) return std::nullopt;
  view.first_row = from / cols;
  view.first_col = from % cols;
  view.rows = rows;
  if (tensor.dim() == 3) {
    if (tensor.size(0) > 1 && (!stacked || tensor.stride(0) != tag.sizes[1] * cols || rows != tag.sizes[1]))
      return std::nullopt;
    view.batch = tensor.size(0);
    view.rows = rows * view.batch;
  }
  if (view.first_col + view.cols > cols || (view.first_row + view.rows) * cols > total) return std::nullopt;
  view.whole = view.rows * view.cols == total;
  return view;
}

}  // namespace fp8::runtime
