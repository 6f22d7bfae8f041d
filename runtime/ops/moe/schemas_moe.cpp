// SPDX-License-Identifier: Apache-2.0
// The second page of hpu:: schemas: experts, cache layout, 4-bit formats and the deprecated forms. The same rules as in
// schemas.cpp.
//
// The mixture_of_experts overloads without fp8_ but fp8_measurement are the 1.19 bridge's. The others came later; their
// argument order is that of the later bridge's functions. `chunk_size` and `total_experts` steer the device's work
// split: accepted, without effect on results.
#include <torch/library.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"

namespace {

#define FP8_MOE_INPUTS "Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, "
#define FP8_MOE_TAIL "bool permuted_weights, str activation, int experts_min, int experts_max"
#define FP8_MOE_CHUNKS ", int chunk_size=0, int total_experts=0) -> Tensor"

FP8_LIBRARY_FRAGMENT(hpu, m) {
  // --- experts in high precision
  m.def("mixture_of_experts(" FP8_MOE_INPUTS "Tensor[] w1, Tensor[] w2, Tensor[] w3, " FP8_MOE_TAIL ") -> Tensor");
  m.def("mixture_of_experts.fused_weights(" FP8_MOE_INPUTS "Tensor[] w12, Tensor[] w3, " FP8_MOE_TAIL ") -> Tensor");
  // Second result: amax[e] = max |act(x w1) * (x w2)| over the tokens that are routed to expert e, f32, 0 where there
  // are none: what its fp8 intermediate will hold. The vendor's reference takes the maximum without the magnitude and
  // over all tokens, which scales by values that never occur and saturates negative ones.
  m.def("mixture_of_experts.fp8_measurement(" FP8_MOE_INPUTS "Tensor[] w1, Tensor[] w2, Tensor[] w3, " FP8_MOE_TAIL
        ", bool measurement_mode) -> (Tensor, Tensor)");
  m.def("mixture_of_experts.fp8_measurement_fused_weights(" FP8_MOE_INPUTS "Tensor[] w12, Tensor[] w3, " FP8_MOE_TAIL
        ", bool measurement_mode) -> (Tensor, Tensor)");

  // --- experts in fp8: scales as tensors or floats, the intermediate's given or taken per token, weights in blocks
  m.def(
      "mixture_of_experts.fp8(" FP8_MOE_INPUTS
      "Tensor[] w1, Tensor[] w2, Tensor[] w3, Tensor d_scale_hidden_states, Tensor[] "
      "d_scale_intermediate_hidden_states, Tensor[] d_scale_w1, Tensor[] d_scale_w2, Tensor[] d_scale_w3, " FP8_MOE_TAIL
          FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_scalars(" FP8_MOE_INPUTS
        "Tensor[] w1, Tensor[] w2, Tensor[] w3, float d_scale_hidden_states, float[] "
        "d_scale_intermediate_hidden_states, float[] d_scale_w1, float[] d_scale_w2, float[] d_scale_w3, " FP8_MOE_TAIL
            FP8_MOE_CHUNKS);
  m.def(
      "mixture_of_experts.fp8_fused_weights(" FP8_MOE_INPUTS
      "Tensor[] w12, Tensor[] w3, Tensor d_scale_hidden_states, Tensor[] d_scale_intermediate_hidden_states, Tensor[] "
      "d_scale_w12, Tensor[] d_scale_w3, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_fused_weights_scalars(" FP8_MOE_INPUTS
        "Tensor[] w12, Tensor[] w3, float d_scale_hidden_states, float[] d_scale_intermediate_hidden_states, float[] "
        "d_scale_w12, float[] d_scale_w3, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def(
      "mixture_of_experts.fp8_dynamic(" FP8_MOE_INPUTS
      "Tensor[] w1, Tensor[] w2, Tensor[] w3, Tensor d_scale_hidden_states, Tensor[] d_scale_w1, Tensor[] d_scale_w2, "
      "Tensor[] d_scale_w3, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_scalars_dynamic(" FP8_MOE_INPUTS
        "Tensor[] w1, Tensor[] w2, Tensor[] w3, float d_scale_hidden_states, float[] d_scale_w1, float[] d_scale_w2, "
        "float[] d_scale_w3, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_fused_weights_dynamic(" FP8_MOE_INPUTS
        "Tensor[] w12, Tensor[] w3, Tensor d_scale_hidden_states, Tensor[] d_scale_w12, Tensor[] "
        "d_scale_w3, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_fused_weights_scalars_dynamic(" FP8_MOE_INPUTS
        "Tensor[] w12, Tensor[] w3, float d_scale_hidden_states, float[] d_scale_w12, float[] d_scale_w3, " FP8_MOE_TAIL
            FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_blockwise(" FP8_MOE_INPUTS
        "Tensor[] w1, Tensor[] w2, Tensor[] w3, Tensor[] d_scale_w1, Tensor[] d_scale_w2, Tensor[] d_scale_w3, int "
        "block_size, " FP8_MOE_TAIL FP8_MOE_CHUNKS);
  m.def("mixture_of_experts.fp8_fused_weights_blockwise(" FP8_MOE_INPUTS
        "Tensor[] w12, Tensor[] w3, Tensor[] d_scale_w12, Tensor[] d_scale_w3, int block_size, " FP8_MOE_TAIL
            FP8_MOE_CHUNKS);

  // --- layout of caches
  m.def("in_place_interleave(Tensor self) -> Tensor");
  m.def("in_place_interleave_(Tensor(a!) self) -> Tensor(a!)");
  m.def("kv_reorder(Tensor self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor");
  m.def("kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!)");

  // --- 4 bits
  m.def("convert_from_int4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor");
  m.def("convert_from_uint4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor");
  m.def("fake_quant_fp4(Tensor input, bool stochastic_rounding, int axis, str dtype) -> Tensor");

  // --- deprecated: before float8 dtypes were met by aten's own ops, and before fp8_gemm_v2
  m.def(
      "fp8_gemm(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor D, ScalarType out_dtype, Tensor? A_scale_inv, "
      "Tensor? B_scale_inv, Tensor? bias, bool accumulate, Tensor(a!) out) -> Tensor(a!)");
  m.def("fp8_copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)");
  m.def("fp8_transpose(Tensor input, Tensor(a!) out) -> Tensor(a!)");
  m.def("fp8_permute(Tensor input, int[] dims, Tensor(a!) out) -> Tensor(a!)");
  m.def("fp8_reshape(Tensor input, int[] shape) -> Tensor");
  m.def("fp8_index_copy_(Tensor(a!) self, int dim, Tensor index, Tensor source) -> Tensor(a!)");
  m.def("fp8_index_select_v2(Tensor self, int dim, Tensor index) -> Tensor");
  m.def("fp8_repeat_v2(Tensor self, SymInt[] repeats) -> Tensor");
  m.def("fp8_kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!)");
  fp8::runtime::autocast::keep_out_of_own_ops();
}

#undef FP8_MOE_INPUTS
#undef FP8_MOE_TAIL
#undef FP8_MOE_CHUNKS

}  // namespace
