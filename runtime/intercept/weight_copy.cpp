// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/weight_copy.h"

#include <c10/core/GradMode.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <unordered_map>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/fallback.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime {
namespace {

thread_local bool t_scales_come_later = false;

using Tag = c10::intrusive_ptr<WeightTag>;

constexpr const char* kWayOut =
    "; copy the weight of a converted module (its scales come along), load values before converting, or give codes "
    "from elsewhere "
    "their scale with fp8::tag";

/// The codes among a tensor's elements.
struct Codes {
  Tag tag;             ///< of the weight that all of them are in; null: none, or
  bool mixed = false;  ///< not all of them are in one weight, or their weight is unknown
};

Codes codes_of(const at::Tensor& t) {
  if (!c10::isFloat8Type(t.scalar_type()) || t.numel() == 0) return {};
  const auto block = tag_of_memory(t);
  Codes codes;
  codes.tag = tag_in_memory(t);
  if (codes.tag && codes.tag->has_codes_of(t)) return codes;
  codes.tag = nullptr;
  codes.mixed = is_guarded(t);
  if (const auto* one = dynamic_cast<const WeightTag*>(block.get())) codes.mixed = codes.mixed || one->has_codes_of(t);
  if (const auto* several = dynamic_cast<const WeightTags*>(block.get())) {
    for (const auto& tag : several->tags) codes.mixed = codes.mixed || tag->has_codes_of(t);
  }
  return codes;
}

QuantizedParameter* learning(const WeightTag& tag) { return tag.handler->quantized_parameter(); }

bool same_elements(const at::Tensor& a, const at::Tensor& b) {
  return same_place(a, b) && a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool same_scales(const WeightTag& a, const WeightTag& b) {
  return a.handler == b.handler || (!a.handler->scales().empty() && a.handler->scales() == b.handler->scales());
}

/// True if every code of `from` has in `to` the scale that it had: one scale for all, or the same part of weights of
/// one shape.
bool scales_fit(const WeightTag& mine, const at::Tensor& to, const WeightTag& its, const at::Tensor& from) {
  if (!same_scales(mine, its)) return false;
  if (mine.handler->one_scale()) return true;
  const auto a = view_of(mine, to), b = view_of(its, from);
  return a.has_value() && b.has_value() && mine.sizes == its.sizes && a->first_row == b->first_row &&
         a->rows == b->rows && a->first_col == b->first_col && a->cols == b->cols && a->transposed == b->transposed;
}

/// True if the copy is the weight's memory over again: all of it (or a transpose, or flat), in the same order.
bool is_image(const WeightTag& tag, const at::Tensor& to, const at::Tensor& from) {
  return from.storage_offset() == tag.offset && from.numel() == c10::multiply_integers(tag.sizes) &&
         to.sizes() == from.sizes() && to.strides() == from.strides() && from.is_non_overlapping_and_dense();
}

/// The tensor, or its transpose: the one whose rows lie one after the other, as a weight's do.
at::Tensor upright(const at::Tensor& t) { return t.is_contiguous() || t.dim() < 2 ? t : t.transpose(-2, -1); }

void check_leaving(const WeightTag& tag, const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.is_cpu() || block_of(to) != nullptr, "[copy] ", tag.describe(),
              ": expected memory of hpu or cpu, got ", to.device(), ": nothing there could hold its scale");
  if (is_image(tag, to, from)) return;
  const auto view = view_of(tag, from);
  TORCH_CHECK(block_of(to) == nullptr || !view.has_value() || !view->whole || !view->transposed, "[copy] ",
              tag.describe(), ": a transposed copy would hold codes without their scale; ",
              "torch::jit::optimize_for_inference() makes such copies, use torch::jit::freeze()");
  TORCH_CHECK(
      tag.handler->one_scale(), "[copy] ", tag.describe(), ": expected a copy of all of it as it lies, got sizes ",
      from.sizes(), " and strides ", from.strides(), " -> ", to.sizes(), " and ", to.strides(),
      "; its codes have scales of their own, which a part would lose; fp8::dequantize(weight) gives the values");
  TORCH_CHECK(upright(to).is_contiguous(), "[copy] ", tag.describe(),
              ": expected a copy whose rows or columns lie one after the other, got sizes ", to.sizes(),
              " and strides ", to.strides(), "; fp8::dequantize(weight) gives the values");
}

/// True if a tensor is all of the weight, as it lies or transposed (a module that has it as [inputs, outputs]).
bool is_all(const WeightTag& tag, const at::Tensor& t) {
  return tag.is(t) || (learning(tag) == nullptr && tag.is(upright(t)));
}

void check_taking(const WeightTag& mine, const at::Tensor& to, const WeightTag& its, const at::Tensor& from) {
  const bool all = is_all(mine, to) && is_all(its, from) && mine.is(to) == its.is(from) && to.sizes() == from.sizes();
  if (!all) {
    TORCH_CHECK(learning(mine) == nullptr && scales_fit(mine, to, its, from), "[copy] ", mine.describe(),
                ": expected a copy of the whole weight, got sizes ", to.sizes(), " and ", from.sizes(), " of ",
                its.describe(), "; a part would have another scale than the rest");
    return;
  }
  if ((learning(mine) != nullptr && learning(its) != nullptr) || same_scales(mine, its)) return;
  TORCH_CHECK(its.handler->has_known_scales() && mine.handler->with_scales_of(its.handler) != nullptr, "[copy] ",
              mine.describe(), ": expected codes of the same scales, got those of ", its.describe(), kWayOut);
}

/// True if a storage is copied into another (Python's deepcopy of a tensor does).
bool copies_storage(const at::Tensor& to, const at::Tensor& from) {
  const auto* meta = from.unsafeGetTensorImpl()->get_backend_meta();
  return from.scalar_type() == at::kByte && to.scalar_type() == at::kByte &&
         dynamic_cast<const WholeStorage*>(meta) != nullptr && to.is_hpu() && to.dim() == 1 && to.is_contiguous() &&
         to.storage_offset() == 0 && to.numel() == from.numel() && to.storage().nbytes() == from.storage().nbytes() &&
         !tag_of_memory(to);
}

void copy_tags(const at::Tensor& to, const at::Tensor& from) {
  const auto copy = [&](const WeightTag& tag) {
    if (!tag.handler->owns_values()) return;
    const at::Tensor there = to.view(tag.dtype).as_strided(tag.sizes, tag.strides, tag.offset);
    auto own = c10::make_intrusive<WeightTag>(tag);
    if (auto handler = tag.handler->for_copy(there)) own->handler = std::move(handler);
    put_tag(there, std::move(own));
  };
  const auto block = tag_of_memory(from);
  if (const auto* one = dynamic_cast<const WeightTag*>(block.get())) copy(*one);
  if (const auto* several = dynamic_cast<const WeightTags*>(block.get())) {
    for (const auto& tag : several->tags) copy(*tag);
  }
}

/// A new copy of a watched weight (clone(), deepcopy of a parameter), while only its maker has it.
void watch_copy(const at::Tensor& to, const at::Tensor& from) {
  const Tag its = from.is_hpu() && to.is_hpu() ? tag_in_memory(from) : Tag();
  if (!its || its->handler->owns_values()) return;
  const bool learns = from.requires_grad() && at::GradMode::is_enabled(),
             fresh = to.use_count() == 1 && !learns && !to.requires_grad() && !tag_in_memory(to);
  if (!its->is(from) || !to.is_contiguous()) return;
  auto handler = its->handler->for_copy(to);  // also for casts and copies elsewhere
  if (handler == nullptr || !fresh || to.sizes() != from.sizes() || to.scalar_type() != from.scalar_type()) return;
  auto tag = c10::make_intrusive<WeightTag>(*its);
  tag->lie_at(to);
  tag->handler = std::move(handler);
  put_tag(to, std::move(tag));
}

}  // namespace

void check_weight_copy(const at::Tensor& to, const at::Tensor& from) {
  if (to.is_meta()) return;  // nothing is written
  const Codes mine = codes_of(to), its = codes_of(from);
  if (!mine.tag && !its.tag && !mine.mixed && !its.mixed) return;
  const WeightTag* tag = mine.tag ? mine.tag.get() : its.tag.get();
  if (to.scalar_type() != from.scalar_type()) {
    TORCH_CHECK(false, "[copy] ", tag != nullptr ? tag->describe() : "a weight",
                ": expected a copy of the same dtype, got ", from.scalar_type(), " -> ", to.scalar_type(),
                "; its codes are no values without the scale: fp8::dequantize(weight) gives the values");
  }
  if (same_elements(to, from)) return;
  TORCH_CHECK(
      !mine.mixed && !its.mixed, "[copy] ",
      tag != nullptr ? tag->describe() : "memory of several weights, or of a host copy whose storage was exchanged",
      ": expected codes of one weight, got some of others or of unknown scales, sizes ", to.sizes(), " and ",
      from.sizes());
  if (!mine.tag) return check_leaving(*its.tag, to, from);
  TORCH_CHECK(its.tag, "[copy] ", mine.tag->describe(),
              ": expected codes whose scales are known, got codes without a mark on ", from.device(), kWayOut);
  check_taking(*mine.tag, to, *its.tag, from);
}

void weight_copied(const at::Tensor& to, const at::Tensor& from) {
  if (copies_storage(to, from)) return copy_tags(to, from);
  watch_copy(to, from);
  const Codes mine = codes_of(to), its = codes_of(from);
  if (!its.tag || to.scalar_type() != from.scalar_type() || same_elements(to, from)) return;
  auto *parameter = mine.tag ? learning(*mine.tag) : nullptr, *source = learning(*its.tag);
  if (parameter != nullptr && source != nullptr) {
    if (parameter == source) return;
    parameter->record_place(to);
    if (from.is_hpu()) source->record_place(from);
    return parameter->adopt(*its.tag->handler);
  }
  if (mine.tag && (!is_all(*mine.tag, to) || same_scales(*mine.tag, *its.tag))) return;
  auto tag = c10::make_intrusive<WeightTag>(mine.tag ? *mine.tag : *its.tag);
  if (!mine.tag && is_image(*its.tag, to, from)) {
    tag->offset = to.storage_offset();
  } else {
    tag->lie_at(upright(to));
  }
  if (mine.tag) {
    tag->handler = mine.tag->handler->with_scales_of(its.tag->handler);
  } else if (auto own = its.tag->handler->for_copy(to)) {
    tag->handler = std::move(own);
  }
  put_tag(to, std::move(tag));
  if (to.is_cpu()) guard_host_codes(to);
}

void check_weight_replace(const WeightTag& tag, const at::Tensor& self, const at::Tensor& source) {
  if (!tag.handler->owns_values()) return;
  TORCH_CHECK(source.scalar_type() == tag.dtype, "[set_] ", tag.describe(), ": expected data of the same dtype, got ",
              source.scalar_type(), "; convert the module after loading, or load before converting");
  if (source.numel() == 0) return;
  const Codes its = codes_of(source);
  if (t_scales_come_later && learning(tag) != nullptr) return;
  TORCH_CHECK(its.tag, "[set_] ", tag.describe(),
              ": expected codes whose scales are known, got codes without a mark on ", source.device(), kWayOut);
  TORCH_CHECK(its.tag->handler->has_known_scales() || (same_scales(tag, *its.tag) && self.sizes() == source.sizes()),
              "[set_] ", tag.describe(), ": expected codes of the same scales, got those of ", its.tag->describe(),
              kWayOut);
}

void weight_replaced(const WeightTag& tag, const at::Tensor& source) {
  if (!source.is_hpu() && !host_block_of(source)) return;
  const auto there = tag_in_memory(source);
  const bool same =
      source.scalar_type() == tag.dtype && source.sizes() == at::IntArrayRef(tag.sizes) && source.is_contiguous();
  if (!same || (source.is_hpu() && block_of(source) == nullptr)) return;
  if (there && there->handler->has_known_scales() && (tag.handler->owns_values() || there->is(source)))
    return;  // a part of a watched weight may be one itself
  auto moved = c10::make_intrusive<WeightTag>(tag);
  moved->lie_at(source);
  if (source.is_cpu()) {
    if (auto own = tag.handler->for_copy(source)) moved->handler = std::move(own);
  }
  put_tag(source, std::move(moved));
}

ScalesComeLater::ScalesComeLater() : before_(t_scales_come_later) { t_scales_come_later = true; }
ScalesComeLater::~ScalesComeLater() { t_scales_come_later = before_; }

namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

/// Operators that need no values, beside views and composites, which come here again in parts. new_empty is none of
/// them: Python's deepcopy would copy the storage past this file.
bool is_allowed(const std::string& name) {
  static const auto names = io::words(R"(
      aten::copy_ aten::clone aten::_to_copy aten::copy aten::empty_like aten::_copy_from aten::lift aten::lift_fresh
      aten::is_pinned aten::set_ aten::_copy_from_and_resize aten::_has_same_storage_numel)");
  return std::ranges::find(names, name) != names.end();
}

/// Products and look-ups: what a module that was moved to the host computes, with the values of its weight.
bool computes_with_values(const std::string& name) {
  static const auto names = io::words(R"(
      aten::mm aten::addmm aten::mv aten::addmv aten::bmm aten::baddbmm aten::convolution aten::embedding)");
  return std::ranges::find(names, name) != names.end();
}

/// Puts the values of codes whose scales are known in their place.
void give_values(torch::jit::Stack& arguments) {
  for (c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined() || !is_guarded(argument.toTensor())) continue;
    const auto tag = tag_in_memory(argument.toTensor());
    if (!tag || !tag->handler->owns_values() || !tag->handler->has_known_scales()) continue;
    TORCH_WARN_ONCE("[cpu] ", tag->describe(),
                    ": it was moved to the host, which computes with its values in high precision; model.to(\"hpu\") "
                    "computes in fp8");
    argument = values_of_weight(argument.toTensor());
  }
}

/// Python's tolist() reads the memory after these.
bool reads_memory(const std::string& name) { return name == "aten::resolve_neg" || name == "aten::resolve_conj"; }

/// Codes are viewed as another type than bytes.
bool views_as_values(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  if (schema.name() != "aten::view" || schema.overload_name() != "dtype") return false;
  const auto dtype = arguments[1].toScalarType();
  return dtype != arguments[0].toTensor().scalar_type() && c10::elementSize(dtype) > 1;
}

bool goes_on(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const auto& name = op.schema().name();
  if (reads_memory(name) || views_as_values(op.schema(), arguments)) return false;
  return is_allowed(name) || returns_view(op.schema()) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

void refuse_codes(const std::string& op, const at::Tensor& t) {
  if (!t.defined() || !is_guarded(t) || !c10::isFloat8Type(t.scalar_type())) return;
  if (const auto tag = tag_in_memory(t)) tag->check_access(op, t);
  TORCH_CHECK(tag_in_memory(t), "[", op,
              "] the tensor is a part of a host copy of a converted weight whose memory was exchanged: its codes have "
              "no known scale");
}

void refuse_codes(const std::string& op, const c10::IValue& value) {
  if (value.isTensor()) return refuse_codes(op, value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& t : value.toListRef()) {
    if (t.isTensor()) refuse_codes(op, t.toTensor());
  }
}

void host_codes_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  if (computes_with_values(schema.name())) {
    torch::jit::Stack given = torch::jit::last(*stack, schema.arguments().size()).vec();
    give_values(given);
    std::copy(given.begin(), given.end(), stack->end() - static_cast<std::ptrdiff_t>(given.size()));
  }
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(stack->size() - schema.arguments().size());
  if (!goes_on(op, arguments)) {
    for (const auto& argument : arguments) refuse_codes(schema.name(), argument);
  }
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const bool copies = schema.name() == "aten::copy_", exchanges = schema.name() == "aten::set_";
  const at::Tensor to = copies || exchanges ? arguments[0].toTensor() : at::Tensor();
  const at::Tensor from =
      (copies || exchanges) && arguments.size() > 1 && arguments[1].isTensor() ? arguments[1].toTensor() : at::Tensor();
  const bool on_host = from.defined() && to.is_cpu() && from.is_cpu();  // else hpu's own kernel looks
  if (on_host && copies) check_weight_copy(to, from);
  if (on_host && exchanges) {
    if (const auto tag = tag_in_memory(to)) {
      check_weight_replace(*tag, to, from);
      weight_replaced(*tag, from);
    }
  }
  op.redispatchBoxed(below, stack);
  if (on_host && copies) weight_copied(to, from);
}

FP8_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&host_codes_kernel>()); }

}  // namespace

void guard_host_codes(const at::Tensor& cpu) {
  auto* impl = cpu.unsafeGetTensorImpl();
  if (is_guarded(cpu)) return;
  auto marked = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(impl->storage()),
                                                     impl->key_set() | c10::DispatchKeySet(kKey), impl->dtype());
  marked->set_sizes_and_strides(impl->sizes(), impl->strides(), impl->storage_offset());
  impl->shallow_copy_from(marked);
}

bool is_guarded(const at::Tensor& t) { return t.key_set().has(kKey); }

// Pickles (torch::save, Python's torch.save) hold a tensor's bytes and a table {str: bool} of what else it is. Codes of
// a converted weight put a line into it that names their scales, so that what is loaded is known as codes, and taken in
// by a module of the same
// scales alone:    "fp8_codes {json}": true

namespace {

constexpr std::string_view kPrefix = "fp8_codes ";

using Lines = std::unordered_map<std::string, bool>;

void write_line(const at::Tensor& t, Lines& lines) {
  if (!c10::isFloat8Type(t.scalar_type())) return;
  const auto tag = tag_in_memory(t);
  if (!tag || !tag->has_codes_of(t)) return;
  const bool one = tag->handler->one_scale();
  const io::Json line = {{"modules", tag->modules},
                         {"what", tag->handler->describe()},
                         {"one_scale", one},
                         {"scales", tag->is(t) || one ? tag->handler->scales() : ""}};
  lines[std::string(kPrefix) + line.dump()] = true;
}

void read_line(const at::Tensor& t, Lines& lines) {
  for (const auto& [key, value] : lines) {
    if (!key.starts_with(kPrefix) || !c10::isFloat8Type(t.scalar_type()) || t.numel() == 0) continue;
    const io::Json line = io::Json::parse(key.substr(kPrefix.size()), nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK(line.is_object() && line.contains("modules") && line["modules"].is_array() &&
                    line.value("what", io::Json()).is_string() && line.value("scales", io::Json()).is_string() &&
                    line.value("one_scale", io::Json()).is_boolean(),
                "[load] expected a description of fp8 codes, found '", key.substr(0, 200), "'");
    auto tag = c10::make_intrusive<WeightTag>();
    for (const auto& module : line["modules"])
      tag->modules.push_back(module.is_string() ? module.get<std::string>() : "?");
    tag->lie_at(t);
    tag->handler = std::make_shared<UnknownScales>(line["what"].get<std::string>(), line["scales"].get<std::string>(),
                                                   line["one_scale"].get<bool>());
    put_tag(t, std::move(tag));
    if (t.is_cpu()) guard_host_codes(t);
  }
}

struct Registration {
  Registration() {
    for (const auto device : {c10::DeviceType::HPU, c10::DeviceType::CPU}) {
      if (torch::jit::GetBackendMetaSerialization()[static_cast<std::size_t>(device)].has_value())
        continue;  // a vendor's
      torch::jit::GetBackendMetaAllowlist().insert(device);
      torch::jit::TensorBackendMetaRegistry(device, &write_line, &read_line);
    }
  }
};
const Registration g_registration;

}  // namespace
}  // namespace fp8::runtime
