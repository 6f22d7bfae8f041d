// SPDX-License-Identifier: Apache-2.0
// mixture_of_experts in high precision: per expert the tokens routed to it are gathered, multiplied and added back.
// Only aten ops on hpu tensors, so gradients and the handlers of tagged weights come for free.
#include "fp8/runtime/ops/moe/moe.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/leaf/leaf.h"
#include "fp8/runtime/ops/moe/moe_ops.h"

namespace fp8::runtime::ops {
namespace {

at::Tensor indices_of(const std::vector<std::int64_t>& values, const at::Tensor& like) {
  at::Tensor out = at::empty({static_cast<std::int64_t>(values.size())}, like.options().dtype(at::kLong));
  std::copy(values.begin(), values.end(), static_cast<std::int64_t*>(out.mutable_data_ptr()));
  return out;
}

at::Tensor product(const at::Tensor& x, const at::Tensor& w, bool permuted) {
  return permuted ? at::linear(x, w) : at::mm(x, w);
}

/// h = act(x . w1) * (x . w2)
at::Tensor intermediate(const MoeCall& c, std::size_t e, const at::Tensor& x) {
  if (!c.fused()) {
    return at::mul(c.activated(product(x, c.w1[e], c.permuted)), product(x, c.w2[e], c.permuted));
  }
  const auto both = product(x, c.w1[e], c.permuted);
  const std::int64_t inner = both.size(1) / 2;
  return at::mul(c.activated(both.narrow(1, 0, inner)), both.narrow(1, inner, inner));
}

}  // namespace

at::Tensor MoeCall::activated(const at::Tensor& x) const {
  return activation == "gelu" ? at::gelu(x) : activation == "relu" ? at::relu(x) : at::silu(x);
}

at::Tensor mixture_of_experts(const MoeCall& c, at::Tensor* amax) {
  LeafScope leaf("hpu::mixture_of_experts", c.hidden, c.table, c.router_weights, c.w1, c.w2, c.w3);
  check_high_precision("mixture_of_experts", "hidden_states of dtype", c.hidden.scalar_type());
  const std::vector<ExpertRows> rows = group_tokens(c);
  const std::int64_t slots = c.table.size(1);
  const at::Tensor router = c.router_weights.reshape({-1}).to(at::kFloat);
  at::Tensor sum = at::zeros(c.hidden.sizes(), c.hidden.options().dtype(at::kFloat).requires_grad(false));
  if (amax != nullptr) *amax = at::zeros({static_cast<std::int64_t>(rows.size())}, sum.options());
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (rows[e].token.empty()) continue;
    std::vector<std::int64_t> places(rows[e].token.size());
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = rows[e].token[i] * slots + rows[e].slot[i];
    const at::Tensor tokens = indices_of(rows[e].token, c.hidden);
    const at::Tensor h = intermediate(c, e, at::index_select(c.hidden, 0, tokens));
    if (amax != nullptr) static_cast<float*>(amax->mutable_data_ptr())[e] = amax_of(h);
    const at::Tensor y = product(h, c.w3[e], c.permuted).to(at::kFloat);
    sum.index_add_(0, tokens, at::mul(y, at::index_select(router, 0, indices_of(places, c.hidden)).unsqueeze(1)));
  }
  const at::Tensor y = sum.to(c.hidden.scalar_type());
  leaf.gives(y);
  leaf.flops(flops_of(c, rows));
  return y;
}

// The checks of mixture_of_experts and which tokens go to which expert.

namespace {

void check_inputs(const MoeCall& c) {
  TORCH_CHECK(c.activation == "gelu" || c.activation == "relu" || c.activation == "silu", "Activation \"", c.activation,
              "\" not found among MoeActivationMode_t enum values.");
  TORCH_CHECK(c.hidden.dim() == 2, "[mixture_of_experts] expected hidden_states [tokens, hidden], got sizes ",
              c.hidden.sizes());
  TORCH_CHECK(c.table.scalar_type() == at::kLong || c.table.scalar_type() == at::kInt,
              "[mixture_of_experts] expected expert_routing_table of dtype Int or Long, got ", c.table.scalar_type());
  TORCH_CHECK(c.table.dim() == 2 && c.table.size(0) == c.hidden.size(0) && c.table.sizes() == c.router_weights.sizes(),
              "[mixture_of_experts] expected expert_routing_table and router_weights [", c.hidden.size(0),
              ", experts per token], got sizes ", c.table.sizes(), " and ", c.router_weights.sizes());
  check_high_precision("mixture_of_experts", "router_weights of dtype", c.router_weights.scalar_type());
}

void check_weight(const MoeCall& c, const char* name, std::size_t e, const at::Tensor& w, std::int64_t in,
                  std::int64_t out) {
  const std::int64_t rows = c.permuted ? out : in, cols = c.permuted ? in : out;
  TORCH_CHECK(w.dim() == 2 && w.size(0) == rows && w.size(1) == cols, "[mixture_of_experts] expected ", name, "[", e,
              "] of sizes [", rows, ", ", cols, "] (permuted_weights ", (c.permuted ? "true" : "false"), "), got ",
              w.sizes());
}

void check_weights(const MoeCall& c) {
  const std::size_t n = c.experts();
  TORCH_CHECK(n > 0 && c.w1.size() == n && (c.fused() || c.w2.size() == n),
              "[mixture_of_experts] expected weight lists of one length and at least one expert, got ", c.w1.size(),
              ", ", c.w2.size(), " and ", n);
  const std::int64_t range = c.experts_max - c.experts_min;
  TORCH_CHECK(c.experts_min >= 0 && range >= 0 && range < static_cast<std::int64_t>(n),
              "[mixture_of_experts] expected 0 <= experts_min <= experts_max and a weight for each of them, got [",
              c.experts_min, ", ", c.experts_max, "] and ", n, " weights");
  TORCH_CHECK(range + 1 == static_cast<std::int64_t>(n) || c.experts_max < static_cast<std::int64_t>(n),
              "[mixture_of_experts] expected ", range + 1, " weights for the experts [", c.experts_min, ", ",
              c.experts_max, "], or those of all experts, got ", n);
  const std::int64_t hidden = c.hidden.size(1);
  for (std::size_t e = 0; e < n; ++e) {
    TORCH_CHECK(c.w3[e].dim() == 2, "[mixture_of_experts] expected w3[", e, "] of 2 dimensions, got sizes ",
                c.w3[e].sizes());
    const std::int64_t inner = c.w3[e].size(c.permuted ? 1 : 0);
    check_weight(c, "w3", e, c.w3[e], inner, hidden);
    check_weight(c, c.fused() ? "w12" : "w1", e, c.w1[e], hidden, c.fused() ? 2 * inner : inner);
    if (!c.fused()) check_weight(c, "w2", e, c.w2[e], hidden, inner);
  }
}

template <typename Id>
void group(const MoeCall& c, const Id* ids, std::vector<ExpertRows>& rows) {
  const std::int64_t tokens = c.table.size(0), slots = c.table.size(1);
  const bool local = c.experts_max - c.experts_min + 1 == static_cast<std::int64_t>(rows.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t s = 0; s < slots; ++s) {
      const std::int64_t id = ids[t * slots + s];
      if (id < c.experts_min || id > c.experts_max) continue;
      ExpertRows& expert = rows[static_cast<std::size_t>(local ? id - c.experts_min : id)];
      expert.token.push_back(t);
      expert.slot.push_back(s);
    }
  }
}

}  // namespace

std::vector<ExpertRows> group_tokens(const MoeCall& c) {
  check_inputs(c);
  check_weights(c);
  std::vector<ExpertRows> rows(c.experts());
  const at::Tensor host = cpu_alias(c.table.detach()).contiguous();
  if (host.scalar_type() == at::kInt) {
    group(c, host.const_data_ptr<std::int32_t>(), rows);
  } else {
    group(c, host.const_data_ptr<std::int64_t>(), rows);
  }
  return rows;
}

std::int64_t flops_of(const MoeCall& c, const std::vector<ExpertRows>& rows) {
  std::int64_t count = 0;
  for (std::size_t e = 0; e < rows.size(); ++e)
    count += 6 * static_cast<std::int64_t>(rows[e].token.size()) * c.w3[e].numel();
  return count;
}

at::Tensor mixture_of_experts_meta(const MoeCall& c, at::ScalarType dtype) {
  check_inputs(c);
  check_weights(c);
  return at::empty(c.hidden.sizes(), c.hidden.options().dtype(dtype));
}

// moe_ops.h

at::Tensor call_mixture_of_experts(const MoeRoute& r, at::TensorList w1, at::TensorList w2, at::TensorList w3) {
  return call_op<"hpu::mixture_of_experts", at::Tensor>(r.hidden_states, r.expert_routing_table, r.router_weights, w1,
                                                        w2, w3, r.permuted_weights, r.activation, r.experts_min,
                                                        r.experts_max);
}

at::Tensor call_mixture_of_experts_fused(const MoeRoute& r, at::TensorList w12, at::TensorList w3) {
  return call_op<"hpu::mixture_of_experts.fused_weights", at::Tensor>(r.hidden_states, r.expert_routing_table,
                                                                      r.router_weights, w12, w3, r.permuted_weights,
                                                                      r.activation, r.experts_min, r.experts_max);
}

at::Tensor call_mixture_of_experts_fp8(const MoeRoute& r, at::TensorList w12, at::TensorList w3,
                                       const at::Tensor& d_hidden, at::TensorList d_intermediate, at::TensorList d_w12,
                                       at::TensorList d_w3) {
  const CodesWithScale given;
  if (d_intermediate.empty())
    return call_op<"hpu::mixture_of_experts.fp8_fused_weights_dynamic", at::Tensor>(
        r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_w12, d_w3, r.permuted_weights,
        r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
  return call_op<"hpu::mixture_of_experts.fp8_fused_weights", at::Tensor>(
      r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_hidden, d_intermediate, d_w12, d_w3,
      r.permuted_weights, r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
}

at::Tensor call_mixture_of_experts_blockwise(const MoeRoute& r, at::TensorList w12, at::TensorList w3,
                                             at::TensorList d_w12, at::TensorList d_w3, int64_t block_size) {
  const CodesWithScale given;
  return call_op<"hpu::mixture_of_experts.fp8_fused_weights_blockwise", at::Tensor>(
      r.hidden_states, r.expert_routing_table, r.router_weights, w12, w3, d_w12, d_w3, block_size, r.permuted_weights,
      r.activation, r.experts_min, r.experts_max, int64_t{0}, int64_t{0});
}

// hpu::mixture_of_experts: 14 argument forms, translated to moe/moe.h. The high precision ones are made of aten ops
// and so stand at AutogradHPU too.

namespace {

using at::Tensor;
using at::TensorList;
using Floats = at::ArrayRef<double>;
using TwoTensors = std::tuple<Tensor, Tensor>;

MoeCall call_of(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2,
                TensorList w3, bool permuted, std::string_view activation, int64_t first, int64_t last) {
  return {hidden, table, router, w1.vec(), w2.vec(), w3.vec(), permuted, std::string(activation), first, last};
}

// --- high precision
template <bool kMeta>
Tensor plain(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2,
             TensorList w3, bool permuted, std::string_view activation, int64_t first, int64_t last) {
  const MoeCall call = call_of(hidden, table, router, w1, w2, w3, permuted, activation, first, last);
  return kMeta ? mixture_of_experts_meta(call, hidden.scalar_type()) : mixture_of_experts(call, nullptr);
}
template <bool kMeta>
Tensor plain_fused(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w12, TensorList w3,
                   bool permuted, std::string_view activation, int64_t first, int64_t last) {
  return plain<kMeta>(hidden, table, router, w12, {}, w3, permuted, activation, first, last);
}

/// amax is taken whatever measurement_mode says, as the 1.19 bridge does.
template <bool kMeta>
TwoTensors measured(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2,
                    TensorList w3, bool permuted, std::string_view activation, int64_t first, int64_t last, bool) {
  const MoeCall call = call_of(hidden, table, router, w1, w2, w3, permuted, activation, first, last);
  if constexpr (kMeta)
    return {mixture_of_experts_meta(call, hidden.scalar_type()),
            hidden.new_empty({static_cast<int64_t>(w3.size())}, hidden.options().dtype(at::kFloat))};
  Tensor amax;
  Tensor y = mixture_of_experts(call, &amax);
  return {std::move(y), std::move(amax)};
}
template <bool kMeta>
TwoTensors measured_fused(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w12,
                          TensorList w3, bool permuted, std::string_view activation, int64_t first, int64_t last,
                          bool mode) {
  return measured<kMeta>(hidden, table, router, w12, {}, w3, permuted, activation, first, last, mode);
}

// --- fp8
void check_chunks(int64_t chunk_size, int64_t total_experts) {
  TORCH_CHECK(chunk_size >= 0 && total_experts >= 0,
              "[mixture_of_experts] expected chunk_size and total_experts >= 0, got ", chunk_size, " and ",
              total_experts);
}

std::vector<Scale> scales_of(TensorList list) {
  std::vector<Scale> scales;
  for (const Tensor& t : list) scales.push_back(scale_of(std::optional<Tensor>(t), std::nullopt));
  return scales;
}
std::vector<Scale> scales_of(Floats list) {
  std::vector<Scale> scales;
  for (const double v : list) scales.push_back(scale_of(v, std::nullopt));
  return scales;
}
Scale one_scale(const Tensor& scale) { return scale_of(std::optional<Tensor>(scale), std::nullopt); }
Scale one_scale(double scale) { return scale_of(scale, std::nullopt); }

template <bool kMeta>
Tensor run(const MoeCall& call, const std::function<MoeScales()>& scales) {
  return kMeta ? mixture_of_experts_meta(call, at::kBFloat16) : mixture_of_experts_fp8(call, scales());
}

template <typename One, typename List, bool kMeta>
Tensor fp8(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2, TensorList w3,
           One d_hidden, List d_intermediate, List d_w1, List d_w2, List d_w3, bool permuted,
           std::string_view activation, int64_t first, int64_t last, int64_t chunk_size, int64_t total_experts) {
  check_chunks(chunk_size, total_experts);
  return run<kMeta>(call_of(hidden, table, router, w1, w2, w3, permuted, activation, first, last), [&] {
    TORCH_CHECK(!d_intermediate.empty(),
                "[mixture_of_experts] expected d_scale_intermediate_hidden_states of one element per expert, got none");
    return MoeScales{one_scale(d_hidden), scales_of(d_intermediate), scales_of(d_w1), scales_of(d_w2), scales_of(d_w3)};
  });
}
template <typename One, typename List, bool kMeta>
Tensor fp8_fused(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w12, TensorList w3,
                 One d_hidden, List d_intermediate, List d_w12, List d_w3, bool permuted, std::string_view activation,
                 int64_t first, int64_t last, int64_t chunk_size, int64_t total_experts) {
  return fp8<One, List, kMeta>(hidden, table, router, w12, {}, w3, d_hidden, d_intermediate, d_w12, {}, d_w3, permuted,
                               activation, first, last, chunk_size, total_experts);
}

template <typename One, typename List, bool kMeta>
Tensor dynamic(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2,
               TensorList w3, One d_hidden, List d_w1, List d_w2, List d_w3, bool permuted, std::string_view activation,
               int64_t first, int64_t last, int64_t chunk_size, int64_t total_experts) {
  check_chunks(chunk_size, total_experts);
  return run<kMeta>(call_of(hidden, table, router, w1, w2, w3, permuted, activation, first, last), [&] {
    return MoeScales{one_scale(d_hidden), {}, scales_of(d_w1), scales_of(d_w2), scales_of(d_w3)};
  });
}
template <typename One, typename List, bool kMeta>
Tensor dynamic_fused(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w12, TensorList w3,
                     One d_hidden, List d_w12, List d_w3, bool permuted, std::string_view activation, int64_t first,
                     int64_t last, int64_t chunk_size, int64_t total_experts) {
  return dynamic<One, List, kMeta>(hidden, table, router, w12, {}, w3, d_hidden, d_w12, {}, d_w3, permuted, activation,
                                   first, last, chunk_size, total_experts);
}

template <bool kMeta>
Tensor blockwise(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w1, TensorList w2,
                 TensorList w3, TensorList d_w1, TensorList d_w2, TensorList d_w3, int64_t block_size, bool permuted,
                 std::string_view activation, int64_t first, int64_t last, int64_t chunk_size, int64_t total_experts) {
  check_chunks(chunk_size, total_experts);
  constexpr int64_t kMost = int64_t{1} << 31;
  TORCH_CHECK(block_size > 0 && block_size <= kMost, "[mixture_of_experts] expected block_size in [1, ", kMost,
              "], got ", block_size);
  return run<kMeta>(call_of(hidden, table, router, w1, w2, w3, permuted, activation, first, last),
                    [&] { return MoeScales{{}, {}, scales_of(d_w1), scales_of(d_w2), scales_of(d_w3), block_size}; });
}
template <bool kMeta>
Tensor blockwise_fused(const Tensor& hidden, const Tensor& table, const Tensor& router, TensorList w12, TensorList w3,
                       TensorList d_w12, TensorList d_w3, int64_t block_size, bool permuted,
                       std::string_view activation, int64_t first, int64_t last, int64_t chunk_size,
                       int64_t total_experts) {
  return blockwise<kMeta>(hidden, table, router, w12, {}, w3, d_w12, {}, d_w3, block_size, permuted, activation, first,
                          last, chunk_size, total_experts);
}

/// In high precision converted weights are handled by the ATen ops inside, whose handlers know their scales.
template <bool kMeta, class Impl>
void register_plain(const Impl& impl) {
  impl("mixture_of_experts", &plain<kMeta>);
  impl("mixture_of_experts.fused_weights", &plain_fused<kMeta>);
  impl("mixture_of_experts.fp8_measurement", &measured<kMeta>);
  impl("mixture_of_experts.fp8_measurement_fused_weights", &measured_fused<kMeta>);
}

/// Library: an Edge, or torch's own.
template <bool kMeta, class Library>
void register_fp8(Library& m) {
  m.impl("mixture_of_experts.fp8", &fp8<const Tensor&, TensorList, kMeta>);
  m.impl("mixture_of_experts.fp8_scalars", &fp8<double, Floats, kMeta>);
  m.impl("mixture_of_experts.fp8_fused_weights", &fp8_fused<const Tensor&, TensorList, kMeta>);
  m.impl("mixture_of_experts.fp8_fused_weights_scalars", &fp8_fused<double, Floats, kMeta>);
  m.impl("mixture_of_experts.fp8_dynamic", &dynamic<const Tensor&, TensorList, kMeta>);
  m.impl("mixture_of_experts.fp8_scalars_dynamic", &dynamic<double, Floats, kMeta>);
  m.impl("mixture_of_experts.fp8_fused_weights_dynamic", &dynamic_fused<const Tensor&, TensorList, kMeta>);
  m.impl("mixture_of_experts.fp8_fused_weights_scalars_dynamic", &dynamic_fused<double, Floats, kMeta>);
  m.impl("mixture_of_experts.fp8_blockwise", &blockwise<kMeta>);
  m.impl("mixture_of_experts.fp8_fused_weights_blockwise", &blockwise_fused<kMeta>);
}

void register_plain_at_edge(torch::Library& m) {
  Edge edge(m, "hpu");
  register_plain<false>([&](const char* name, auto kernel) { edge.impl(name, kernel, Codes::passed_on); });
}

}  // namespace

FP8_LIBRARY_IMPL(hpu, AutogradHPU, m) { register_plain_at_edge(m); }

FP8_LIBRARY_IMPL(hpu, HPU, m) {
  register_plain_at_edge(m);
  Edge edge(m, "hpu");
  register_fp8<false>(edge);
}

FP8_LIBRARY_IMPL(hpu, Meta, m) {
  register_plain<true>([&](const char* name, auto kernel) { m.impl(name, kernel); });
  register_fp8<true>(m);
}

// hpu:: schemas of experts, cache layout, 4-bit formats and the deprecated forms; names, order and defaults as in
// cast/cast.cpp.
//
// The mixture_of_experts overloads without fp8_ but fp8_measurement are the 1.19 bridge's. The others came later; their
// argument order is that of the later bridge's functions. `chunk_size` and `total_experts` steer the device's work
// split: accepted, without effect on results.

namespace {

/// "mixture_of_experts<name>(<inputs>, <weights>, <middle><route><tail>"; w1 and w2 are one list where fused.
std::string experts_schema(const std::string& name, bool fused, const std::string& middle, const char* tail) {
  return "mixture_of_experts" + name + "(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, " +
         (fused ? "Tensor[] w12, " : "Tensor[] w1, Tensor[] w2, ") + "Tensor[] w3, " + middle +
         "bool permuted_weights, str activation, int experts_min, int experts_max" + tail;
}

/// Of experts in fp8. form: scales as tensors or floats ("_scalars"), the intermediate's given or taken per token
/// ("_dynamic"), weights in blocks ("_blockwise").
std::string fp8_schema(bool fused, const std::string& form) {
  const std::string type = form.starts_with("_scalars") ? "float" : "Tensor";
  std::string scales = form == "_blockwise" ? "" : type + " d_scale_hidden_states, ";
  if (form.empty() || form == "_scalars") scales += type + "[] d_scale_intermediate_hidden_states, ";
  for (const char* weight : {"w12", "w1", "w2", "w3"})
    if (weight == std::string_view("w3") || fused == (weight == std::string_view("w12")))
      scales += type + "[] d_scale_" + weight + ", ";
  if (form == "_blockwise") scales += "int block_size, ";
  return experts_schema(std::string(".fp8") + (fused ? "_fused_weights" : "") + form, fused, scales,
                        ", int chunk_size=0, int total_experts=0) -> Tensor");
}

}  // namespace

FP8_LIBRARY_FRAGMENT(hpu, m) {
  for (const bool fused : {false, true}) {
    const std::string weights = fused ? "fused_weights" : "";
    m.def(experts_schema(fused ? "." + weights : "", fused, "", ") -> Tensor").c_str());
    // Second result: amax[e] = max |act(x w1) * (x w2)| over the tokens that are routed to expert e, f32, 0 where there
    // are none: what its fp8 intermediate will hold. The vendor's reference takes the maximum without the magnitude and
    // over all tokens, which scales by values that never occur and saturates negative ones.
    m.def(experts_schema(".fp8_measurement" + (fused ? "_" + weights : ""), fused, "",
                         ", bool measurement_mode) -> (Tensor, Tensor)")
              .c_str());
    for (const char* form : {"", "_scalars", "_dynamic", "_scalars_dynamic", "_blockwise"})
      m.def(fp8_schema(fused, form).c_str());
  }

  // --- layout of caches
  define(m, R"(
    in_place_interleave(Tensor self) -> Tensor;
    in_place_interleave_(Tensor(a!) self) -> Tensor(a!);
    kv_reorder(Tensor self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor;
    kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!);)");

  // --- 4 bits
  define(m, R"(
    convert_from_int4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor;
    convert_from_uint4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor;
    fake_quant_fp4(Tensor input, bool stochastic_rounding, int axis, str dtype) -> Tensor;)");

  // --- deprecated: before aten's own ops took float8 dtypes, and before fp8_gemm_v2
  define(m, R"(
    fp8_gemm(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor D, ScalarType out_dtype, Tensor? A_scale_inv,
        Tensor? B_scale_inv, Tensor? bias, bool accumulate, Tensor(a!) out) -> Tensor(a!);
    fp8_copy_(Tensor(a!) self, Tensor src) -> Tensor(a!);
    fp8_transpose(Tensor input, Tensor(a!) out) -> Tensor(a!);
    fp8_permute(Tensor input, int[] dims, Tensor(a!) out) -> Tensor(a!);
    fp8_reshape(Tensor input, int[] shape) -> Tensor;
    fp8_index_copy_(Tensor(a!) self, int dim, Tensor index, Tensor source) -> Tensor(a!);
    fp8_index_select_v2(Tensor self, int dim, Tensor index) -> Tensor;
    fp8_repeat_v2(Tensor self, SymInt[] repeats) -> Tensor;
    fp8_kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!);)");
}

}  // namespace fp8::runtime::ops
