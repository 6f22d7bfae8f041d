// SPDX-License-Identifier: Apache-2.0
// One module under calibration: an observer for each of its tensors, and the measurement that comes of them.
//
// The dimension of channels (maxabs_per_channel) is that of the features, in INC's way:
//   linear, attention, mixtures     last of inputs and outputs      first of the weight [N, K]
//   matmul a . b                    a: last, b: last but one, output: last
//   convolution [B, C, ...]         C                               first of the weight [C_out, ...]
//   embedding                                                       first of the weight [rows, D]
// A key-value cache that is kept aside is measured per head: dimension H of [B, H, S, E].
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <any>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fp8/measure/observers/observer.h"

namespace fp8::measure {

/// A tensor of a module and who observes it.
struct WatchedTensor {
  std::unique_ptr<Observer> observer;
  bool seen = false;
};

enum class TensorRole : std::uint8_t { input, output, weight };

/// Settings that all observers of a calibration share.
struct ObserverSettings {
  ObserverType type;
  ObserverContext context;  ///< module, tensor and what depends on them are filled in by WatchedNode
};

class WatchedNode {
 public:
  /// dims: of the weight, 0 for a module without one. outputs: whether outputs are observed.
  WatchedNode(std::string module, const std::string& type, std::int64_t weight_dims, bool inputs, bool outputs);

  const std::string& module() const { return module_; }
  configs::ModuleKind kind() const { return kind_; }
  bool observes(TensorRole role) const;
  /// A key-value cache whose measurement other tools do not see: per head, without its output.
  void keep_aside() { aside_ = true; }
  bool is_aside() const { return aside_; }
  /// A holder of an expert's weight, which another module multiplies with: INC shows it a 0 so that it has a node.
  bool is_holder() const { return holder_; }
  bool has_weight() const { return weight_dims_ > 0; }

  /// The observer of one tensor, made at the first call.
  WatchedTensor& tensor(TensorRole role, std::size_t index, const ObserverSettings& settings);

  /// none: it was never called, or an input was not seen whole.
  std::optional<Measurement> measurement() const;
  /// The observers' states: {"inputs": [...], "outputs": [...]?, "weight": ...?}.
  io::Json states() const;

  /// All there is to know of the node so far, bit for bit: {"inputs": [state or null, ...], "outputs": [...], "weight":
  /// state or null}; null for what was not seen. A null as the whole: an observer has no state.
  io::Json snapshot() const;
  /// Puts a snapshot in place of what was seen. Throws io::Error; `where` stands in its messages.
  void restore(const io::Json& snapshot, const ObserverSettings& settings, const std::string& where);
  /// Forgets what was seen of the outputs.
  void forget_outputs();

 private:
  ObserverContext context_for(TensorRole role, std::size_t index, const ObserverContext& base) const;

  std::string module_;
  configs::ModuleKind kind_;
  std::int64_t weight_dims_;
  bool holder_, watch_inputs_, watch_outputs_, aside_ = false;
  std::vector<WatchedTensor> inputs_, outputs_;
  WatchedTensor weight_;
};

// The amax of tensors looked at a moment ago: q, k and v read one x, and what softmax gives is what the next product
// takes. A tensor that meets several watched modules is looked at once.

/// max |t|, on the CPU's view of the memory; NaN if any is NaN, 0 for no elements.
float amax_of(const at::Tensor& t);

class TensorMemory {
 public:
  struct Entry {
    float amax = 0;
    std::any memo;  ///< results of observers about the tensor, kept for the others
  };

  /// The entry of `t`, made if it is not among the last few, or was written to since. Valid until the next call.
  /// read: false leaves amax 0, nothing is read.
  Entry& find(const at::Tensor& t, bool read);
  void clear();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Slot {
    /// Weak, so that the tensor and its graph can go. It keeps the address from being given to another tensor, so the
    /// same address is the same tensor.
    WeakTensor tensor{c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
    std::uint32_t version = 0;
    Entry entry;
  };
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
  Entry uncached_;
};

}  // namespace fp8::measure
