// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/graph/module_cacher.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "fp8/runtime/intercept/intercept.h"

namespace fp8::runtime {
namespace {

/// What decides how a call runs, in bytes.
class Key {
 public:
  template <class T>
  Key& operator<<(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Key& operator<<(at::IntArrayRef values) {
    *this << values.size();
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int64_t));
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

std::string key_of(at::TensorList inputs) {
  Key key;
  key << at::GradMode::is_enabled() << c10::InferenceMode::is_enabled() << interception_paused()
      << at::autocast::is_autocast_enabled(at::kHPU) << at::autocast::get_autocast_dtype(at::kHPU)
      << c10::get_default_dtype_as_scalartype() << at::globalContext().deterministicAlgorithms();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& t = inputs[i];
    std::size_t first = 0;
    while (first < i && storage_impl_of(inputs[first]) != storage_impl_of(t)) ++first;
    key << first << (first < i ? t.storage_offset() - inputs[first].storage_offset() : 0) << t.scalar_type()
        << t.device().index() << t.requires_grad() << t.key_set().raw_repr() << t.sizes() << t.strides();
  }
  std::string bytes = key.take();
  if (graph_hooks().key != nullptr) graph_hooks().key(bytes);
  return bytes;
}

bool can_be_given(at::TensorList inputs) {
  return std::ranges::all_of(inputs, [](const at::Tensor& t) {
    return t.defined() && t.is_hpu() && t.has_storage() && t.layout() == at::kStrided && !t._fw_grad(0).defined();
  });
}

/// Its parameters without their names.
struct OpenModule : torch::nn::Module {
  static const auto& parameters_of(const torch::nn::Module& module) { return module.*&OpenModule::parameters_; }
};

bool is_same(const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }
bool is_same(const std::shared_ptr<torch::nn::Module>& a, const std::shared_ptr<torch::nn::Module>& b) {
  return a == b;
}

/// True if `seen` is the next of `known`; else that ends with it.
template <class T>
bool is_next(std::vector<T>& known, std::size_t& next, const T& seen) {
  const bool same = next < known.size() && is_same(known[next], seen);
  if (!same) known.resize(next), known.push_back(seen);
  ++next;
  return same;
}

}  // namespace

GraphCallable::GraphCallable(torch::nn::Sequential module)
    : call([module](at::TensorList inputs) mutable {
        TORCH_CHECK(inputs.size() == 1, "[graph] Sequential: found ", inputs.size(), " inputs, expected 1");
        return std::vector<at::Tensor>{module->forward(inputs[0])};
      }),
      module(module.ptr()) {}

GraphCallable::GraphCallable(torch::nn::AnyModule module)
    : call([module](at::TensorList x) mutable -> std::vector<at::Tensor> {
        switch (x.size()) {
          case 1: return {module.forward(x[0])};
          case 2: return {module.forward(x[0], x[1])};
          case 3: return {module.forward(x[0], x[1], x[2])};
          case 4: return {module.forward(x[0], x[1], x[2], x[3])};
          default: TORCH_CHECK(false, "[graph] AnyModule: found ", x.size(), " inputs, allowed: 1 to 4");
        }
      }),
      module(module.ptr()) {}

bool ModuleParts::walk(const torch::nn::Module& module) {
  modes_.push_back(module.is_training() ? 't' : 'e');
  bool same = true;
  for (const auto& p : OpenModule::parameters_of(module)) same &= is_next(parameters_, parameter_, p.value());
  for (const auto& child : module.children()) {
    same &= is_next(modules_, module_, child);
    same &= walk(*child);
  }
  return same;
}

void ModuleParts::look(const torch::nn::Module& module) {
  modes_.clear();
  module_ = parameter_ = 0;
  bool same = walk(module);
  same &= module_ == modules_.size() && parameter_ == parameters_.size();
  modules_.resize(module_), parameters_.resize(parameter_);
  if (!same) ++version_;
}

GraphCache::GraphCache(GraphOptions options) : options_(options) {
  TORCH_CHECK(options.max_graphs >= 0, "[graph] max_graphs: found ", options.max_graphs, ", allowed: 0 and more");
}

GraphCache::Decision GraphCache::decide(at::TensorList inputs, const std::string& more, std::int64_t version) {
  const auto as_it_is = [&] {
    ++counts_.eager;
    return Decision();
  };
  if (!can_be_given(inputs) || Recorder::is_any_on()) return as_it_is();
  const std::string key = key_of(inputs) + more;
  const auto found = calls_.find(key);
  if (found != calls_.end()) {
    const auto& [call, of_version] = found->second;
    // Nobody holds a first call whose backward will never come: a loss that was left out.
    const bool was_left = call->refusal().empty() && call.use_count() == 1, same = of_version == version;
    if (same && !call->is_ready() && !was_left) return as_it_is();
    if (same && call->is_ready() && call->is_current()) {
      ++counts_.replayed;
      return {Way::replay, call};
    }
    calls_.erase(found);
  }
  if (static_cast<std::int64_t>(calls_.size()) >= options_.max_graphs) return as_it_is();
  ++counts_.captured;
  return {Way::capture, calls_.emplace(key, Known{std::make_shared<GraphedCall>(), version}).first->second.call};
}

void GraphCache::abandon(const std::shared_ptr<GraphedCall>& call) {
  std::erase_if(calls_, [&](const auto& known) { return known.second.call == call; });
}

std::vector<std::string> GraphCache::refusals() const {
  std::vector<std::string> all;
  for (const auto& [key, known] : calls_)
    if (!known.call->refusal().empty()) all.push_back(known.call->refusal());
  return all;
}

ModuleCacher::ModuleCacher(GraphCallable callable, GraphOptions options)
    : callable_(std::move(callable)), cache_(options) {}

std::vector<at::Tensor> ModuleCacher::bypass(at::TensorList inputs) {
  cache_.count_bypass();
  return callable_.call(inputs);
}

std::vector<at::Tensor> ModuleCacher::operator()(at::TensorList inputs) {
  if (callable_.module != nullptr) parts_.look(*callable_.module);
  const auto [way, call] = cache_.decide(inputs, parts_.modes(), parts_.version());
  if (way == GraphCache::Way::replay) return call->again(inputs);
  if (way == GraphCache::Way::as_it_is) return callable_.call(inputs);
  try {
    return call->first(callable_.call, inputs);
  } catch (...) {
    cache_.abandon(call);
    throw;
  }
}

at::Tensor ModuleCacher::operator()(const at::Tensor& input) {
  const auto results = (*this)(at::TensorList(input));
  TORCH_CHECK(results.size() == 1, "[graph] found ", results.size(), " results, expected 1");
  return results[0];
}

}  // namespace fp8::runtime
