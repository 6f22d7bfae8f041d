// SPDX-License-Identifier: Apache-2.0
// Operations that aten lacks for float8 tensors on hpu, where programs compare and rescale them as values. Codes are
// read as the device in force reads them (gaudi2: infinity and NaN from 0x78 on), arithmetic is f32.
//
//   add sub rsub mul div neg abs   float8 with float8 of the same dtype, or with a number or 0-dim tensor: result
//                                  float8, RNE, saturating as the device does; Scalar and out forms and in place too
//   eq ne lt le gt ge isnan isinf  bool
//   sum                            f32 sums; the dtype asked for, else float8 again (as hpu::sum_fp8)
//   isclose, allclose              of the values in f32; a tagged weight's are what its handler dequantizes
//
// PyTorch's promotions hold: float8 beside a tensor of another dtype stays refused. Everything else either moves codes
// (cat, index, where, ...) or is refused by name (dispatch/fallback.h).
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isclose_native.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>

#include "fp8/runtime/dispatch/pointwise.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/ops/cast/cast.h"

namespace fp8::runtime::ops {
namespace {

void check_access(const std::string& op, const at::Tensor& t) {
  if (const Block* block = block_of(t); block != nullptr && block->tag) block->tag->check_access(op, t);
}

at::Tensor plain(const at::Tensor& t) { return is_fp8(t.scalar_type()) ? cast_from_fp8(t, Scale{}, at::kFloat) : t; }

/// Codes of a tagged weight have a scale that only its handler knows.
at::Tensor values_of(const at::Tensor& t) {
  const WeightTag* tag = find_tag(t);
  if (tag == nullptr || !tag->handler->owns_values() || t.scalar_type() != tag->dtype) return plain(t);
  const auto view = view_of(*tag, t);
  TORCH_CHECK(view.has_value(), "[aten::isclose] the weight of module '", tag->module_names(), "' is ", tag->dtype,
              ": expected all of it or whole rows, got sizes ", t.sizes(), " and strides ", t.strides());
  return tag->handler->dequantize(*tag, *view, t);
}

/// Rounds the f32 result.
enum class Result : std::uint8_t {
  value,      ///< float8 again
  predicate,  ///< bool
  sum,        ///< the dtype asked for, else float8 again
};

struct Row {
  const char* op;
  Result result;
};

/// Value arithmetic on codes. Each name stands for all of its overloads (Tensor, Scalar, out) and for the op in place.
constexpr Row kArithmetic[] = {
    {"add", Result::value},    {"sub", Result::value},       {"rsub", Result::value},      {"mul", Result::value},
    {"div", Result::value},    {"neg", Result::value},       {"abs", Result::value},       {"eq", Result::predicate},
    {"ne", Result::predicate}, {"lt", Result::predicate},    {"le", Result::predicate},    {"gt", Result::predicate},
    {"ge", Result::predicate}, {"isnan", Result::predicate}, {"isinf", Result::predicate}, {"sum", Result::sum}};

/// The row of "aten::add_"; null if there is none.
const Row* row_of(std::string_view name) {
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return nullptr;
  name.remove_prefix(kAten.size());
  if (!name.empty() && name.back() == '_') name.remove_suffix(1);
  for (const Row& row : kArithmetic)
    if (name == row.op) return &row;
  return nullptr;
}

bool holds_codes(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && is_fp8(value.toTensor().scalar_type());
}

/// The dtype that PyTorch's promotion gives the result; refuses what PyTorch refuses, in its words.
at::ScalarType promoted(const c10::FunctionSchema& op, at::ArrayRef<c10::IValue> arguments) {
  const at::Tensor& a = arguments[0].toTensor();
  if (arguments.size() < 2 || op.arguments()[1].name() != "other") return a.scalar_type();
  return arguments[1].isTensor() ? at::result_type(a, arguments[1].toTensor())
                                 : at::result_type(a, arguments[1].toScalar());
}

at::Tensor rounded(const at::Tensor& y, at::ScalarType type) {
  return is_fp8(type) ? std::get<0>(cast_to_fp8_v2(y.to(at::kFloat), Scale{}, false, false, type)) : y.to(type);
}

/// A call with codes among its arguments, as the same call on their values in f32.
class ValueCall {
 public:
  ValueCall(const c10::OperatorHandle& op, const Row& row, at::ArrayRef<c10::IValue> given)
      : schema_(op.schema()), row_(row), type_(promoted(op.schema(), given)), arguments_(given.begin(), given.end()) {
    for (std::size_t i = 0; i < arguments_.size(); ++i) take(i);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::HPU), &arguments_);
  }

  at::Tensor result() const {
    at::Tensor y = arguments_.back().toTensor();
    if (row_.result != Result::predicate) y = rounded(y, type_);
    if (!written_.defined()) return y;
    TORCH_CHECK(row_.result == Result::predicate || c10::canCast(y.scalar_type(), written_.scalar_type()), "[",
                schema_.name(), "] result type ", y.scalar_type(), " can't be cast to the desired output type ",
                written_.scalar_type());
    if (is_out_ && written_.sizes() != y.sizes()) written_.resize_(y.sizes());
    return written_.copy_(y);
  }

 private:
  void take(std::size_t i) {
    const c10::Argument& argument = schema_.arguments()[i];
    c10::IValue& value = arguments_[i];
    if (row_.result == Result::sum && argument.name() == "dtype") {
      if (value.isNone()) return;
      type_ = value.toScalarType();
      if (is_fp8(type_)) value = c10::IValue();  // summed in f32
    }
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const at::Tensor t = value.toTensor();
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      is_out_ = argument.is_out();
      if (!is_out_ && !is_fp8(t.scalar_type())) return;  // in place on values: the op itself writes
      written_ = t;
      const bool predicate = row_.result == Result::predicate;
      if (is_out_) {
        value = at::empty({0}, t.options().dtype(predicate ? at::kBool : is_fp8(type_) ? at::kFloat : type_));
        return;
      }
    }
    if (is_fp8(t.scalar_type())) value = cast_from_fp8(t, Scale{}, at::kFloat);
  }

  const c10::FunctionSchema& schema_;
  const Row& row_;
  at::ScalarType type_;
  torch::jit::Stack arguments_;
  at::Tensor written_;
  bool is_out_ = false;
};

/// The ops above but isclose, of float8 (runtime::BeforeFallback). A tagged weight is refused by name.
bool take_float8(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const auto arguments = at::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count);
  if (std::none_of(arguments.begin(), arguments.end(), holds_codes)) return false;
  for (const c10::IValue& value : arguments)
    if (value.isTensor()) check_access(op.schema().name(), value.toTensor());
  settle_devices(op.schema(), *stack, count);
  const at::Tensor y = ValueCall(op, *row_of(op.schema().name()), arguments).result();
  torch::jit::drop(*stack, count);
  stack->emplace_back(y);
  return true;
}

/// aten::isclose; self and other of one dtype.
at::Tensor isclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol, bool equal_nan) {
  if (self.scalar_type() != other.scalar_type() || !is_fp8(self.scalar_type()))
    return at::native::isclose(self, other, rtol, atol, equal_nan);
  return at::native::isclose(values_of(self), values_of(other), rtol, atol, equal_nan);
}

using Kind = kernels::Pointwise;
using Boxed = BeforeFallback<&take_float8>;

/// Operations that models use often.
constexpr UnboxedRow kUnboxedArithmetic[] = {
    {"aten::abs", add_pointwise<Kind::abs, at::_ops::abs, Boxed>},
    {"aten::abs_", add_pointwise<Kind::abs, at::_ops::abs_, Boxed>},
    {"aten::add.Scalar", add_pointwise<Kind::add, at::_ops::add_Scalar, Boxed>},
    {"aten::add_.Scalar", add_pointwise<Kind::add, at::_ops::add__Scalar, Boxed>},
    {"aten::add.Tensor", add_pointwise<Kind::add, at::_ops::add_Tensor, Boxed>},
    {"aten::add_.Tensor", add_pointwise<Kind::add, at::_ops::add__Tensor, Boxed>},
    {"aten::div.Scalar", add_pointwise<Kind::div, at::_ops::div_Scalar, Boxed>},
    {"aten::div_.Scalar", add_pointwise<Kind::div, at::_ops::div__Scalar, Boxed>},
    {"aten::div.Tensor", add_pointwise<Kind::div, at::_ops::div_Tensor, Boxed>},
    {"aten::div_.Tensor", add_pointwise<Kind::div, at::_ops::div__Tensor, Boxed>},
    {"aten::mul.Scalar", add_pointwise<Kind::mul, at::_ops::mul_Scalar, Boxed>},
    {"aten::mul_.Scalar", add_unboxed<at::_ops::mul__Scalar, Boxed>},  // a number rounded to bf16
    {"aten::mul.Tensor", add_pointwise<Kind::mul, at::_ops::mul_Tensor, Boxed>},
    {"aten::mul_.Tensor", add_pointwise<Kind::mul, at::_ops::mul__Tensor, Boxed>},
    {"aten::neg", add_pointwise<Kind::neg, at::_ops::neg, Boxed>},
    {"aten::neg_", add_pointwise<Kind::neg, at::_ops::neg_, Boxed>},
    {"aten::sub.Scalar", add_pointwise<Kind::sub, at::_ops::sub_Scalar, Boxed>},
    {"aten::sub_.Scalar", add_pointwise<Kind::sub, at::_ops::sub__Scalar, Boxed>},
    {"aten::sub.Tensor", add_pointwise<Kind::sub, at::_ops::sub_Tensor, Boxed>},
    {"aten::sub_.Tensor", add_pointwise<Kind::sub, at::_ops::sub__Tensor, Boxed>},
    {"aten::sum.dim_IntList", add_unboxed<at::_ops::sum_dim_IntList, Boxed>},
};

/// Every overload of the table's ops that has tensors and is no composite; register_ops.cpp leaves their names to us.
void register_arithmetic(torch::Library& m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (row_of(name.name) == nullptr) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const auto& arguments = op->schema().arguments();
    if (arguments.empty() || arguments[0].type()->kind() != c10::TypeKind::TensorType) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (!has_row(kUnboxedArithmetic, full)) add_boxed<Boxed>(*op);
  }
  register_rows(kUnboxedArithmetic, m);
}

FP8_LIBRARY_IMPL(aten, HPU, m) {
  register_arithmetic(m);
  m.impl("isclose", &isclose);
}
FP8_LIBRARY_IMPL(aten, AutogradHPU, m) { m.impl("isclose", &isclose); }

}  // namespace
}  // namespace fp8::runtime::ops
