// SPDX-License-Identifier: Apache-2.0
// The edge of runtime/ops: what every operator asks of its operands before its kernel sees them. Kernels are registered
// through an Edge; there is no other way in from programs.
//
//   devices   one device for all (dispatch/operand_devices.h). Scales may lie on the host: they are read there.
//   codes     a converted weight (runtime/intercept) is refused by name: the operator would take its codes for values,
//             or multiply them by a scale that is not theirs. Library code that has the scale at hand says so
//             (CodesWithScale).
//
// Operators made of ATen ops that ask themselves (copies, experts in high precision) have no need of the second.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <map>
#include <memory>

#include "fp8/runtime/device/block.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/dispatch/operand_devices.h"
#include "fp8/runtime/fp8_tensor/fp8_tensor.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::runtime::ops {

/// While it lives, operators called on this thread may be given codes of converted weights.
class CodesWithScale {
 public:
  CodesWithScale();
  ~CodesWithScale();
  CodesWithScale& operator=(CodesWithScale&&) = delete;
};

enum class Codes : std::uint8_t { refused, passed_on };

/// The checks of one call.
class EdgeCheck {
 public:
  EdgeCheck(const std::string& op, Codes codes) : op_(op), devices_(op), codes_(codes) {}

  void see(const at::Tensor& t, std::size_t argument) {
    if (!t.defined()) return;
    if (devices_.see(t)) host_ |= std::uint64_t{1} << argument;
    if (codes_ == Codes::refused) check_codes(t);
  }
  void see(const std::optional<at::Tensor>& t, std::size_t argument) {
    if (t.has_value()) see(*t, argument);
  }
  void see(at::TensorList list, std::size_t argument) {
    for (const at::Tensor& t : list) see(t, argument);
  }
  void see(const std::optional<at::TensorList>& list, std::size_t argument) {
    if (list.has_value()) see(*list, argument);
  }
  template <class Other>
  void see(const Other&, std::size_t) {}

  /// Host operands beside hpu ones.
  bool mixed() const { return devices_.mixed(); }
  /// Throws, or returns which arguments are to be moved; `schema`: the operator's.
  std::uint64_t settle(const c10::FunctionSchema& schema) const;
  at::Tensor moved(const at::Tensor& t) const {
    return t.defined() && t.device().is_cpu() && t.dim() > 0 ? devices_.moved(t) : t;
  }

 private:
  void check_codes(const at::Tensor& t) const;

  const std::string& op_;
  OperandDevices devices_;
  Codes codes_;
  std::uint64_t host_ = 0;  // by argument
};

/// The operator of that name and overload ("hpu::cast_to_fp8_v2.scalar").
c10::OperatorHandle operator_of(const std::string& op);

/// A kernel behind the checks.
template <class Function>
class Guarded;

template <class Result, class... Arguments>
class Guarded<Result(Arguments...)> {
 public:
  Guarded(std::string op, Codes codes, Result (*kernel)(Arguments...))
      : op_(std::move(op)),
        codes_(codes),
        kernel_(kernel),
        schema_(std::make_shared<std::atomic<const c10::FunctionSchema*>>()) {}

  Result operator()(Arguments... arguments) { return call(std::index_sequence_for<Arguments...>(), arguments...); }

 private:
  template <std::size_t... I>
  Result call(std::index_sequence<I...>, Arguments&... arguments) {
    EdgeCheck check(op_, codes_);
    (check.see(arguments, I), ...);
    if (!check.mixed()) return kernel_(arguments...);
    const std::uint64_t move = check.settle(schema());
    if (move == 0) return kernel_(arguments...);
    return kernel_(placed(check, (move >> I & 1) != 0, arguments)...);
  }

  /// Looked up at the first mixed call: kernels may be registered before schemas.
  const c10::FunctionSchema& schema() const {
    const c10::FunctionSchema* known = schema_->load(std::memory_order_acquire);
    if (known == nullptr) schema_->store(known = &operator_of(op_).schema(), std::memory_order_release);
    return *known;
  }

  static at::Tensor placed(const EdgeCheck& check, bool move, const at::Tensor& t) { return move ? check.moved(t) : t; }
  static at::Tensor& placed(const EdgeCheck&, bool, at::Tensor& t) {
    return t;
  }  // written: settle() refuses it on the host
  static std::optional<at::Tensor> placed(const EdgeCheck& check, bool move, const std::optional<at::Tensor>& t) {
    return move && t.has_value() ? std::optional(check.moved(*t)) : t;
  }
  static std::vector<at::Tensor> placed(const EdgeCheck& check, bool move, at::TensorList list) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& t : list) result.push_back(move ? check.moved(t) : t);
    return result;
  }
  template <class Other>
  static Other& placed(const EdgeCheck&, bool, Other& other) {
    return other;
  }

  std::string op_;
  Codes codes_;
  Result (*kernel_)(Arguments...);
  std::shared_ptr<std::atomic<const c10::FunctionSchema*>> schema_;
};

/// Registers kernels at HPU (or AutogradHPU): Edge(m, "hpu").impl("sum_fp8", &sum_fp8).
class Edge {
 public:
  Edge(torch::Library& library, const char* name_space) : library_(library), namespace_(name_space) {}

  template <class Result, class... Arguments>
  void impl(const char* name, Result (*kernel)(Arguments...), Codes codes = Codes::refused) {
    library_.impl(name, Guarded<Result(Arguments...)>(namespace_ + "::" + name, codes, kernel));
  }

 private:
  torch::Library& library_;
  std::string namespace_;
};

/// The name of an operator as a template argument.
template <std::size_t N>
struct OpName {
  char text[N];
  consteval OpName(const char (&name)[N]) { std::ranges::copy(name, text); }
};

/// The type in which an operator's kernel takes an argument of type T.
template <class T>
using Passed = std::conditional_t<
    std::is_same_v<T, std::string>, std::string_view,
    std::conditional_t<std::is_same_v<T, at::Tensor> || std::is_same_v<T, std::optional<at::Tensor>>, const T&, T>>;

/// The operator's result, by way of the dispatcher: call_op<"hpu::rms_norm", TwoTensors>(x, gamma, eps). The arguments
/// have the types of the schema's: a Tensor is no Tensor?, an int no int64_t.
template <OpName name, class Result, class... Arguments>
Result call_op(const Arguments&... arguments) {
  static const auto op = operator_of(name.text).template typed<Result(Passed<Arguments>...)>();
  return op.call(arguments...);
}

// Shared by the fp8 operators: scales as f32 arrays with broadcast strides.

using runtime::check_fp8;
using runtime::check_high_precision;
using runtime::dtype_of;
using runtime::float_type_of;
using runtime::format_of;
using runtime::is_fp8;
using runtime::is_high_precision;
using runtime::storage_of;

/// How the device in force reads E4M3 codes: gaudi2 on Gaudi2, else gaudi3 (= ocp). To be asked on the calling thread,
/// not in the pool's: a DeviceKindScope is a thread's own.
kernels::Dialect reading();

/// A scale argument: empty means 1; `shape` broadcasts against the tensor it scales.
struct Scale {
  std::vector<float> values;
  std::vector<std::int64_t> shape;
  bool none() const { return values.empty(); }
  bool per_tensor() const { return values.size() == 1; }
};

/// From an optional tensor (hpu or cpu, f32/bf16/f16) and an optional shape. Throws the vendor's text when numel(scale)
/// differs from prod(shape). Without a shape the tensor's own is taken.
Scale scale_of(const std::optional<at::Tensor>& scale, at::OptionalIntArrayRef shape);
Scale scale_of(double scale, at::OptionalIntArrayRef shape);
Scale scale_of(at::ArrayRef<double> scale, at::OptionalIntArrayRef shape);

/// Rounds the values to `type` (the vendor's ops take scales in the tensor's own arithmetic).
void round_to(Scale& scale, at::ScalarType type);

/// One scale, or one per row or column of the matrix that a tensor of `sizes` is (its last dimension being columns);
/// nullopt if the scale's shape broadcasts otherwise.
std::optional<kernels::ScaleLayout> broadcast_of(const Scale& scale, at::IntArrayRef sizes);

// Objects that operators hand out by number: Python and TorchScript hold an int, the one owner holds the object. An
// object lives until it is taken out; those left over live until the program ends (its end does not run their
// destructors).

/// Any thread may call; get() keeps the object alive while another thread takes it out.
template <class T>
class Handles {
 public:
  /// argument: what the operators call the number, in messages.
  explicit Handles(std::string argument) : argument_(std::move(argument)) {}

  /// Numbers begin at 1 and are never used again.
  std::int64_t add(std::shared_ptr<T> object) {
    const std::lock_guard<std::mutex> lock(mutex_);
    objects_.emplace(++last_, std::move(object));
    return last_;
  }
  /// Throws c10::Error "[fp8::measure_end] session: found 7, open are 1, 3".
  std::shared_ptr<T> get(const char* op, std::int64_t number) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = objects_.find(number);
    if (found != objects_.end()) return found->second;
    TORCH_CHECK(false, "[fp8::", op, "] ", argument_, ": found ", number, ", open are ",
                objects_.empty() ? "none" : io::joined(objects_ | std::views::keys));
  }
  /// False if another thread was first.
  bool take_out(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return objects_.erase(number) != 0;
  }

 private:
  const std::string argument_;
  mutable std::mutex mutex_;
  std::int64_t last_ = 0;
  std::map<std::int64_t, std::shared_ptr<T>> objects_;
};

// For autograd functions of our own that have first derivatives only.

/// The result of such a function's backward. First order passes; asking for a second derivative (create_graph) throws
/// by name instead of silently losing this part, by backward() and by autograd::grad() alike: "WHAT has no second
/// derivative", with a module "'MODULE': WHAT has ...". Call it inside of the function's backward; incoming: the
/// gradients that this got.
at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module = {},
                               at::TensorList incoming = {});

/// Throws by name where an input has a forward-mode tangent, which such a function would drop: "'MODULE': WHAT has no
/// forward-mode derivative".
void refuse_tangents(std::initializer_list<at::Tensor> inputs, std::string_view what, std::string_view module = {});

}  // namespace fp8::runtime::ops
