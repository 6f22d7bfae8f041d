// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/handlers/attention_handler.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include "fp8/runtime/fp8_tensor/product.h"
#include "fp8/runtime/ops/attention/attention_ops.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {

namespace ops = runtime::ops;

at::Tensor Fp8AttentionHandler::fused(const runtime::AttentionCall& call, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const runtime::DeviceKindScope kind(kind_of(scheme().dialect));
  const runtime::Fp8Tensor qc = input(0).cast(q), kc = input(1).cast(k), vc = input(2).cast(v);
  ops::FusedSdpaOptions options;
  options.mask = call.mask;
  options.is_causal = call.is_causal;
  options.scale = call.scale;
  options.softmax_mode = call.softmax_mode;
  options.valid_seq_len = call.valid_seq_len;
  options.seq_padding_type = call.seq_padding_type;
  const auto one = [](float value) { return at::full({1}, value, at::kFloat); };
  ops::Fp8SdpaScales scales;
  scales.d_q = one(qc.scale_inv);
  scales.d_k = one(kc.scale_inv);
  scales.d_v = one(vc.scale_inv);
  scales.d_s = one(input(3).scale_inv());
  scales.q_s = one(scale_for(scheme(), input(3).scale_inv(), "P"));
  if (scheme().output_scale_inv.empty())
    return ops::fp8_fused_sdpa(qc.codes, kc.codes, vc.codes, options, scales).out.to(compute_dtype(q));
  scales.q_o = one(scale_for(scheme(), output(0).scale_inv(), "o"));
  const at::Tensor o = ops::fp8_fused_sdpa(qc.codes, kc.codes, vc.codes, options, scales).out;
  return runtime::dequantize(output(0).with_scale(o), compute_dtype(q));
}

at::Tensor Fp8AttentionHandler::attention(const runtime::AttentionCall& call) {
  TORCH_CHECK(call.dropout_p == 0.0, "[ModuleFusedSDPA] expected dropout_p 0 in a converted module, found ",
              call.dropout_p);
  const auto plain = [mask = call.mask, causal = call.is_causal, scale = call.scale, gqa = call.enable_gqa,
                      valid = call.valid_seq_len](const Tensors& in) {
    TORCH_CHECK(!valid.has_value(),
                "[ModuleFusedSDPA] expected a mask instead of valid_seq_len where gradients or quantize-dequantize are "
                "asked for");
    return at::scaled_dot_product_attention(in[0], in[1], in[2], mask, 0.0, causal, scale, gqa);
  };
  if (scheme().compute != Compute::fp8) {
    const at::ScalarType compute = compute_dtype(call.q);
    return plain({input(0).through_fp8(call.q.to(compute)), input(1).through_fp8(call.k.to(compute)),
                  input(2).through_fp8(call.v.to(compute))});
  }
  StraightThrough op;
  op.forward = [&](const Tensors& in) { return fused(call, in[0], in[1], in[2]); };
  op.values = [q = input(0), k = input(1), v = input(2)](const Tensors& in) {
    const auto type = in[0].scalar_type();
    return Tensors{runtime::dequantize(q.cast(in[0]), type), runtime::dequantize(k.cast(in[1]), type),
                   runtime::dequantize(v.cast(in[2]), type)};
  };
  op.differentiable = plain;
  return straight_through(op, {call.q, call.k, call.v});
}

at::Tensor Fp8SoftmaxHandler::softmax(const runtime::SoftmaxCall& call) {
  // The operator takes bf16 over the last dimension to E4M3; anything else is softmax, then the cast.
  const bool last = call.dim == -1 || call.dim == call.x.dim() - 1;
  if (!last || call.x.scalar_type() != at::kBFloat16 || scheme().format != recipes::Format::E4M3 ||
      scheme().compute != Compute::fp8) {
    return output(0).through_fp8(call.original());
  }
  StraightThrough op;
  op.forward = [this](const Tensors& in) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const runtime::DeviceKindScope kind(kind_of(scheme().dialect));
    const auto one = [](float value) { return at::full({1}, value, at::kFloat); };
    const float s = output(0).scale_inv();
    const at::Tensor codes = ops::call_softmax_fp8(in[0], -1, one(1.0f), one(scale_for(scheme(), s, "P")));
    return runtime::dequantize(output(0).with_scale(codes), in[0].scalar_type());
  };
  op.differentiable = [](const Tensors& in) { return at::softmax(in[0], -1); };
  return straight_through(op, {call.x});
}

using runtime::Fp8Tensor;

at::Tensor product_of_codes(const Fp8Tensor& a, const Fp8Tensor& b, at::ScalarType out_dtype) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (a.layout.one() && b.layout.one()) return runtime::matmul(a, false, b, false, out_dtype);
  // Scales that the product has no place for (per batch and column): they multiply the f32 product. 1-D operands have
  // one scale.
  at::Tensor y = runtime::matmul(Fp8Tensor{a.codes}, false, Fp8Tensor{b.codes}, false, at::kFloat);
  for (const Fp8Tensor* x : {&a, &b}) y = x->layout.one() ? y.mul(x->scale_inv) : y.mul(x->grid.to(y.device()));
  return y.to(out_dtype);
}

at::Tensor Fp8MatmulHandler::matmul(const runtime::MatmulCall& call) {
  if (scheme().compute != Compute::fp8) {
    const at::ScalarType compute = compute_dtype(call.a);
    return at::matmul(input(0).through_fp8(call.a.to(compute)), input(1).through_fp8(call.b.to(compute)));
  }
  StraightThrough op;
  op.forward = [this](const Tensors& in) {
    return product_of_codes(input(0).cast(in[0]), input(1).cast(in[1]), compute_dtype(in[0]));
  };
  op.values = [a = input(0), b = input(1)](const Tensors& in) {
    return Tensors{runtime::dequantize(a.cast(in[0]), in[0].scalar_type()),
                   runtime::dequantize(b.cast(in[1]), in[1].scalar_type())};
  };
  op.differentiable = [](const Tensors& in) { return at::matmul(in[0], in[1]); };
  return straight_through(op, {call.a, call.b});
}

Fp8KvCacheHandler::Fp8KvCacheHandler(const NodeScheme& scheme) : NodeHandler(scheme) {
  if (scheme.dynamic) throw std::invalid_argument("kv_cache: found dynamic scales, expected static ones");
}

at::ScalarType Fp8KvCacheHandler::cache_dtype(at::ScalarType dtype) const {
  return scheme().compute == Compute::fp8 ? runtime::ops::dtype_of(scheme().format) : dtype;
}

at::Tensor Fp8KvCacheHandler::store(const at::Tensor& current) {
  if (heads() > 1) {
    const at::Tensor codes = cast_heads(current.detach());
    return scheme().compute == Compute::fp8 ? codes : values_of_heads(codes, current.scalar_type());
  }
  const runtime::Fp8Tensor x = input(0).cast(current.detach());
  return scheme().compute == Compute::fp8 ? x.codes : runtime::dequantize(x, current.scalar_type());
}

at::Tensor Fp8KvCacheHandler::fetch(const at::Tensor& stored, at::ScalarType dtype) {
  if (scheme().compute != Compute::fp8) return stored.to(dtype);
  if (heads() > 1) return values_of_heads(stored, dtype);
  const at::AutoDispatchBelowADInplaceOrView below;
  return runtime::dequantize(input(0).with_scale(stored), dtype);
}

void Fp8KvCacheHandler::check_heads(const at::Tensor& x) const {
  TORCH_CHECK(x.dim() == 4 && x.size(1) == heads(), "[KVCache] found scales of ", heads(),
              " heads, expected one for each of keys or values [batch, heads, length, size], found ", x.sizes());
}

/// [B, H, S, E] as B * H rows of S * E elements, each with its head's scale.
at::Tensor Fp8KvCacheHandler::cast_heads(const at::Tensor& current) const {
  check_heads(current);
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor source = current.to(source_dtype(scheme())).contiguous();
  std::vector<float> scales(static_cast<std::size_t>(source.size(0) * heads()));
  for (std::size_t r = 0; r < scales.size(); ++r)
    scales[r] = scale_for(scheme(), scheme().input_scale_inv[r % scheme().input_scale_inv.size()], "kv_cache");
  runtime::CastSpec spec{.format = scheme().format, .max = scheme().fp8_max()};
  spec.layout = runtime::ScaleLayout::per_row();
  spec.scales = scales.data();
  spec.vendor = scheme().convention == Convention::inc;
  const auto rows = static_cast<std::int64_t>(scales.size());
  return runtime::quantize(source.view({rows, source.size(2) * source.size(3)}), spec).codes.view(source.sizes());
}

at::Tensor Fp8KvCacheHandler::values_of_heads(const at::Tensor& codes, at::ScalarType dtype) const {
  check_heads(codes);
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& one = scheme().input_scale_inv;
  std::vector<float> scale_inv;
  for (std::int64_t b = 0; b < codes.size(0); ++b) scale_inv.insert(scale_inv.end(), one.begin(), one.end());
  const auto rows = static_cast<std::int64_t>(scale_inv.size());
  runtime::Fp8Tensor x{codes.view(at::kByte).reshape({rows, codes.size(2) * codes.size(3)}).view(codes.scalar_type())};
  x.layout = runtime::ScaleLayout::per_row();
  x.grid = at::from_blob(scale_inv.data(), rows, at::kFloat);
  return runtime::dequantize(x, dtype).view(codes.sizes());
}

namespace {

bool is_cache(const measure::OpNode& node) { return configs::is_of_kind(node.type, configs::ModuleKind::kv_cache); }

/// "X.k_cache" -> "X", for either of the two.
std::string attention_of(const std::string& cache) {
  const auto dot = cache.rfind('.');
  const std::string last = dot == std::string::npos ? cache : cache.substr(dot + 1);
  return last == "k_cache" || last == "v_cache" ? cache.substr(0, dot == std::string::npos ? 0 : dot) : "";
}

}  // namespace

std::vector<std::string> cached_attention(const std::vector<measure::OpNode>& nodes) {
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const auto& node : nodes) {
    const std::string attention = is_cache(node) ? attention_of(node.name) : "";
    if (!attention.empty() && known.insert(attention).second) names.push_back(attention);
  }
  return names;
}

void attach_kv_cache(const std::vector<measure::OpNode>& nodes, const std::vector<KvScales>& kv, const Numbers& numbers,
                     const std::string& where) {
  std::map<std::string, const measure::OpNode*> caches;
  for (const auto& node : nodes)
    if (is_cache(node)) caches[node.name] = &node;
  std::vector<std::pair<const measure::OpNode*, std::shared_ptr<NodeHandler>>> handlers;
  const auto add = [&](const std::string& name, const std::vector<float>& scale_inv) {
    const auto found = caches.find(name);
    if (found == caches.end())
      io::fail<io::Error>("{}: scales of {}: the model has no such key-value cache", where, io::in_quotes(name));
    if (found->second->slot->handler != nullptr)
      io::fail<io::Error>("{}: {}: is handled already ({})", where, name, found->second->slot->handler->describe());
    NodeScheme scheme;
    static_cast<Numbers&>(scheme) = numbers;
    scheme.kind = configs::ModuleKind::kv_cache;
    scheme.input_scale_inv = scheme.output_scale_inv = scale_inv;
    try {
      handlers.emplace_back(found->second, std::make_shared<Fp8KvCacheHandler>(scheme));
    } catch (const std::invalid_argument& e) {
      io::fail<io::Error>("{}: {}: {}", where, name, e.what());
    }
  };
  for (const auto& scales : kv) {
    add(scales.attention + ".k_cache", scales.k);
    add(scales.attention + ".v_cache", scales.v);
  }
  std::set<std::string> scaled;
  for (const auto& [node, handler] : handlers) scaled.insert(node->name);
  for (const auto& name : cached_attention(nodes))
    if (!scaled.contains(name + ".k_cache"))
      io::fail<io::Error>("{}: found no scales of the key-value cache of {}, but of other layers", where,
                          io::in_quotes(name));
  for (const auto& [node, handler] : handlers) node->slot->handler = handler;
}

namespace {

/// Null for a node that is no cache in fp8.
const Fp8KvCacheHandler* kv_cache_of(const measure::OpNode& node) {
  const auto* handler = is_cache(node) ? node_handler(*node.slot) : nullptr;
  return handler == nullptr ? nullptr : handler->kv_cache();
}

}  // namespace

void detach_kv_cache(const std::vector<measure::OpNode>& nodes) {
  for (const auto& node : nodes)
    if (kv_cache_of(node) != nullptr) node.slot->handler.reset();
}

const NodeScheme* kv_cache_scheme(const std::vector<measure::OpNode>& nodes) {
  for (const auto& node : nodes)
    if (const auto* handler = kv_cache_of(node)) return &handler->scheme();
  return nullptr;
}

}  // namespace fp8::quant
