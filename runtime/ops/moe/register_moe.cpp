// SPDX-License-Identifier: Apache-2.0
// hpu::mixture_of_experts: 14 argument forms, translated to moe/moe.h. The high precision ones are made of aten ops
// and so stand at AutogradHPU too.
#include <torch/library.h>

#include <string>
#include <string_view>

#include "fp8/runtime/ops/moe/moe.h"

namespace fp8::runtime::ops {
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
  Tensor amax;
  if constexpr (kMeta) {
    Tensor y = mixture_of_experts_meta(call, hidden.scalar_type());
    amax = hidden.new_empty({static_cast<int64_t>(w3.size())}, hidden.options().dtype(at::kFloat));
    return {std::move(y), std::move(amax)};
  }
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
// cast/register_fp8.cpp.
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
