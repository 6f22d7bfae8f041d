// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/weight_tag.h"

#include <numeric>

#include "fp8/runtime/device/pending.h"
#include "fp8/runtime/intercept/weight_copy.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/leaf/pending_work.h"

namespace fp8::runtime {
namespace {

/// Bytes [first, last) of a storage.
struct Span {
  std::int64_t first, last;
};

template <class Sizes, class Strides>
Span span_of(const Sizes& sizes, const Strides& strides, std::int64_t offset, std::int64_t item) {
  std::int64_t reach = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {offset * item, offset * item};
    reach += (sizes[d] - 1) * strides[d];
  }
  return {offset * item, (offset + reach) * item};
}
Span span_of(const WeightTag& tag) {
  return span_of(tag.sizes, tag.strides, tag.offset, static_cast<std::int64_t>(c10::elementSize(tag.dtype)));
}
Span span_of(const at::Tensor& t) {
  return span_of(t.sizes(), t.strides(), t.storage_offset(), static_cast<std::int64_t>(t.itemsize()));
}

/// Calls f with each tag of a block's.
template <class F>
void for_each_tag(const BlockTag* block, const F& f) {
  if (block == nullptr) return;
  if (typeid(*block) == typeid(WeightTag)) return f(static_cast<const WeightTag&>(*block));
  for (const auto& tag : static_cast<const WeightTags&>(*block).tags) f(*tag);
}

/// The tag of the weight that t is, else of the smallest one that it is a part of (the latest of those).
const WeightTag* tag_for(const BlockTag* block, const at::Tensor& t) {
  if (block != nullptr && typeid(*block) == typeid(WeightTag)) {  // mostly: one weight alone
    const auto* one = static_cast<const WeightTag*>(block);
    return one->holds(t) ? one : nullptr;
  }
  const WeightTag* found = nullptr;
  const auto bytes = [](const WeightTag& tag) { return span_of(tag).last - span_of(tag).first; };
  for_each_tag(block, [&](const WeightTag& tag) {
    if (!tag.holds(t) || (found != nullptr && found->is(t))) return;
    if (found == nullptr || tag.is(t) || bytes(tag) <= bytes(*found)) found = &tag;
  });
  return found;
}

/// The place of the tags of a tensor's memory; null: it can't have any.
c10::intrusive_ptr<BlockTag>* slot_of(const at::Tensor& t) {
  if (Block* block = block_of(t)) return &block->tag;
  HostBlock* host = host_block_of(t);
  return host == nullptr ? nullptr : &host->tag;
}

/// True if t is the weight or a part of it, or was when its TensorImpl was marked.
bool marks(const WeightTag& tag, const at::Tensor& t) {
  return tag.holds(t) || t.unsafeGetTensorImpl()->get_backend_meta() == &tag;
}

/// True if b takes a's place: the same weight, or codes where a's were.
bool replaces(const WeightTag& b, const WeightTag& a) {
  const bool same_bytes = span_of(a).first == span_of(b).first && span_of(a).last == span_of(b).last;
  return same_bytes && (a.sizes == b.sizes || b.handler->owns_values());
}

std::vector<c10::intrusive_ptr<WeightTag>> tags_in(const c10::intrusive_ptr<BlockTag>& slot) {
  std::vector<c10::intrusive_ptr<WeightTag>> tags;
  for_each_tag(slot.get(), [&](const WeightTag& tag) {
    tags.push_back(c10::intrusive_ptr<WeightTag>::reclaim_copy(const_cast<WeightTag*>(&tag)));
  });
  return tags;
}

void put_into(c10::intrusive_ptr<BlockTag>& slot, std::vector<c10::intrusive_ptr<WeightTag>> tags) {
  if (tags.size() <= 1) {
    slot = tags.empty() ? nullptr : c10::intrusive_ptr<BlockTag>(std::move(tags[0]));
    return;
  }
  auto several = c10::make_intrusive<WeightTags>();
  several->tags = std::move(tags);
  slot = several;
}

}  // namespace

std::string WeightTag::module_names() const { return io::joined(modules); }

std::string WeightTag::describe() const {
  return "the weight of module '" + module_names() + "' is " + c10::toString(dtype) + " (" + handler->describe() + ")";
}

void WeightTag::lie_at(const at::Tensor& t) {
  sizes = t.sizes().vec();
  strides = t.strides().vec();
  offset = t.storage_offset();
  dtype = t.scalar_type();
}

bool WeightTag::is(const at::Tensor& t) const {
  return t.scalar_type() == dtype && t.sizes() == at::IntArrayRef(sizes) && t.strides() == at::IntArrayRef(strides) &&
         t.storage_offset() == offset;
}

bool WeightTag::holds(const at::Tensor& t) const {
  if (t.storage_offset() == offset && t.scalar_type() == dtype && t.sizes() == at::IntArrayRef(sizes)) return true;
  const Span mine = span_of(*this), its = span_of(t);
  return mine.first <= its.first && its.last <= mine.last;
}

bool WeightTag::meets(const at::Tensor& t) const {
  const Span mine = span_of(*this), its = span_of(t);
  return mine.first < its.last && its.first < mine.last;
}

bool WeightTag::has_codes_of(const at::Tensor& t) const {
  return handler->owns_values() && t.scalar_type() == dtype && meets(t);
}

void WeightTag::check_access(const std::string& op, const at::Tensor& tensor) const {
  if (!has_codes_of(tensor)) return;
  TORCH_CHECK(false, "[", op, "] ", describe(), " and this op has no handler: it would take codes for values");
}
void WeightTags::check_access(const std::string& op, const at::Tensor& tensor) const {
  for (const auto& tag : tags) tag->check_access(op, tensor);
}

void WeightTag::check_copy(const at::Tensor& to, const at::Tensor& from) const { check_weight_copy(to, from); }
void WeightTag::copied(const at::Tensor& to, const at::Tensor& from) const { weight_copied(to, from); }
void WeightTag::check_replace(const at::Tensor& self, const at::Tensor& source) const {
  if (marks(*this, self)) check_weight_replace(*this, self, source);
}
void WeightTag::replaced(const at::Tensor& self, const at::Tensor& source) const {
  if (marks(*this, self)) weight_replaced(*this, source);
}

void WeightTags::check_copy(const at::Tensor& to, const at::Tensor& from) const { check_weight_copy(to, from); }
void WeightTags::copied(const at::Tensor& to, const at::Tensor& from) const { weight_copied(to, from); }
void WeightTags::check_replace(const at::Tensor& self, const at::Tensor& source) const {
  if (const auto* tag = tag_for(this, self)) check_weight_replace(*tag, self, source);
}
void WeightTags::replaced(const at::Tensor& self, const at::Tensor& source) const {
  if (const auto* tag = tag_for(this, self)) weight_replaced(*tag, source);
}

void tag_weight(const at::Tensor& weight, const std::string& module, std::shared_ptr<OpHandler> handler) {
  Block* block = block_of(weight);
  TORCH_CHECK(block != nullptr, "[tag_weight] ", module, ": expected a weight in hpu memory, got ",
              weight.is_hpu() ? "a tensor around others (DTensor, a subclass of Python's)" : "one", " on ",
              weight.device());
  TORCH_CHECK(weight.is_contiguous(), "[tag_weight] ", module, ": expected a contiguous weight, got strides ",
              weight.strides());
  auto tag = c10::make_intrusive<WeightTag>();
  if (const auto* old = tag_for(block->tag.get(), weight); old != nullptr && old->handler == handler && old->is(weight))
    tag->modules = old->modules;
  if (std::find(tag->modules.begin(), tag->modules.end(), module) == tag->modules.end()) tag->modules.push_back(module);
  tag->lie_at(weight);
  tag->handler = std::move(handler);
  put_tag(weight, tag);
}

void put_tag(const at::Tensor& tensor, c10::intrusive_ptr<WeightTag> tag) {
  if (tensor.is_cpu()) make_host_block(tensor);
  auto* slot = slot_of(tensor);
  TORCH_INTERNAL_ASSERT(slot != nullptr);
  auto tags = tags_in(*slot);
  std::erase_if(tags, [&](const auto& other) { return replaces(*tag, *other); });
  tags.push_back(tag);
  put_into(*slot, std::move(tags));
  if (tag->is(tensor)) tensor.unsafeGetTensorImpl()->set_backend_meta(tag);
}

void untag_weight(const at::Tensor& weight) {
  if (Block* block = block_of(weight)) {
    const auto* gone = tag_for(block->tag.get(), weight);
    auto tags = tags_in(block->tag);
    std::erase_if(tags, [&](const auto& tag) { return tag.get() == gone; });
    put_into(block->tag, std::move(tags));
  }
  weight.unsafeGetTensorImpl()->set_backend_meta(nullptr);
}

const WeightTag* find_tag(const at::Tensor& tensor) {
  const bool may_wait = detail::g_finish_work.load(std::memory_order_relaxed) != nullptr;
  if (may_wait && tensor.defined() && tensor.has_storage() && pending_of(storage_impl_of(tensor)) != nullptr)
    return nullptr;
  Block* block = block_of(tensor);
  if (block == nullptr) return nullptr;
  if (block->tag) {
    if (const auto* tag = tag_for(block->tag.get(), tensor)) return tag;
  }
  auto* meta = tensor.unsafeGetTensorImpl()->get_backend_meta();
  if (meta == nullptr) return nullptr;
  const auto* tag = dynamic_cast<const WeightTag*>(meta);
  const bool same =
      tag != nullptr && tensor.scalar_type() == tag->dtype && tensor.sizes() == at::IntArrayRef(tag->sizes);
  if (!same || !tensor.is_contiguous()) return nullptr;
  auto moved = c10::make_intrusive<WeightTag>(*tag);
  moved->lie_at(tensor);
  // This memory came by an unknown way: the meaning of its codes is not known.
  if (tag->handler->owns_values()) moved->handler = std::make_shared<UnknownScales>(tag->handler->describe());
  put_tag(tensor, moved);
  return tag_for(block->tag.get(), tensor);
}

c10::intrusive_ptr<WeightTag> tag_in_memory(const at::Tensor& tensor) {
  const auto block = tag_of_memory(tensor);
  const auto* tag = tag_for(block.get(), tensor);
  return c10::intrusive_ptr<WeightTag>::reclaim_copy(const_cast<WeightTag*>(tag));
}

std::optional<WeightView> view_of(const WeightTag& tag, const at::Tensor& tensor) {
  if (tensor.scalar_type() != tag.dtype || tag.sizes.empty()) return std::nullopt;
  WeightView view;
  const std::int64_t total = std::accumulate(tag.sizes.begin(), tag.sizes.end(), std::int64_t{1}, std::multiplies<>());
  view.whole = tag.is(tensor);
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
