// SPDX-License-Identifier: Apache-2.0
// The hpu:: schemas of the attention family; the rest stands in schemas.cpp. Names, argument order and defaults are the
// vendor's (bridge 1.19; fp8_sdpa_recomp_bwd a later one), down to softmax_modem and is_amax_0.
//
// Register a schema here, its kernel and meta function in register_attention.cpp, its work in <op>.cpp.
#include <torch/library.h>

#include <string>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"

namespace {

/// hpu::[fp8_]sdpa_[recomp_]fwd<form>[.scalar]. The forms differ in the seed, which comes first; those in fp8 have
/// scales, as tensors or floats, and the amax of what they round.
std::string sdpa_forward(bool recomp, bool fp8, const std::string& form, bool scalar) {
  const bool seed = form == "_dropout_seed";
  std::string schema = std::string(fp8 ? "fp8_" : "") + "sdpa_" + (recomp ? "recomp_" : "") + "fwd" + form +
                       (scalar ? ".scalar(" : "(") + (seed ? "Tensor seed, " : "") +
                       "Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, ";
  if (recomp) schema += "bool requires_backward, ";
  schema += recomp && !fp8 && form == "_non_dropout" ? "str softmax_modem, " : "str softmax_mode, ";
  if (fp8) {
    for (const char* name : {"d_scale_q", "d_scale_k", "d_scale_v", "q_scale_s", "q_scale_o", "d_scale_s"})
      schema += std::string(scalar ? "float " : "Tensor? ") + name + ", ";
    schema += "bool is_amax_s, ";
    if (recomp) schema += seed ? "bool is_amax_o, " : "bool is_amax_0, ";
  }
  schema += "Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor";
  const int more = recomp ? (fp8 ? 3 : 1) : (fp8 ? 1 : 0);
  for (int i = 0; i < more; ++i) schema += ", Tensor";
  return schema + ")";
}

}  // namespace

FP8_LIBRARY_FRAGMENT(hpu, m) {
  // --- softmax and sum
  m.def(
      "softmax_fp8(Tensor input, int dim, Tensor? input_scale=None, Tensor? output_scale=None, Tensor? "
      "inv_attn_heads=None, Tensor? fused_add=None) -> Tensor");
  m.def(
      "softmax_fp8.Scalar_scales(Tensor input, int dim, float input_scale, float output_scale, Tensor? "
      "inv_attn_heads=None, Tensor? fused_add=None) -> Tensor");
  m.def(
      "softmax_fp8.Scalar(Tensor input, int dim, float input_scale, float output_scale, float inv_attn_heads, "
      "Tensor? fused_add=None) -> Tensor");
  m.def("sum_fp8(Tensor self, int[1]? dim=None, bool keepdim=False, ScalarType? out_dtype=None) -> Tensor");

  // --- attention
  for (const bool recomp : {false, true}) {
    for (const bool fp8 : {false, true}) {
      for (const char* form : {"", "_dropout", "_non_dropout", "_dropout_seed"}) {
        m.def(sdpa_forward(recomp, fp8, form, /*scalar=*/false).c_str());
        if (recomp && fp8) m.def(sdpa_forward(recomp, fp8, form, /*scalar=*/true).c_str());
      }
    }
  }
  m.def(
      "sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, float "
      "scale, Tensor fwd_out) -> (Tensor, Tensor, Tensor)");
  m.def(
      "sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor linv, "
      "Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, Tensor fwd_out) -> (Tensor, Tensor, "
      "Tensor)");
  m.def(
      "fp8_sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, float "
      "scale, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, "
      "Tensor? d_scale_ds, Tensor? q_scale_s, Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, "
      "Tensor, Tensor, Tensor)");
  m.def(
      "fp8_sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor "
      "linv, Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, Tensor? d_scale_q, Tensor? "
      "d_scale_k, Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, Tensor? d_scale_ds, Tensor? q_scale_s, "
      "Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, Tensor, Tensor, Tensor)");

  // --- position embedding and normalization
  m.def(
      "rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> "
      "Tensor");
  m.def(
      "rotary_pos_embedding_backward(Tensor grad_in, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int "
      "mode) -> Tensor");
  m.def("rms_norm(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)");
  m.def(
      "rms_norm_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, int "
      "bwd_mode) -> (Tensor, Tensor)");
  m.def("rms_norm_fast(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)");
  m.def(
      "rms_norm_fast_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, "
      "int bwd_mode) -> (Tensor, Tensor)");
  fp8::runtime::autocast::keep_out_of_own_ops();
}
