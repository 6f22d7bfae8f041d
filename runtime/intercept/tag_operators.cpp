// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/intercept/tag_operators.h"

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime {

std::string tag_of(const at::Tensor& weight) {
  const auto on_host = tag_in_memory(weight);
  const WeightTag* tag = weight.is_cpu() ? on_host.get() : find_tag(weight);
  if (tag == nullptr) return "null";
  const auto view = view_of(*tag, weight);
  const io::Json json = {{"modules", tag->modules},
                         {"dtype", c10::toString(tag->dtype)},
                         {"sizes", tag->sizes},
                         {"handler", tag->handler->describe()},
                         {"holds_codes", tag->handler->owns_values()},
                         {"whole", view.has_value() && view->whole}};
  return json.dump();
}

at::Tensor dequantize(const at::Tensor& weight) {
  if (weight.is_cpu() && tag_in_memory(weight)) return runtime::dequantize(weight.detach().to(at::kHPU)).to(at::kCPU);
  const WeightTag* tag = find_tag(weight);
  auto view = tag == nullptr ? std::nullopt : view_of(*tag, weight);
  if (tag != nullptr && !view.has_value() && tag->has_codes_of(weight) && tag->handler->one_scale()) {
    view = WeightView{.rows = 1,
                      .cols = weight.numel()};  // one number for every element: where it lies makes no difference
  }
  TORCH_CHECK(tag != nullptr,
              "[fp8::dequantize] weight: expected a tagged weight on hpu, found an untagged tensor of dtype ",
              weight.scalar_type(), " on ", weight.device());
  TORCH_CHECK(view.has_value(), "[fp8::dequantize] weight: expected the weight of module '", tag->module_names(),
              "' or rows, columns or the transpose of it, found sizes ", weight.sizes(), " and strides ",
              weight.strides());
  const autocast::InsideOp inside(std::nullopt);  // a region would ask for its own dtype
  const at::Tensor whole = weight.detach(), values = tag->handler->dequantize(*tag, *view, whole);
  return values.is_same(whole) ? whole.clone() : values;  // a handler that only watches gives the weight itself
}

void retag(const at::Tensor& source, const at::Tensor& to) {
  const WeightTag* found = find_tag(source);
  TORCH_CHECK(found != nullptr,
              "[fp8::retag] source: expected a tagged weight on hpu, found an untagged tensor of dtype ",
              source.scalar_type(), " on ", source.device());
  const WeightTag tag = *found;  // `to` may be in the same memory
  const auto view = view_of(tag, source);
  TORCH_CHECK(view.has_value() && view->whole && !view->transposed,
              "[fp8::retag] source: expected the whole weight of module '", tag.module_names(),
              "', found a view of sizes ", source.sizes());
  TORCH_CHECK(tag.handler->quantized_parameter() == nullptr, "[fp8::retag] source: the weight of module '",
              tag.module_names(), "' learns in fp8 (", tag.handler->describe(),
              "): its handler answers for no other memory");
  TORCH_CHECK(
      to.is_hpu() && to.is_contiguous() && to.scalar_type() == tag.dtype && to.sizes() == at::IntArrayRef(tag.sizes),
      "[fp8::retag] to: expected a contiguous tensor on hpu of sizes ", at::IntArrayRef(tag.sizes), " and dtype ",
      tag.dtype, ", found sizes ", to.sizes(), ", strides ", to.strides(), " and dtype ", to.scalar_type(), " on ",
      to.device());
  for (const auto& module : tag.modules) tag_weight(to, module, tag.handler);
}

void untag(const at::Tensor& weight) {
  const WeightTag* tag = find_tag(weight);
  if (tag == nullptr) return;
  TORCH_CHECK(!tag->handler->owns_values(), "[fp8::untag] weight: the weight of module '", tag->module_names(), "' is ",
              tag->dtype, " (", tag->handler->describe(),
              "): without the mark its codes would be taken for values; fp8::dequantize gives the values");
  tag->handler->taken_off();
  untag_weight(weight);
}

void check_one_for_each(const char* op, const char* argument, std::size_t found, const char* of, std::size_t expected) {
  TORCH_CHECK(found == expected, "[fp8::", op, "] ", argument, ": found ", found, ", expected ", expected,
              " (one for each of ", of, ")");
}

void check_dense(const char* op, const char* argument, const std::string& name, const at::Tensor& tensor) {
  const bool dense =
      tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_quantized() && !tensor.is_meta();
  TORCH_CHECK(dense, "[fp8::", op, "] ", argument, ": ", name, ": expected a dense tensor with memory, found ",
              tensor.is_nested() ? "Nested" : c10::toString(tensor.scalar_type()), " ", tensor.layout(), " on ",
              tensor.device());
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("tag_of(Tensor weight) -> str", &tag_of);
  m.def("dequantize(Tensor weight) -> Tensor", &dequantize);
  m.def("retag(Tensor source, Tensor(a!) to) -> ()", &retag);
  m.def("untag(Tensor(a!) weight) -> ()", &untag);
}

}  // namespace fp8::runtime
