// SPDX-License-Identifier: Apache-2.0
// Graphs of a module or a function, one for each kind of call: make_graphed_callables(), wrap_in_hpu_graph() and
// ModuleCacher, with the vendor's names.
//
//   Sequential net = ...;                             on hpu
//   ModuleCacher graphed(net);
//   loss_of(graphed(x)).backward();                   runs, and is captured
//   loss_of(graphed(x)).backward();                   is replayed: net's code is not called
//
// A kind of call: sizes, strides, dtypes and gradients of the inputs, which of them share memory, which parts of a
// module train, gradients on or off, autocast. Where a module has other parts or parameters since, or a parameter, or
// any tensor that was read and is no input, other memory (set_data, load, convert) the call is captured anew. What
// can't be captured runs as it is, and all beyond max_graphs.
// Results are tensors of their own, not buffers that the next call fills.
#pragma once
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/nn/modules/container/any.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>

#include <map>

#include "fp8/runtime/graph/graphed_call.h"

namespace fp8::runtime {

/// What is captured: the function, and the module whose state decides how it runs.
struct GraphCallable {
  GraphFunction call;
  std::shared_ptr<const torch::nn::Module> module = nullptr;

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

/// The parts of a module as calls find them. Nobody tells of changes, so each call looks; it holds what it saw last.
class ModuleParts {
 public:
  void look(const torch::nn::Module& module);
  const std::string& modes() const { return modes_; }  ///< of each part whether it trains
  /// Another each time that parts or parameters are others: an adapter that is attached leaves the tensors that were
  /// read, and an optimizer may hold a parameter that was replaced.
  std::int64_t version() const { return version_; }

 private:
  bool walk(const torch::nn::Module& module);  ///< true: all are those that it saw last

  std::string modes_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Tensor> parameters_;
  std::size_t module_ = 0, parameter_ = 0;  // the next ones of a walk
  std::int64_t version_ = 0;
};

/// Graphs by kind of call.
class GraphCache {
 public:
  explicit GraphCache(GraphOptions options = {});

  enum class Way { replay, capture, as_it_is };
  /// How this call runs, and counts it. more: what else decides how it does; version: where it is another than at the
  /// capture, that is of no use. replay: call->again(inputs); capture: call->first(f, inputs), or abandon() where that
  /// throws.
  struct Decision {
    Way way = Way::as_it_is;
    std::shared_ptr<GraphedCall> call;
  };
  Decision decide(at::TensorList inputs, const std::string& more = "", std::int64_t version = 0);
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
  struct Known {
    std::shared_ptr<GraphedCall> call;
    std::int64_t version;
  };
  std::map<std::string, Known> calls_;
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
  ModuleParts parts_;
  GraphCache cache_;
};

}  // namespace fp8::runtime
