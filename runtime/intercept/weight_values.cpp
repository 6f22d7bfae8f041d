// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Formatting.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/full_like_native.h>
#include <ATen/ops/rand_like_native.h>
#include <ATen/ops/randn_like_native.h>
#include <dlfcn.h>

#include <algorithm>
#include <sstream>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/weight_copy.h"

namespace fp8::runtime {
namespace {

bool on_host(const at::Tensor& t) { return t.is_cpu() && is_guarded(t); }

/// The tag of a tensor that holds codes of a converted weight, on hpu or in a copy on the host; else null.
c10::intrusive_ptr<WeightTag> codes_tag(const at::Tensor& t) {
  if (!t.defined()) return {};
  const WeightTag* found = t.is_cpu() ? nullptr : find_tag(t);
  auto tag = found != nullptr ? c10::intrusive_ptr<WeightTag>::reclaim_copy(const_cast<WeightTag*>(found))
             : on_host(t)     ? tag_in_memory(t)
                              : c10::intrusive_ptr<WeightTag>();
  return tag && tag->handler->owns_values() && t.scalar_type() == tag->dtype ? tag : c10::intrusive_ptr<WeightTag>();
}

/// True where every element of `t` is one of the tagged weight.
bool lies_within(const WeightTag& tag, const at::Tensor& t) {
  const auto last = [](at::IntArrayRef sizes, at::IntArrayRef strides) {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) at += (sizes[i] - 1) * strides[i];
    return at;
  };
  const std::int64_t first = t.storage_offset() - tag.offset;
  return t.numel() == 0 || (first >= 0 && first + last(t.sizes(), t.strides()) <= last(tag.sizes, tag.strides));
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                   std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  // at::print asks for this. No other code computes in f64 on the host with codes.
  const bool shown = dtype == at::kDouble && device.has_value() && device->is_cpu() && codes_tag(self);
  return at::native::_to_copy(shown ? values_of_weight(self) : self, dtype, layout, device, pin_memory, non_blocking,
                              memory_format);
}

/// New tensors "like" a converted weight are of the dtype of its values; codes of 0.3 would be 0.3125.
std::optional<at::ScalarType> dtype_like(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return !dtype.has_value() && codes_tag(self) ? values_dtype(self) : dtype;
}

at::Tensor full_like(const at::Tensor& self, const at::Scalar& value, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory,
                     std::optional<at::MemoryFormat> memory_format) {
  return at::native::full_like(self, value, dtype_like(self, dtype), layout, device, pin_memory, memory_format);
}

at::Tensor rand_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory,
                     std::optional<at::MemoryFormat> memory_format) {
  return at::native::rand_like(self, dtype_like(self, dtype), layout, device, pin_memory, memory_format);
}

at::Tensor randn_like(const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<at::Device> device, std::optional<bool> pin_memory,
                      std::optional<at::MemoryFormat> memory_format) {
  return at::native::randn_like(self, dtype_like(self, dtype), layout, device, pin_memory, memory_format);
}

/// Python's print takes codes for values (it calls half()) and has no hook in C++. Nothing happens where torch is not
/// there.
constexpr const char* kShowInPython = R"py(
def install():
    import sys
    torch = sys.modules.get("torch")
    shown = getattr(torch, "_tensor_str", None)
    if shown is None or getattr(shown._str, "shows_fp8", False):
        return
    plain, fp8 = shown._str, torch.ops.fp8
    def _str(self, *, tensor_contents=None):
        try:
            said = ""
            if (type(self) in (torch.Tensor, torch.nn.Parameter) and self.device.type in ("hpu", "cpu")
                    and self.dtype.is_floating_point and self.dtype.itemsize == 1):
                said = fp8.describe(self)
            values = fp8.values(self) if said else None
        except Exception:
            values = None
        if values is None:
            return plain(self, tensor_contents=tensor_contents)
        return plain(values, tensor_contents=tensor_contents)[:-1] + ", " + said + ")"
    _str.shows_fp8 = True
    shown._str = _str
install()
)py";

[[maybe_unused]] const bool g_shown_in_python = [] {
  const auto find = [](const char* name) { return dlsym(RTLD_DEFAULT, name); };
  auto* initialized = reinterpret_cast<int (*)()>(find("Py_IsInitialized"));
  auto* ensure = reinterpret_cast<int (*)()>(find("PyGILState_Ensure"));
  auto* release = reinterpret_cast<void (*)(int)>(find("PyGILState_Release"));
  auto* run = reinterpret_cast<int (*)(const char*)>(find("PyRun_SimpleString"));
  if (initialized == nullptr || ensure == nullptr || release == nullptr || run == nullptr || initialized() == 0)
    return false;
  const int state = ensure();
  const std::string in_a_space_of_its_own = std::string("exec('''") + kShowInPython + "''', {})";
  run(in_a_space_of_its_own.c_str());
  release(state);
  return true;
}();

FP8_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("_to_copy", &to_copy);
  m.impl("full_like", &full_like);
  m.impl("rand_like", &rand_like);
  m.impl("randn_like", &randn_like);
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("values(Tensor weight) -> Tensor", &values_of_weight);
  m.def("values_dtype(Tensor weight) -> ScalarType", &values_dtype);
  m.def("describe(Tensor weight) -> str", &describe_weight);
}

}  // namespace

at::Tensor values_of_weight(const at::Tensor& weight) {
  const auto tag = codes_tag(weight);
  TORCH_CHECK(tag,
              "[fp8::values] weight: expected a converted weight on hpu or a copy of one, found a tensor of dtype ",
              weight.scalar_type(), " on ", weight.device());
  if (on_host(weight)) {
    // A part, or its transpose, would lie there as a weight of its own: all of the weight goes.
    const at::Tensor part = weight.detach(), whole = part.as_strided(tag->sizes, tag->strides, tag->offset);
    TORCH_CHECK(whole.is_contiguous() && lies_within(*tag, part),
                "[fp8::values] weight: expected a part of the weight of "
                "module '",
                tag->module_names(), "', found sizes ", part.sizes(), " and strides ", part.strides());
    const at::Tensor values = values_of_weight(whole.to(at::kHPU)).cpu().contiguous();
    return values.as_strided(part.sizes(), part.strides(),
                             values.storage_offset() + part.storage_offset() - tag->offset);
  }
  const autocast::InsideOp inside(std::nullopt);  // a region would ask for its own dtype
  const at::Tensor w = weight.detach();
  if (const auto view = view_of(*tag, w); view.has_value()) return tag->handler->dequantize(*tag, *view, w);
  TORCH_CHECK(lies_within(*tag, w), "[fp8::values] weight: expected a part of the weight of module '",
              tag->module_names(), "', found sizes ", w.sizes(), " and strides ", w.strides());
  const at::Tensor whole = w.as_strided(tag->sizes, tag->strides, tag->offset);
  const at::Tensor values = tag->handler->dequantize(*tag, *view_of(*tag, whole), whole).contiguous();
  return values.as_strided(w.sizes(), w.strides(), values.storage_offset() + w.storage_offset() - tag->offset);
}

}  // namespace fp8::runtime

namespace fp8 {

at::ScalarType values_dtype(const at::Tensor& weight) {
  const auto tag = runtime::codes_tag(weight);
  if (!tag) return weight.scalar_type();
  // A parameter that learns in fp8 gets gradients of the dtype it stands for.
  const bool learns = tag->handler->quantized_parameter() != nullptr;
  if (learns && weight.is_leaf() && weight.requires_grad() && weight.grad_dtype().has_value())
    return *weight.grad_dtype();
  if (const auto known = tag->handler->values_dtype()) return *known;
  return runtime::values_of_weight(weight).scalar_type();
}

std::string describe_weight(const at::Tensor& weight) {
  const auto tag = runtime::codes_tag(weight);
  if (!tag) return "";
  std::ostringstream text;
  text << "weight of '" << tag->module_names() << "': " << tag->handler->describe();
  if (const at::Tensor known = tag->handler->scale_inv_values(); known.defined()) {
    const at::Tensor scales = known.detach().cpu().contiguous();
    const float* first = scales.const_data_ptr<float>();
    if (scales.numel() > 0) {
      const auto [least, most] = std::minmax_element(first, first + scales.numel());
      text << ", scale_inv " << *least;
      if (scales.numel() > 1) text << " to " << *most << " (" << scales.numel() << " values)";
    }
  }
  return text.str();
}

}  // namespace fp8

// std::cout << weight: LibTorch's operator<< calls at::print(), which knows no scales and has no hook. This definition
// of it is found first, since programs are linked to this library before LibTorch; it hands all but converted weights
// to LibTorch's.
//
//    0.5000 -1.2500
//    2.0000  0.2500
//   [ HPUFloat8_e4m3fnType{2,2}, weight of 'fc1': E4M3 tensor weights, scale_inv 0.25 ]

namespace {

using Print = std::ostream& (*)(std::ostream&, const at::Tensor&, std::int64_t);

Print of_libtorch() {
  static const auto print = reinterpret_cast<Print>(dlsym(RTLD_NEXT, "_ZN2at5printERSoRKNS_6TensorEl"));
  TORCH_CHECK(print != nullptr, "[print] expected LibTorch behind this library, found none");
  return print;
}

}  // namespace

namespace at {

std::ostream& print(std::ostream& stream, const Tensor& tensor, std::int64_t linesize) {
  const std::string weight = fp8::describe_weight(tensor);
  if (weight.empty()) return of_libtorch()(stream, tensor, linesize);
  std::ostringstream text;
  of_libtorch()(text, fp8::runtime::values_of_weight(tensor).to(at::kCPU, at::kDouble), linesize);
  const std::string values = text.str();
  std::ostringstream sizes;  // as LibTorch writes them: {4,6}
  for (std::int64_t i = 0; i < tensor.dim(); ++i) sizes << (i == 0 ? "{" : ",") << tensor.size(i);
  return stream << values.substr(0, values.rfind("[ ")) << "[ " << tensor.toString() << (tensor.dim() == 0 ? "{" : "")
                << sizes.str() << "}, " << weight << " ]";
}

}  // namespace at
