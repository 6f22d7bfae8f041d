// SPDX-License-Identifier: Apache-2.0
// The attention family as it is registered: schemas equal to the vendor's, meta functions that say what the real ones
// give, no gradient of its own.
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "sdpa_reference.h"
#include "support/schema_test.h"

namespace fp8::test {
namespace {

TEST(AttentionSchemas, EqualTheVendors) { expect_schemas("attention", 34); }

void expect_attention_agrees(at::ScalarType type) {
  const bool fp8 = c10::isFloat8Type(type);
  const at::Tensor q = at::ones({2, 3, 5, 8}, on_hpu()).to(type), k = at::ones({2, 1, 6, 8}, on_hpu()).to(type),
                   v = at::ones({2, 1, 6, 4}, on_hpu()).to(type), mask = at::zeros({5, 6}, on_hpu()),
                   out = at::ones({2, 3, 5, 4}, on_hpu()), p = at::ones({2, 3, 5, 6}, on_hpu()).to(type),
                   stat = at::ones({2, 3, 5, 1}, on_hpu()), seed = at::full({1}, 3, on_hpu(at::kInt)),
                   dm = at::ones({2, 3, 5, 6}, on_hpu(at::kChar));
  const at::IValue s = fp8 ? at::IValue(one(2)) : kNone, grad = fp8 ? out.to(kE5M2) : out;
  const double f = fp8 ? 2.0 : 0.0;
  for (const double drop : {0.0, 0.5}) {
    if (!fp8) {
      expect_meta_agrees("sdpa_fwd", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"});
      expect_meta_agrees("sdpa_fwd_non_dropout", "", {q, k, v, mask, drop, 0.5, true, "none", kNone, "left"});
      expect_meta_agrees("sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, out});
      expect_meta_agrees("sdpa_recomp_bwd", "", {grad, q, k, v, mask, stat, stat, seed, true, drop, 0.5, "fast", out});
    }
    expect_meta_agrees("fp8_sdpa_fwd", "",
                       {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, kNone, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_fwd_dropout", "",
                       {q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_fwd_dropout_seed", "",
                       {seed, q, k, v, mask, drop, 0.5, true, "none", s, s, s, s, s, s, true, kNone, "left"});
    expect_meta_agrees("fp8_sdpa_bwd", "", {grad, q, k, v, p, dm, true, drop, 0.5, s, s, s, s, s, s, s, s, true, out});
    expect_meta_agrees("fp8_sdpa_recomp_bwd", "", {grad,   q, k, v, mask, stat, stat, seed, true, drop, 0.5,
                                                   "fast", s, s, s, s,    s,    s,    s,    s,    true, out});
    for (const bool backward : {false, true}) {
      for (const char* mode : {"none", "fast"}) {
        if (!fp8)
          expect_meta_agrees("sdpa_recomp_fwd", "", {q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"});
        if (!fp8)
          expect_meta_agrees("sdpa_recomp_fwd_dropout_seed", "",
                             {seed, q, k, v, mask, drop, 0.5, true, backward, mode, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd", "",
            {q, k, v, mask, drop, 0.5, true, backward, mode, s, s, s, s, kNone, s, true, true, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd_non_dropout", "scalar",
            {q, k, v, mask, drop, 0.5, true, backward, mode, f, f, f, f, f, f, true, true, kNone, "left"});
        expect_meta_agrees(
            "fp8_sdpa_recomp_fwd_dropout_seed", "scalar",
            {seed, q, k, v, mask, drop, 0.5, true, backward, mode, f, f, f, f, 0.0, f, true, true, kNone, "left"});
      }
    }
  }
}

TEST(AttentionMeta, OthersAgreeWithTheRealOps) {
  const at::Tensor x = at::ones({2, 3, 5, 8}, on_hpu(at::kBFloat16)), table = at::ones({1, 1, 9, 8}, on_hpu()),
                   ids = at::zeros({2, 5}, on_hpu(at::kLong)), gamma = at::ones({8}, on_hpu()),
                   inverse = at::ones({2, 3, 5, 1}, on_hpu());
  expect_meta_agrees("softmax_fp8", "", {x, -1});
  expect_meta_agrees("softmax_fp8", "", {x, -1, one(1), one(1), one(1), x});
  expect_meta_agrees("softmax_fp8", "Scalar_scales", {x.to(kE4M3), 3, 1.0, 1.0});
  expect_meta_agrees("softmax_fp8", "Scalar", {x, 3, 1.0, 1.0, 1.0});
  expect_meta_agrees("sum_fp8", "", {x.to(kE5M2), std::vector<std::int64_t>{0, -1}, true});
  expect_meta_agrees("sum_fp8", "", {x.to(kE5M2), kNone, false, code(at::kFloat)});
  expect_meta_agrees("rotary_pos_embedding", "", {x, table, table, ids, 0, 1});
  expect_meta_agrees("rotary_pos_embedding_backward", "", {x, table, table, ids, 0, 0});
  expect_meta_agrees("rms_norm", "", {x, gamma, 1e-5});
  expect_meta_agrees("rms_norm_fast", "", {x, gamma.to(at::kBFloat16), 1e-5});
  expect_meta_agrees("rms_norm_backward", "", {x, x, gamma, inverse, true, 0});
  expect_meta_agrees("rms_norm_fast_backward", "", {x.to(at::kFloat), x.to(at::kFloat), gamma, inverse, true, 1});
}

TEST(AttentionMeta, AgreesWithTheRealOps) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, kE4M3, kE5M2}) expect_attention_agrees(type);
}

TEST(AttentionMeta, RefusesWhatTheRealOnesRefuse) {
  const auto meta = at::TensorOptions(at::kMeta);
  const at::Tensor q = at::empty({2, 3, 5, 8}, meta), k = at::empty({2, 3, 6, 7}, meta);
  EXPECT_REFUSED(call("sdpa_fwd", "", {q, k, k, kNone, 0.0, 1.0, false, "none", kNone, "left"}), "[..., S, D]");
  EXPECT_REFUSED(call("softmax_fp8", "", {q, -1}), "must be of torch.bfloat16");
  EXPECT_REFUSED(call("rms_norm", "", {q, k, 1e-5}), "gamma [N]");
  EXPECT_REFUSED(call("rotary_pos_embedding", "", {q, k, k, kNone, 0, 0}), "columns");
}

TEST(AttentionOps, RunInInferenceMode) {
  const c10::InferenceMode inference;
  expect_attention_agrees(kE4M3);
}

}  // namespace
}  // namespace fp8::test
