// SPDX-License-Identifier: Apache-2.0
// One seam for everything that touches the device's memory. A leaf is the outermost operation that does:
//
//   kernel   a call of the fallback or of a kernel of ours, an operator of hpu::, a cast or product of a handler, the
//            step of an optimizer
//   host     work on the host that has its place in the order: amax histories, scale updates, counters
//
//   LeafScope leaf("hpu::fp8_gemm_v2", a, b);     begins; leaves inside it are its business and are not seen
//   leaf.gives(y);                                 what came of it
//   ~LeafScope                                     ends; an exception leaves it without an end
//
// A LeafListener sees them: traces, profilers, what records an order to repeat it. While there is
// none a leaf costs one load, and kernels that have a shorter way for that case ask leaves_heard() first.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8::runtime {

/// An operand, for listeners.
struct LeafTensor {
  at::ScalarType type;
  c10::SmallVector<std::int64_t, 4> sizes;
  std::int64_t bytes = 0;  ///< of its elements
  bool on_hpu = true;
};

/// One leaf. Valid during the listener's call.
struct LeafRecord {
  std::string_view op;      ///< "aten::add.Tensor", "hpu::fp8_gemm_v2", "te::update_scales"
  std::string_view module;  ///< path of the innermost ModuleScope, or of the tag; "": none
  std::string_view phase;   ///< of the innermost PhaseScope: "forward", "optimizer"; "": none
  bool host = false;
  bool backward = false;        ///< within a node of autograd
  c10::DeviceIndex device = 0;  ///< of the first operand on hpu; -1: no operand so far is
  std::uint64_t thread = 0;     ///< the system's id
  std::int64_t begin_ns = 0;    ///< since 1970, as Kineto counts
  std::int64_t end_ns = 0;      ///< at the end only
  std::span<const LeafTensor> inputs, outputs;
  std::int64_t bytes = 0;  ///< of all operands: what was read and written at least; at the end
  std::int64_t flops = 0;  ///< additions and multiplications of a product; 0: not counted; at the end
  std::span<const std::pair<const char*, double>> notes;  ///< "amax", "saturated"; at the end
};

/// Called from the thread that runs the leaf, in order; several threads may call at once. Must not throw, nor run
/// operations on the device.
class LeafListener {
 public:
  virtual ~LeafListener() = default;
  virtual void leaf_begins(const LeafRecord&) {}
  virtual void leaf_ends(const LeafRecord&) {}
  /// True if casts shall find out their amax and how many values saturated: one more pass over them.
  virtual bool wants_numbers() const { return false; }
  /// True if a ModuleScope shall be an event "[pl][module]Type: path" for LibTorch's profilers.
  virtual bool wants_modules() const { return false; }
};

/// `listener` hears every leaf of the process while this lives. Throws std::logic_error where eight listen already.
class Listening {
 public:
  explicit Listening(LeafListener& listener);
  ~Listening();  ///< waits for calls that are on their way
  Listening& operator=(Listening&&) = delete;

 private:
  LeafListener* listener_;
};

namespace detail {
extern std::atomic<int> g_listeners;
struct LeafState;
struct LeafStateDeleter {
  void operator()(LeafState* state) const;
};
}  // namespace detail

/// True while there is a listener.
inline bool leaves_heard() { return detail::g_listeners.load(std::memory_order_relaxed) != 0; }

class LeafScope {
 public:
  /// op: lives as long as the scope. inputs: tensors, std::optional ones, lists of them; others are passed over.
  template <class... T>
  explicit LeafScope(const char* op, const T&... inputs) {
    if (!leaves_heard() || !begin(op)) [[likely]]
      return;
    (see(inputs), ...);
    start();
  }
  /// A boxed call.
  LeafScope(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
    if (leaves_heard()) [[unlikely]]
      begin_boxed(schema, arguments);
  }
  /// On the host.
  struct Host {
    const char* op;
  };
  explicit LeafScope(Host host);
  ~LeafScope() {
    if (state_) [[unlikely]]
      end();
  }
  LeafScope& operator=(LeafScope&&) = delete;

  template <class... T>
  void gives(const T&... outputs) {
    if (!state_) [[likely]]
      return;
    outputs_follow();
    (see(outputs), ...);
  }
  void gives(at::ArrayRef<c10::IValue> results);

  /// For shapes that do not give the number.
  void flops(std::int64_t count);
  void note(const char* name, double value);
  bool wants_numbers() const;

  static const LeafRecord* current();  ///< that this thread is in; null without one, or without listeners

 protected:
  bool begin(const char* op);  ///< false: within a leaf
  void start();
  void see(const at::Tensor& t);
  void see(const std::optional<at::Tensor>& t) {
    if (t.has_value()) see(*t);
  }
  void see(at::ArrayRef<at::Tensor> list) {
    for (const at::Tensor& t : list) see(t);
  }
  void see(const std::vector<at::Tensor>& list) { see(at::ArrayRef<at::Tensor>(list)); }

 private:
  void begin_boxed(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments);
  void see(const c10::IValue& value);
  void outputs_follow();
  void end();

  std::unique_ptr<detail::LeafState, detail::LeafStateDeleter> state_;
};

namespace detail {
/// An event of LibTorch's profilers. Begins before a leaf that is made after it, and ends after it.
class OpEvent {
 protected:
  template <class... T>
  explicit OpEvent(const char* op, const T&... inputs) : outermost_(enter(op)), event_(at::RecordScope::FUNCTION) {
    if (event_.isActive()) [[unlikely]]
      record(op, {c10::IValue(inputs)...});
  }

  ~OpEvent() {
    if (outermost_) leave();
  }
  OpEvent& operator=(OpEvent&&) = delete;

 private:
  static bool enter(const char* op);  ///< false: within another
  static void leave();
  void record(const char* op, std::initializer_list<c10::IValue> inputs);

  bool outermost_;
  at::RecordFunction event_;
};
}  // namespace detail

/// A leaf that no dispatcher sees: an event for LibTorch's profilers too.
class OpScope : detail::OpEvent, public LeafScope {
 public:
  template <class... T>
  explicit OpScope(const char* op, const T&... inputs) : OpEvent(op, inputs...), LeafScope(op, inputs...) {}

  static const char* current();  ///< the outermost one's op of this thread, whether heard or not; nullptr
};

void host_leaf(const char* op, const std::function<void()>& work);  ///< host_node() where there are listeners

/// A leaf on the host: `work` at its place in the order.
template <class Work>
void host_node(const char* op, Work&& work) {
  if (leaves_heard()) [[unlikely]]
    return host_leaf(op, work);
  work();
}

/// The module that this thread's leaves serve while it lives; with listeners, those of its backward too.
/// path and type live as long; type: "Fp8Linear", nullptr where it is not needed.
class ModuleScope {
 public:
  explicit ModuleScope(const std::string& path, const char* type = nullptr);
  ~ModuleScope();
  ModuleScope& operator=(ModuleScope&&) = delete;

  static std::string_view current();  ///< the innermost path of this thread; ""

 private:
  const std::string* previous_;
  std::int64_t first_node_ = -1;  ///< autograd's number of the first node made within; -1: without listeners
  std::unique_ptr<at::RecordFunction> event_;
};

/// The phase of a program: "forward", "loss", "backward", "clip", "optimizer". name: a literal.
class PhaseScope {
 public:
  explicit PhaseScope(const char* name);
  ~PhaseScope();
  PhaseScope& operator=(PhaseScope&&) = delete;

  static std::string_view current();

 private:
  const char* previous_;
};

}  // namespace fp8::runtime

namespace fp8::runtime::detail {

/// Additions and multiplications of a known operation from its operands' sizes; 0 of any other.
std::int64_t flops_of(std::string_view op, std::span<const LeafTensor> inputs, std::span<const LeafTensor> outputs);

}  // namespace fp8::runtime::detail

// FP8_TRACE=1: every leaf is a line on stderr, in order, with the module that it serves:
//
//   fp8 trace: hpu::cast_to_fp8_v2 [8, 256, 192] Float | model.layers.0.self_attn.q_proj
//
// Ops that were handed to a handler do not run and are not listed; what the handler runs instead is.

namespace fp8::runtime {

/// The line of a leaf, without its end.
std::string trace_line(const LeafRecord& leaf);

}  // namespace fp8::runtime
