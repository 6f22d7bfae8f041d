// SPDX-License-Identifier: Apache-2.0
// How the results of calls looked that have run: sizes by earlier runs, no shape functions.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <unordered_map>

#include "fp8/runtime/lazy/call_key.h"

namespace fp8::runtime {

/// Of an operator, as its schema says; of a few, as a list does.
struct HeardOp {
  enum class Way {
    inside,  ///< it calls others, which are heard
    looks,   ///< it touches no element: a view, a tensor of elements that nobody set, a question about sizes
    now,     ///< what was called before it runs first: the host reads a value, sizes depend on values, memory is
             ///< replaced, another library's kernel
    random,  ///< now: its numbers are the host's next ones
    learns,  ///< its results look like those of an earlier call with such arguments
    step,    ///< of ours: it writes lists of tensors, by numbers that differ from call to call, and has no result
  };
  Way way = Way::now;
  bool writes = false;       ///< an argument
  bool ours = false;         ///< its kernel counts the writes, which nothing above it does
  bool takes_masks = false;  ///< of operands after the first those of Bool and Byte: their elements decide sizes

  explicit HeardOp(const c10::OperatorHandle& op);
};

/// A result of a known call.
struct KnownResult {
  enum class Kind {
    undefined,
    argument,  ///< the very tensor
    made,
  };
  Kind kind = Kind::undefined;
  std::size_t argument = 0;  ///< which of the arguments' tensors
  at::DimVector sizes = {}, strides = {};
  at::ScalarType dtype = at::kFloat;
  std::size_t bytes = 0;  ///< of its memory
  c10::DeviceIndex device = 0;
};

struct KnownCall {
  enum class Way { now, looks, later };
  Way way = Way::now;
  std::vector<KnownResult> results = {};  ///< of lists one after the other
  std::vector<int> lists = {};            ///< of each return: -1, or how many tensors its list has
  std::size_t made = 0;                   ///< how many results are
};

/// What a call did: learned from its arguments before and after it, and from its results.
class CallLesson {
 public:
  explicit CallLesson(at::ArrayRef<c10::IValue> arguments);
  KnownCall learn(const HeardOp& op, at::ArrayRef<c10::IValue> results) const;

 private:
  struct Before {
    at::Tensor tensor;
    c10::Storage memory;
    std::size_t bytes;
    at::DimVector sizes, strides;
    std::int64_t offset;
  };
  bool add(KnownCall& call, const at::Tensor& result, std::vector<const void*>& made) const;

  std::vector<Before> arguments_;
};

class KnownCalls {
 public:
  /// Stays where it is until forget().
  const KnownCall* find(const CallKey& key) const;
  void keep(const CallKey& key, KnownCall call);
  std::size_t size() const { return calls_.size(); }
  void forget() { calls_.clear(); }

 private:
  using Words = std::vector<std::uint64_t>;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const CallKey& key) const { return key.hash(); }
    std::size_t operator()(const std::pair<std::size_t, Words>& known) const { return known.first; }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(const CallKey& key, const std::pair<std::size_t, Words>& known) const {
      return key.words() == at::ArrayRef<std::uint64_t>(known.second);
    }
    bool operator()(const std::pair<std::size_t, Words>& known, const CallKey& key) const {
      return (*this)(key, known);
    }
    bool operator()(const std::pair<std::size_t, Words>& a, const std::pair<std::size_t, Words>& b) const {
      return a == b;
    }
  };
  std::unordered_map<std::pair<std::size_t, Words>, KnownCall, Hash, Equal> calls_;
};

}  // namespace fp8::runtime
