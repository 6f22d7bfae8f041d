// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/op_modules.h"

#include <ATen/Dispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace fp8::runtime {

std::vector<at::Tensor> OpModule::handled(const std::vector<at::Tensor>& inputs, const OriginalOps& op) const {
  return by_handler(handler(), op, [&](ModuleHandler& handler, const OriginalOps& original) {
    return handler.tensors({inputs, original});
  });
}

void OpModule::note_handler(const std::shared_ptr<ModuleSlot>& slot) {
  if (Recorder* recorder = Recorder::current()) [[unlikely]]
    recorder->depends_on([of = std::weak_ptr(slot), handler = slot->handler.get()] {
      const auto now = of.lock();
      return now != nullptr && now->handler.get() == handler;
    });
}

std::optional<at::ScalarType> OpModule::region_of_replay() {
  return autocast::is_autocast_hpu_enabled() ? std::optional(autocast::autocast_hpu_dtype()) : std::nullopt;
}

bool OpModule::compute_requires_grad(at::TensorList inputs) {
  return at::GradMode::is_enabled() &&
         std::ranges::any_of(inputs, [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

at::Tensor MatmulImpl::forward(const at::Tensor& a, const at::Tensor& b) {
  return as_node("fp8::matmul", std::array{a, b}, [](ModuleHandler* by, at::TensorList t) {
    return by_handler(
        by, [&] { return at::matmul(t[0], t[1]); },
        [&](ModuleHandler& handler, const OriginalOp& original) { return handler.matmul({t[0], t[1], original}); });
  });
}

at::Tensor SoftmaxImpl::forward(const at::Tensor& x, std::int64_t dim) {
  return as_node("fp8::softmax", std::array{x}, [dim](ModuleHandler* by, at::TensorList t) {
    return by_handler(
        by, [&] { return at::softmax(t[0], dim); },
        [&](ModuleHandler& handler, const OriginalOp& original) { return handler.softmax({t[0], dim, original}); });
  });
}

at::Tensor ModuleFusedSDPAImpl::forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const AttentionOptions& options) {
  const std::array inputs = {q, k, v, options.mask.value_or(at::Tensor()),
                             options.valid_seq_len.value_or(at::Tensor())};
  return as_node("fp8::attention", inputs, [options](ModuleHandler* by, at::TensorList t) {
    AttentionOptions o = options;
    if (o.mask.has_value()) o.mask = t[3];
    if (o.valid_seq_len.has_value()) o.valid_seq_len = t[4];
    const auto attention = [&] {
      TORCH_CHECK(!o.valid_seq_len.has_value(),
                  "[ModuleFusedSDPA] expected a mask instead of valid_seq_len where nothing handles the module");
      return at::scaled_dot_product_attention(t[0], t[1], t[2], o.mask, o.dropout_p, o.is_causal, o.scale,
                                              o.enable_gqa);
    };
    return by_handler(by, attention, [&](ModuleHandler& handler, const OriginalOp& original) {
      return handler.attention({t[0], t[1], t[2], o.mask, o.dropout_p, o.is_causal, o.scale, o.enable_gqa,
                                o.softmax_mode, o.valid_seq_len, o.seq_padding_type, original});
    });
  });
}

namespace {

at::Scalar lowest(at::ScalarType dtype) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "attend", [] {
    return at::Scalar(static_cast<double>(std::numeric_limits<scalar_t>::lowest()));
  });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> attend(MatmulImpl& matmul_qk, SoftmaxImpl& softmax, MatmulImpl& matmul_av,
                                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                          const AttentionOptions& o) {
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.size(1) > 0 && q.size(1) % k.size(1) == 0,
                    "[attend] q, k, v: found sizes ", q.sizes(), ", ", k.sizes(), " and ", v.sizes(),
                    ", expected [B, H, L, E] and twice [B, Hkv, S, E], where Hkv divides H");
  const std::int64_t groups = q.size(1) / k.size(1);
  const auto of_all_heads = [&](const at::Tensor& t) { return groups > 1 ? t.repeat_interleave(groups, 1) : t; };
  const double scale = o.scale.value_or(std::pow(static_cast<double>(q.size(-1)), -0.5));
  at::Tensor logits = matmul_qk.forward(q, of_all_heads(k).transpose(2, 3)) * scale;
  at::Tensor unseen;
  if (o.is_causal) {
    const at::Tensor all = at::ones({logits.size(-2), logits.size(-1)}, logits.options().dtype(at::kBool));
    unseen = all.tril(logits.size(-1) - logits.size(-2)).logical_not();
  } else if (o.mask.has_value() && o.mask->scalar_type() == at::kBool) {
    unseen = o.mask->logical_not();
  } else if (o.mask.has_value()) {
    logits = logits + *o.mask;
  }
  if (unseen.defined()) logits = logits.masked_fill(unseen, lowest(logits.scalar_type()));
  const at::Tensor p = at::dropout(softmax.forward(logits, -1), o.dropout_p, o.dropout_p > 0);
  return {matmul_av.forward(p, of_all_heads(v)), p};
}

at::Tensor KVCacheImpl::room(at::IntArrayRef shape, const at::Tensor& like) const {
  const auto stored = handler() != nullptr ? handler()->cache_dtype(like.scalar_type()) : like.scalar_type();
  return c10::isFloat8Type(stored) ? at::zeros(shape, like.options().dtype(at::kByte)).view(stored)
                                   : at::zeros(shape, like.options().dtype(stored));
}

at::Tensor KVCacheImpl::update(const at::Tensor& cache, const at::Tensor& current, std::int64_t dim,
                               std::int64_t position, at::ScalarType dtype) const {
  const std::int64_t room = cache.defined() ? cache.size(dim) : 0, end = position + current.size(dim);
  TORCH_CHECK_VALUE(cache.defined() && position >= 0 && end <= room, "[KVCache] update: found ", room,
                    " positions, expected ", end, " for [", position, ", ", end, "): allocate()");
  const at::Tensor stored = handler() != nullptr ? handler()->store(current) : current;
  TORCH_CHECK_VALUE(stored.scalar_type() == cache.scalar_type(), "[KVCache] update: the cache holds ",
                    cache.scalar_type(), ", current gives ", stored.scalar_type(),
                    "; allocate() after the module was converted");
  cache.narrow(dim, position, current.size(dim)).copy_(stored);
  const at::Tensor seen = cache.narrow(dim, 0, end);
  return handler() != nullptr ? handler()->fetch(seen, dtype) : seen;
}

void KVCacheImpl::allocate(at::IntArrayRef shape, const at::Tensor& like) {
  dtype_ = like.scalar_type();
  cache_ = room(shape, like);
}

at::Tensor KVCacheImpl::update(const at::Tensor& current, std::int64_t dim, std::int64_t position) {
  return update(cache_, current, dim, position, dtype_);
}

at::Tensor KVCacheImpl::forward(const at::Tensor& current) {
  return as_node("fp8::kv_cache", std::array{current}, [](ModuleHandler* by, at::TensorList t) {
    return by != nullptr ? by->fetch(by->store(t[0]), t[0].scalar_type()) : t[0];
  });
}

at::ScalarType VLLMKVCacheImpl::cache_dtype(at::ScalarType dtype) const {
  return handler() != nullptr ? handler()->cache_dtype(dtype) : dtype;
}

at::Tensor VLLMKVCacheImpl::forward(const at::Tensor& input, const at::Tensor& cache, const at::Tensor& slot_mapping) {
  if (!input.defined()) return cache;
  const at::Tensor stored = handler() != nullptr ? handler()->store(input) : input;
  TORCH_CHECK_VALUE(stored.scalar_type() == cache.scalar_type(), "[VLLMKVCache] found a cache of ", cache.scalar_type(),
                    ", expected ", stored.scalar_type());
  const at::Tensor slots = cache.dim() == stored.dim() + 1 ? cache.flatten(0, 1) : cache;
  if (c10::isFloat8Type(cache.scalar_type())) {
    slots.view(at::kByte).index_copy_(0, slot_mapping.flatten(), stored.view(at::kByte));
  } else {
    slots.index_copy_(0, slot_mapping.flatten(), stored);
  }
  return cache;
}

at::Tensor VLLMKVCacheImpl::fetch_from_cache(const at::Tensor& cache, const at::Tensor& blocks, at::ScalarType dtype) {
  const bool codes = c10::isFloat8Type(cache.scalar_type());
  const at::Tensor rows = codes ? cache.view(at::kByte).index_select(0, blocks.flatten()).view(cache.scalar_type())
                                : cache.index_select(0, blocks.flatten());
  return handler() != nullptr ? handler()->fetch(rows, dtype) : rows.to(dtype);
}

namespace {

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  if (name == "silu") return at::silu(x);
  if (name == "gelu") return at::gelu(x);
  if (name == "relu") return at::relu(x);
  TORCH_CHECK(false, "[MixtureOfExperts] activation: found '", name, "', allowed: silu, gelu, relu");
}

}  // namespace

MoeMatmulImpl::MoeMatmulImpl(at::Tensor w) : torch::nn::Module("MoeMatmul") {
  weight = register_parameter("weight", std::move(w), /*requires_grad=*/false);
}

at::Tensor MoeMatmulImpl::forward(const at::Tensor& x) const { return at::linear(x, weight); }

at::Tensor ExpertsImpl::mix(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                            const at::Tensor& router_weights, const std::vector<at::Tensor>& w12,
                            const std::vector<at::Tensor>& w3, bool permuted_weights, const std::string& activation,
                            std::int64_t experts_min, std::int64_t experts_max) const {
  TORCH_CHECK(w12.size() == w3.size() && static_cast<std::int64_t>(w12.size()) == experts_max - experts_min + 1,
              "[MixtureOfExperts] weights: found ", w12.size(), " and ", w3.size(), " for experts [", experts_min, ", ",
              experts_max, "], expected one of each for each expert");
  const auto multiply = [&](const at::Tensor& x, const at::Tensor& w) {
    return at::linear(x, permuted_weights ? w : w.t());
  };
  const auto mixture = [&] {
    at::Tensor y = at::zeros_like(hidden_states);
    for (std::size_t e = 0; e < w12.size(); ++e) {
      const auto chosen = expert_routing_table.eq(experts_min + static_cast<std::int64_t>(e)).nonzero();
      if (chosen.size(0) == 0) continue;
      const at::Tensor token = chosen.select(1, 0), slot = chosen.select(1, 1);
      const auto gate_up = multiply(hidden_states.index_select(0, token), w12[e]).chunk(2, -1);
      const at::Tensor out = multiply(activate(activation, gate_up[0]) * gate_up[1], w3[e]);
      const at::Tensor weighted = out * router_weights.index({token, slot}).unsqueeze(-1).to(out.scalar_type());
      y.index_add_(0, token, weighted.to(y.scalar_type()));  // an autocast region multiplies in its own dtype
    }
    return y;
  };
  return by_handler(handler(), mixture, [&](ModuleHandler& handler, const OriginalOp& original) {
    return handler.mixture_of_experts({hidden_states, expert_routing_table, router_weights, w12, w3, permuted_weights,
                                       activation, experts_min, experts_max, original});
  });
}

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options) : options_(options) {
  if (options_.experts_max < 0) options_.experts_max = options_.num_experts - 1;
  TORCH_CHECK(options_.num_experts > 0 && options_.experts_min >= 0 && options_.experts_min <= options_.experts_max &&
                  options_.experts_max < options_.num_experts,
              "[MixtureOfExperts] experts_min, experts_max: found [", options_.experts_min, ", ", options_.experts_max,
              "], allowed: within [0, ", options_.num_experts - 1, "]");
  activate(options_.activation, at::empty({0}));
  w13_list = register_module("w13_list", torch::nn::ModuleList());
  w2_list = register_module("w2_list", torch::nn::ModuleList());
  for (auto e = options_.experts_min; e <= options_.experts_max; ++e) {
    w13_list->push_back(MoeMatmul(at::empty({2 * options_.intermediate_size, options_.hidden_size})));
    w2_list->push_back(MoeMatmul(at::empty({options_.hidden_size, options_.intermediate_size})));
  }
}

at::Tensor MixtureOfExpertsImpl::forward(const at::Tensor& hidden_states, const at::Tensor& expert_routing_table,
                                         const at::Tensor& router_weights) {
  std::vector<at::Tensor> w12, w3;
  for (std::size_t e = 0; e < w13_list->size(); ++e) {
    w12.push_back(w13_list->ptr(e)->as<MoeMatmulImpl>()->weight);
    w3.push_back(w2_list->ptr(e)->as<MoeMatmulImpl>()->weight);
  }
  return mix(hidden_states, expert_routing_table, router_weights, w12, w3, /*permuted_weights=*/true,
             options_.activation, options_.experts_min, options_.experts_max);
}

}  // namespace fp8::runtime
