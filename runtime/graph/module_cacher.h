// SPDX-License-Identifier: Apache-2.0
// Graphs of a module or a function, one for each kind of call: make_graphed_callables(), wrap_in_hpu_graph() and
// ModuleCacher, with the vendor's names.
//
//   Sequential net = ...;                             on hpu
//   ModuleCacher graphed(net);
//   loss_of(graphed(x)).backward();                   runs, and is captured
//   loss_of(graphed(x)).backward();                   is replayed: net's code is not called
//
// A kind of call: sizes, strides, dtypes and gradients of the inputs, which of them share memory, training or not,
// gradients on or off, autocast, how many parts a module has. Where a parameter, or any tensor that was read and is no
// input, has other memory since (set_data, load, convert) the call is captured anew. What can't be captured runs as it
// is, and all beyond max_graphs.
// Results are tensors of their own, not buffers that the next call fills.
#pragma once
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/modules/container/any.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>

#include <map>

#include "fp8/runtime/graph/graphed_call.h"

namespace fp8::runtime {

/// What is captured: the function, and what of its state decides how it runs.
struct GraphCallable {
  GraphFunction call;
  std::function<bool()> is_training = [] { return false; };
  /// Another where the module has got more parts: an adapter that is attached leaves the tensors that were read.
  std::function<std::size_t()> parts = [] { return std::size_t{0}; };

  GraphCallable(GraphFunction function) : call(std::move(function)) {}  // NOLINT: any function is one
  GraphCallable(torch::nn::Sequential module);                          // NOLINT
  /// Of one tensor, or two, ...: as many as the module's forward takes, four at most.
  GraphCallable(torch::nn::AnyModule module);  // NOLINT
};

struct GraphOptions {
  std::int64_t max_graphs = 10;  ///< further kinds of calls run as they are
};

struct GraphCounts {
  std::int64_t captured = 0, replayed = 0, eager = 0;
};

/// How many modules and parameters there are in it.
std::size_t count_parts(const torch::nn::Module& module);

/// Graphs by kind of call.
class GraphCache {
 public:
  explicit GraphCache(GraphOptions options = {});

  enum class Way { replay, capture, as_it_is };
  /// How this call runs, and counts it. more: what else decides how it does. replay: call->again(inputs); capture:
  /// call->first(f, inputs), or abandon() where that throws.
  struct Decision {
    Way way = Way::as_it_is;
    std::shared_ptr<GraphedCall> call;
  };
  Decision decide(at::TensorList inputs, bool training, const std::string& more = "");
  void abandon(const std::shared_ptr<GraphedCall>& call);

  /// Lets go of all graphs, and of their memory.
  void clear() { calls_.clear(); }
  const GraphCounts& counts() const { return counts_; }
  void count_bypass() { ++counts_.eager; }
  /// Why calls run as they are, by kind of call; empty: none does.
  std::vector<std::string> refusals() const;

 private:
  GraphOptions options_;
  GraphCounts counts_;
  std::map<std::string, std::shared_ptr<GraphedCall>> calls_;
};

class ModuleCacher {
 public:
  explicit ModuleCacher(GraphCallable callable, GraphOptions options = {});
  /// Throws what the callable throws.
  std::vector<at::Tensor> operator()(at::TensorList inputs);
  at::Tensor operator()(const at::Tensor& input);  ///< of one input and one result
  /// The callable itself.
  std::vector<at::Tensor> bypass(at::TensorList inputs);
  void clear_cache() { cache_.clear(); }
  const GraphCounts& counts() const { return cache_.counts(); }
  std::vector<std::string> refusals() const { return cache_.refusals(); }

 private:
  GraphCallable callable_;
  GraphCache cache_;
};

}  // namespace fp8::runtime
