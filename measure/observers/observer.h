// SPDX-License-Identifier: Apache-2.0
// Observers: what calibration keeps of the tensors it sees. One observer object belongs to one tensor of one module
// ("input0" of "model.layers.0.q_proj") and sees it at every call; its result goes into the measurement file.
//
// observer.h has the table of those that there are, and says how to bring one of your own. Quantizing makes the scales
// of activations of what an observer found (of channels the largest), those of weights of the weights themselves; a
// weight's own value tells whether the file is of this model.
#pragma once
#include <ATen/core/Tensor.h>

#include <any>
#include <atomic>

#include "fp8/configs/module_types.h"
#include "fp8/measure/files/observer_types.h"

namespace fp8::measure {

/// A tensor that calibration shows to observers: without NaN and Inf, those are never shown.
class Observed {
 public:
  /// memo: kept as long as the same tensor is looked at again (q, k and v read one x).
  Observed(at::Tensor tensor, float amax, std::any* memo) : tensor_(std::move(tensor)), amax_(amax), memo_(memo) {}

  /// As the op met it, on the CPU (the device's memory, no copy); any dtype, any strides.
  const at::Tensor& tensor() const { return tensor_; }
  /// tensor(), contiguous, of dtype f32, bf16 or f16 (other types become f32).
  const at::Tensor& values() const;
  float amax() const { return amax_; }  ///< max |x|; 0 for no elements and where reads_values is false
  /// Room for what an observer found out about the tensor, for the other observers of the same tensor.
  std::any& memo() const { return *memo_; }

 private:
  at::Tensor tensor_;
  mutable at::Tensor values_;
  float amax_;
  std::any* memo_;
};

/// Slices [first, first + n) along dimension `dim` (0 is the outermost) of a tensor of `sizes`.
struct PartOf {
  std::int64_t first = 0, dim = 0;
  at::IntArrayRef sizes = {};
};

/// Called by one thread at a time.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void observe(const Observed& x) = 0;
  /// A part of a tensor that is never in memory whole: after all its parts the observer is as if it had seen it at
  /// once. Asked of types that take parts; the default throws std::invalid_argument.
  virtual void observe_part(const Observed& part, const PartOf& of);
  /// The result for the measurement file: one value, one per channel, or sizes. Finite, >= 0.
  virtual Amax result() const = 0;

  /// Takes in what another observer of the same kind saw (another rank, another run): as if this one had seen both.
  /// The default throws std::invalid_argument: not every observer can.
  virtual void merge(const Observer& other);
  /// Returns the whole state of the observer, bit for bit; restore() reads it back. Merging needs it, and so does a
  /// calibration that resumes after its process was killed. null (the default): nothing is kept. restore() throws
  /// io::Error; `where` stands in its messages.
  virtual io::Json state() const { return nullptr; }
  virtual void restore(const io::Json& state, const std::string& where);
};

/// The tensor and the settings that an observer is made for.
struct ObserverContext {
  std::string module = {};  ///< "model.layers.0.self_attn.q_proj"
  std::string tensor = {};  ///< "input0", "output0", "weight"
  configs::ModuleKind kind = configs::ModuleKind::linear;
  std::int64_t channel_dim = -1;  ///< the dimension of channels: -1 the last, 0 the first
  bool per_expert = false;        ///< a stack of experts' weights [E, N, K]: one result for each
  std::optional<std::int64_t> head_dim =
      {};  ///< of a key-value cache: the dimension of heads, one result for each (ObserverType::keeps_heads)
  recipes::Format format = recipes::Format::E4M3;              ///< of the tensor's later cast,
  float fp8_max = 448.0f;                                      ///< and where that cast saturates
  std::map<std::string, double, std::less<>> parameters = {};  ///< scale_params of the QUANT_CONFIG
  bool affordable =
      false;  ///< thresholds clip only what they can afford (affordable_threshold()); calibrations ask for it
  std::filesystem::path folder = {};  ///< of the measurement files
  std::optional<configs::Rank> rank = {};
  std::shared_ptr<std::atomic<std::int64_t>> bytes_saved = {};  ///< by all observers of the calibration; may be null

  /// Its value in `parameters`, or what it is otherwise. Throws std::invalid_argument for one beyond its limits.
  double parameter(const configs::ObserverParameter& parameter) const;
};

// Observers by name, ready to be made; observer_types.h has the table.
//
// One of your own, in force while the registration lives:
//
//   struct FirstCall final : fp8::measure::Observer {
//     std::optional<float> amax;
//     void observe(const fp8::measure::Observed& x) override { if (!amax) amax = x.amax(); }
//     fp8::measure::Amax result() const override { return {amax.value_or(0.0f)}; }
//   };
//   const fp8::measure::ObserverRegistration mine({.name = "first_call", .make = [](const auto&) {
//     return std::make_unique<FirstCall>();
//   }});
//   options.observer = "first_call";   // or "observer": "first_call" in a QUANT_CONFIG

/// The row, with `make`. Throws std::invalid_argument naming those in force if there is none of that name.
ObserverType find_observer(const std::string& name);

/// Makes one of the library's observers, whose rows stand in observer_types.cpp without `make`. name: of such a row.
std::unique_ptr<Observer> make_built_in(std::string_view name, const ObserverContext& context);

// The states of observers (measurement_file.h), merged by the observers themselves.

/// Takes in another rank's or run's states, module by module. Throws io::Error if observer, parameters, or the numbers
/// of a module's tensors differ; `where` (the other's file) stands in its messages.
void merge(ObserverStates& into, const ObserverStates& other, const std::string& where);

/// Puts what the observers make of their states in place of the values of `file`. Modules without a state stay.
void apply(const ObserverStates& states, MeasurementFile& file, const std::string& where);

}  // namespace fp8::measure
