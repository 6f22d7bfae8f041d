// SPDX-License-Identifier: Apache-2.0
// The attention family as it is registered: schemas equal to the vendor's, meta functions that say what the real ones
// give, no gradient of its own.
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "sdpa_reference.h"
#include "support/schema_test.h"

namespace fp8::test {
namespace {

const char* const kVendor[] = {
    "hpu::rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> "
    "Tensor",
    "hpu::rotary_pos_embedding_backward(Tensor grad_in, Tensor sin, Tensor cos, Tensor? position_ids, int offset, "
    "int mode) -> Tensor",
    "hpu::sdpa_recomp_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, bool requires_backward, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "hpu::sdpa_recomp_fwd_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, bool requires_backward, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "hpu::sdpa_recomp_fwd_non_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, "
    "bool is_causal, bool requires_backward, str softmax_modem, Tensor? valid_seq_len, str seq_padding_type) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    "hpu::sdpa_recomp_fwd_dropout_seed(Tensor seed, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, "
    "float scale, bool is_causal, bool requires_backward, str softmax_mode, Tensor? valid_seq_len, str "
    "seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor)",
    "hpu::sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor linv, "
    "Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, Tensor fwd_out) -> (Tensor, Tensor, "
    "Tensor)",
    "hpu::sdpa_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, str "
    "softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor)",
    "hpu::sdpa_fwd_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor)",
    "hpu::sdpa_fwd_non_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor)",
    "hpu::sdpa_fwd_dropout_seed(Tensor seed, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float "
    "scale, bool is_causal, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, "
    "Tensor)",
    "hpu::sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, float "
    "scale, Tensor fwd_out) -> (Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool is_causal, "
    "str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? q_scale_s, Tensor? "
    "q_scale_o, Tensor? d_scale_s, bool is_amax_s, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, "
    "Tensor, Tensor)",
    "hpu::fp8_sdpa_fwd_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? q_scale_s, "
    "Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_fwd_non_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? q_scale_s, "
    "Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_fwd_dropout_seed(Tensor seed, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, "
    "float scale, bool is_causal, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, "
    "Tensor? q_scale_s, Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, Tensor? valid_seq_len, str "
    "seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor P, Tensor? dm, bool is_causal, float p, "
    "float scale, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, "
    "Tensor? d_scale_ds, Tensor? q_scale_s, Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, "
    "Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, bool "
    "is_causal, bool requires_backward, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? d_scale_v, "
    "Tensor? q_scale_s, Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? "
    "valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_non_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float "
    "scale, bool is_causal, bool requires_backward, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? "
    "d_scale_v, Tensor? q_scale_s, Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? "
    "valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_dropout(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, "
    "bool is_causal, bool requires_backward, str softmax_mode, Tensor? d_scale_q, Tensor? d_scale_k, Tensor? "
    "d_scale_v, Tensor? q_scale_s, Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? "
    "valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_dropout_seed(Tensor seed, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float "
    "p, float scale, bool is_causal, bool requires_backward, str softmax_mode, Tensor? d_scale_q, Tensor? "
    "d_scale_k, Tensor? d_scale_v, Tensor? q_scale_s, Tensor? q_scale_o, Tensor? d_scale_s, bool is_amax_s, bool "
    "is_amax_o, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd.scalar(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float scale, "
    "bool is_causal, bool requires_backward, str softmax_mode, float d_scale_q, float d_scale_k, float d_scale_v, "
    "float q_scale_s, float q_scale_o, float d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? valid_seq_len, str "
    "seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_non_dropout.scalar(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, "
    "float scale, bool is_causal, bool requires_backward, str softmax_mode, float d_scale_q, float d_scale_k, float "
    "d_scale_v, float q_scale_s, float q_scale_o, float d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? "
    "valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_dropout.scalar(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float p, float "
    "scale, bool is_causal, bool requires_backward, str softmax_mode, float d_scale_q, float d_scale_k, float "
    "d_scale_v, float q_scale_s, float q_scale_o, float d_scale_s, bool is_amax_s, bool is_amax_0, Tensor? "
    "valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "hpu::fp8_sdpa_recomp_fwd_dropout_seed.scalar(Tensor seed, Tensor q, Tensor k, Tensor v, Tensor? "
    "attention_mask, float p, float scale, bool is_causal, bool requires_backward, str softmax_mode, float "
    "d_scale_q, float d_scale_k, float d_scale_v, float q_scale_s, float q_scale_o, float d_scale_s, bool "
    "is_amax_s, bool is_amax_o, Tensor? valid_seq_len, str seq_padding_type) -> (Tensor, Tensor, Tensor, Tensor, "
    "Tensor, Tensor)",
    "hpu::softmax_fp8(Tensor input, int dim, Tensor? input_scale=None, Tensor? output_scale=None, Tensor? "
    "inv_attn_heads=None, Tensor? fused_add=None) -> Tensor",
    "hpu::softmax_fp8.Scalar_scales(Tensor input, int dim, float input_scale, float output_scale, Tensor? "
    "inv_attn_heads=None, Tensor? fused_add=None) -> Tensor",
    "hpu::softmax_fp8.Scalar(Tensor input, int dim, float input_scale, float output_scale, float inv_attn_heads, "
    "Tensor? fused_add=None) -> Tensor",
    "hpu::rms_norm(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)",
    "hpu::rms_norm_fast(Tensor data_in, Tensor gamma, float epsilon) -> (Tensor, Tensor)",
    "hpu::rms_norm_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, int "
    "bwd_mode) -> (Tensor, Tensor)",
    "hpu::rms_norm_fast_backward(Tensor grad_in, Tensor data_in, Tensor gamma, Tensor inverse_rms, bool use_stages, "
    "int bwd_mode) -> (Tensor, Tensor)",
    "hpu::sum_fp8(Tensor self, int[1]? dim=None, bool keepdim=False, ScalarType? out_dtype=None) -> Tensor",
    "hpu::fp8_sdpa_recomp_bwd(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? attention_mask, Tensor m, Tensor "
    "linv, Tensor? seed, bool is_causal, float p, float scale, str softmax_mode, Tensor? d_scale_q, Tensor? "
    "d_scale_k, Tensor? d_scale_v, Tensor? d_scale_s, Tensor? d_scale_do, Tensor? d_scale_ds, Tensor? q_scale_s, "
    "Tensor? q_scale_ds, bool is_amax_ds, Tensor fwd_out) -> (Tensor, Tensor, Tensor, Tensor)",
};

TEST(AttentionSchemas, EqualTheVendors) {
  for (const char* text : kVendor) test::expect_schema(text);
}

struct Call {
  const char *name, *overload;
  torch::jit::Stack args;
};

std::vector<Call> attention_cases(at::ScalarType type) {
  const bool fp8 = c10::isFloat8Type(type);
  const at::Tensor q = at::ones({2, 3, 5, 8}, on_hpu()).to(type), k = at::ones({2, 1, 6, 8}, on_hpu()).to(type),
                   v = at::ones({2, 1, 6, 4}, on_hpu()).to(type), mask = at::zeros({5, 6}, on_hpu()),
                   out = at::ones({2, 3, 5, 4}, on_hpu()), p = at::ones({2, 3, 5, 6}, on_hpu()).to(type),
                   stat = at::ones({2, 3, 5, 1}, on_hpu()), seed = at::full({1}, 3, on_hpu(at::kInt)),
                   dm = at::ones({2, 3, 5, 6}, on_hpu(at::kChar));
  const at::IValue s = fp8 ? at::IValue(one(2)) : kNone, grad = fp8 ? out.to(kE5M2) : out;
  const double f = fp8 ? 2.0 : 0.0;
  std::vector<Call> cases;
  for (const double drop : {0.0, 0.5}) {
    if (!fp8) {
      cases.push_back({"sdpa_fwd", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"}});
      cases.push_back({"sdpa_fwd_non_dropout", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"}});
      cases.push_back({"sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, out}});
      cases.push_back({"sdpa_recomp_bwd", "", {grad, q, k, v, mask, stat, stat, seed, true, drop, 0.5, "fast", out}});
    }
    cases.push_back(
        {"fp8_sdpa_fwd", "", {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, kNone, s, true, kNone, "left"}});
    cases.push_back(
        {"fp8_sdpa_fwd_dropout", "", {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"}});
    cases.push_back({"fp8_sdpa_fwd_dropout_seed",
                     "",
                     {seed, q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"}});
    cases.push_back({"fp8_sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, s, s, s, s, s, s, s, s, true, out}});
    cases.push_back({"fp8_sdpa_recomp_bwd", "", {grad,   q, k, v, mask, stat, stat, seed, true, drop, 0.5,
                                                 "fast", s, s, s, s,    s,    s,    s,    s,    true, out}});
    for (const bool backward : {false, true}) {
      for (const char* mode : {"none", "fast"}) {
        if (!fp8)
          cases.push_back({"sdpa_recomp_fwd", "", {q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"}});
        if (!fp8)
          cases.push_back({"sdpa_recomp_fwd_dropout_seed",
                           "",
                           {seed, q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"}});
        cases.push_back(
            {"fp8_sdpa_recomp_fwd",
             "",
             {q, k, v, mask, drop, 0.5, true, backward, mode, s, s, s, s, kNone, s, true, true, kNone, "left"}});
        cases.push_back(
            {"fp8_sdpa_recomp_fwd_non_dropout",
             "scalar",
             {q, k, v, mask, drop, 0.5, true, backward, mode, f, f, f, f, f, f, true, true, kNone, "left"}});
        cases.push_back(
            {"fp8_sdpa_recomp_fwd_dropout_seed", "scalar", {seed, q, k, v, mask, drop, 0.5,  true, backward, mode,
                                                            f,    f, f, f, 0.0,  f,    true, true, kNone,    "left"}});
      }
    }
  }
  return cases;
}

std::vector<Call> other_cases() {
  const at::Tensor x = at::ones({2, 3, 5, 8}, on_hpu(at::kBFloat16)), table = at::ones({1, 1, 9, 8}, on_hpu()),
                   ids = at::zeros({2, 5}, on_hpu(at::kLong)), gamma = at::ones({8}, on_hpu()),
                   inverse = at::ones({2, 3, 5, 1}, on_hpu());
  return {{"softmax_fp8", "", {x, -1}},
          {"softmax_fp8", "", {x, -1, one(1), one(1), one(1), x}},
          {"softmax_fp8", "Scalar_scales", {x.to(kE4M3), 3, 1.0, 1.0}},
          {"softmax_fp8", "Scalar", {x, 3, 1.0, 1.0, 1.0}},
          {"sum_fp8", "", {x.to(kE5M2), std::vector<std::int64_t>{0, -1}, true}},
          {"sum_fp8", "", {x.to(kE5M2), kNone, false, code(at::kFloat)}},
          {"rotary_pos_embedding", "", {x, table, table, ids, 0, 1}},
          {"rotary_pos_embedding_backward", "", {x, table, table, ids, 0, 0}},
          {"rms_norm", "", {x, gamma, 1e-5}},
          {"rms_norm_fast", "", {x, gamma.to(at::kBFloat16), 1e-5}},
          {"rms_norm_backward", "", {x, x, gamma, inverse, true, 0}},
          {"rms_norm_fast_backward", "", {x.to(at::kFloat), x.to(at::kFloat), gamma, inverse, true, 1}}};
}

void expect_meta_agrees(const Call& c) {
  torch::jit::Stack on_meta;
  for (const auto& value : c.args)
    on_meta.push_back(value.isTensor() ? at::IValue(value.toTensor().to(at::kMeta)) : value);
  const auto real = call(c.name, c.overload, c.args), meta = call(c.name, c.overload, on_meta);
  ASSERT_EQ(real.size(), meta.size()) << c.name;
  for (std::size_t i = 0; i < real.size(); ++i) {
    EXPECT_EQ(real[i].device(), kHpu) << c.name;
    EXPECT_EQ(meta[i].device().type(), at::kMeta) << c.name;
    EXPECT_EQ(meta[i].sizes(), real[i].sizes()) << c.name << " " << i;
    EXPECT_EQ(meta[i].strides(), real[i].strides()) << c.name << " " << i;
    EXPECT_EQ(meta[i].scalar_type(), real[i].scalar_type()) << c.name << " " << i;
  }
}

TEST(AttentionMeta, AgreesWithTheRealOps) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, kE4M3, kE5M2}) {
    for (const Call& c : attention_cases(type)) expect_meta_agrees(c);
  }
  for (const Call& c : other_cases()) expect_meta_agrees(c);
}

TEST(AttentionMeta, RefusesWhatTheRealOnesRefuse) {
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor q = at::empty({2, 3, 5, 8}, meta), k = at::empty({2, 3, 6, 7}, meta);
  EXPECT_TRUE(throws_with({"[..., S, D]"},
                          [&] { call("sdpa_fwd", "", {q, k, k, kNone, 0.0, 1.0, false, "none", kNone, "left"}); }));
  EXPECT_TRUE(throws_with({"must be of torch.bfloat16"}, [&] { call("softmax_fp8", "", {q, -1}); }));
  EXPECT_TRUE(throws_with({"gamma [N]"}, [&] { call("rms_norm", "", {q, k, 1e-5}); }));
  EXPECT_TRUE(throws_with({"columns"}, [&] { call("rotary_pos_embedding", "", {q, k, k, kNone, 0, 0}); }));
}

TEST(AttentionOps, RunInInferenceMode) {
  const c10::InferenceMode inference;
  for (const Call& c : attention_cases(kE4M3)) expect_meta_agrees(c);
}

}  // namespace
}  // namespace fp8::test
