// SPDX-License-Identifier: Apache-2.0
// Modules without a weight that calibration and quantization know by name: put them in a model where attention
// multiplies, takes a softmax, or keeps keys and values, and they can be measured and run in fp8. With an empty slot
// each does exactly what the plain ATen call does.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <tuple>

#include "fp8/runtime/intercept/module_handler.h"
#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime {

/// A module with a slot. `type` is the class name that users write in allow- and blocklists ("Matmul", "KVCache"). One
/// of your own derives from it, and says in forward() what is computed:
///
///   at::Tensor ScaledAddImpl::forward(const at::Tensor& a, const at::Tensor& b) {
///     return handled({a, b}, [&] { return std::vector<at::Tensor>{a + 2 * b}; })[0];
///   }
///
/// Its kind is quant::NodeKindRegistration's.
class OpModule : public torch::nn::Module {
 public:
  explicit OpModule(const char* type) : torch::nn::Module(type), slot_(std::make_shared<ModuleSlot>()) {}

  const std::shared_ptr<ModuleSlot>& slot() const { return slot_; }
  ModuleHandler* handler() const { return slot_->handler.get(); }

  /// f(handler, inputs); one node of a graph where there is a handler, whose kernels no dispatcher calls, and no
  /// gradient is wanted. f holds all else by value.
  template <class F>
  at::Tensor as_node(const char* name, at::TensorList inputs, const F& f) const {
    note_handler(slot_);
    if (slot_->handler == nullptr || compute_requires_grad(inputs)) return f(slot_->handler.get(), inputs);
    const auto region = region_of_replay();
    return run_node(name, inputs, [slot = slot_, f, region](at::TensorList given) {
      std::optional<autocast::AutocastGuard> within;  // a replay runs below autocast, and handlers ask for its dtype
      if (region.has_value()) within.emplace(*region);
      return f(slot->handler.get(), given);
    });
  }

 protected:
  /// The result of op() of `inputs`, or the handler's.
  std::vector<at::Tensor> handled(const std::vector<at::Tensor>& inputs, const OriginalOps& op) const;

 private:
  /// What this thread records is of no use once the slot has another handler.
  static void note_handler(const std::shared_ptr<ModuleSlot>& slot);
  static bool compute_requires_grad(at::TensorList inputs);
  /// The dtype of the autocast region that is in force; none: there is none.
  static std::optional<at::ScalarType> region_of_replay();

  std::shared_ptr<ModuleSlot> slot_;
};

// The pieces of attention as modules: Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache, VLLMKVCache. Names and
// call forms follow the modules of optimum-habana and vLLM that Intel Neural Compressor patches.

/// a . b, batched as at::matmul.
class MatmulImpl : public OpModule {
 public:
  MatmulImpl() : OpModule("Matmul") {}
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b);

 protected:
  explicit MatmulImpl(const char* type) : OpModule(type) {}
};
TORCH_MODULE(Matmul);

/// A Matmul between blocks and batches (paged attention): its second input's measurement is taken from its output.
class B2BMatmulImpl : public MatmulImpl {
 public:
  B2BMatmulImpl() : MatmulImpl("B2BMatmul") {}
};
TORCH_MODULE(B2BMatmul);

/// softmax over `dim`.
class SoftmaxImpl : public OpModule {
 public:
  SoftmaxImpl() : OpModule("Softmax") {}
  at::Tensor forward(const at::Tensor& x, std::int64_t dim = -1);
};
TORCH_MODULE(Softmax);

struct AttentionOptions {
  std::optional<at::Tensor> mask = {};  ///< bool (true: seen) or added to the logits
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale = {};  ///< default 1 / sqrt(E)
  bool enable_gqa = false;
  std::string softmax_mode = "None";
  std::optional<at::Tensor> valid_seq_len = {};
  std::string seq_padding_type = "left";
};

/// Fused attention; unhandled it is at::scaled_dot_product_attention. q: [..., H, L, E], k and v: [..., Hkv, S, E].
class ModuleFusedSDPAImpl : public OpModule {
 public:
  ModuleFusedSDPAImpl() : OpModule("ModuleFusedSDPA") {}
  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionOptions& options = {});
};
TORCH_MODULE(ModuleFusedSDPA);

/// Attention of three modules that are not fused: the result and the probabilities. q: [B, H, L, E], k and v: [B, Hkv,
/// S, E], Hkv a divisor of H. Of the options the first four.
std::tuple<at::Tensor, at::Tensor> attend(MatmulImpl& matmul_qk, SoftmaxImpl& softmax, MatmulImpl& matmul_av,
                                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                          const AttentionOptions& options);

/// Keys or values of one layer, [B, H, S, E], kept by the module. In fp8 when its handler says so.
class KVCacheImpl : public OpModule {
 public:
  KVCacheImpl() : OpModule("KVCache") {}

  /// Room for `shape`, zeroed, on `like`'s device; `like` says the dtype of the values.
  void allocate(at::IntArrayRef shape, const at::Tensor& like);
  bool allocated() const { return cache_.defined(); }
  void clear() { cache_ = at::Tensor(); }
  /// Values as stored: fp8 codes, or high precision.
  const at::Tensor& cache() const { return cache_; }

  /// Puts `current` at [.., position, position + n) of `dim` and returns everything up to there, as readers see it.
  at::Tensor update(const at::Tensor& current, std::int64_t dim, std::int64_t position);

  /// Without a cache: what a reader would see of `current` had it been stored.
  at::Tensor forward(const at::Tensor& current);

  // The same with a cache that is the caller's; dtype: of the values that come back. Throws c10::ValueError where there
  // is less room.
  at::Tensor room(at::IntArrayRef shape, const at::Tensor& like) const;
  at::Tensor update(const at::Tensor& cache, const at::Tensor& current, std::int64_t dim, std::int64_t position,
                    at::ScalarType dtype) const;

 private:
  at::Tensor cache_;
  at::ScalarType dtype_ = at::kFloat;
};
TORCH_MODULE(KVCache);

/// Paged keys or values as vLLM keeps them: the cache belongs to the caller.
class VLLMKVCacheImpl : public OpModule {
 public:
  VLLMKVCacheImpl() : OpModule("VLLMKVCache") {}

  /// The dtype that the caller's cache must be allocated in, for values of `dtype`.
  at::ScalarType cache_dtype(at::ScalarType dtype) const;

  /// Writes input [tokens, H, E] to the slots [tokens] of cache [slots, H, E] (blocks * block_size slots; a cache
  /// [blocks, block_size, H, E] is seen so) and returns the cache. An undefined input writes nothing.
  at::Tensor forward(const at::Tensor& input, const at::Tensor& cache, const at::Tensor& slot_mapping);

  /// Rows `blocks` of cache [blocks, block_size, H, E] as values of `dtype`.
  at::Tensor fetch_from_cache(const at::Tensor& cache, const at::Tensor& blocks, at::ScalarType dtype);
};
TORCH_MODULE(VLLMKVCache);

// A mixture of experts as one module, in the form vLLM's Gaudi plugin gives it: two lists of weight holders, and one
// call for all of them. Unhandled it computes what hpu::mixture_of_experts.fused_weights computes.
//
//   moe.w13_list.E   [2 I, H]   gate and up of expert E, stacked        moe.w2_list.E   [H, I]   down of expert E

/// Holds one expert's weight [N, K]; forward is x . weight^T.
class MoeMatmulImpl : public torch::nn::Module {
 public:
  explicit MoeMatmulImpl(at::Tensor weight);
  at::Tensor forward(const at::Tensor& x) const;
  at::Tensor weight;
};
TORCH_MODULE(MoeMatmul);

struct MixtureOfExpertsOptions {
  std::int64_t num_experts = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t experts_min = 0, experts_max = -1;  ///< this rank's experts, inclusive; -1: all
  std::string activation = "silu";
};

/// The mixture alone: its experts' weights are the caller's.
class ExpertsImpl : public OpModule {
 public:
  ExpertsImpl() : OpModule("VllmMixtureOfExpertsOp") {}

  /// hidden_states: [tokens, H]; expert_routing_table: [tokens, top_k] int64; router_weights: [tokens, top_k]; w12, w3,
  /// activation, experts_min and experts_max as in MoeCall.
  at::Tensor mix(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                 const at::Tensor& router_weights, const std::vector<at::Tensor>& w12,
                 const std::vector<at::Tensor>& w3, bool permuted_weights, const std::string& activation,
                 std::int64_t experts_min, std::int64_t experts_max) const;
};

class MixtureOfExpertsImpl : public ExpertsImpl {
 public:
  /// Weights are empty tensors of the right shapes, to be loaded. Only experts in [experts_min, experts_max] are held,
  /// as w13_list.0 ... in that order.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);

  /// hidden_states: [tokens, H]; expert_routing_table: [tokens, top_k] int64; router_weights: [tokens, top_k].
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                     const at::Tensor& router_weights);

  const MixtureOfExpertsOptions& options() const { return options_; }
  torch::nn::ModuleList w13_list{nullptr}, w2_list{nullptr};

 private:
  MixtureOfExpertsOptions options_;
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace fp8::runtime
