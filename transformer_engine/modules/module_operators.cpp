// SPDX-License-Identifier: Apache-2.0
// What modules of Transformer Engine's names compute beside their products, as operators made of ATen's: modules in
// Python (tools/python/fp8/te) have the bits of those here. Autocast is in force inside of them, as it is in a module.
#include <torch/library.h>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/transformer_engine/modules/attention.h"
#include "fp8/transformer_engine/modules/layer_norm.h"
#include "fp8/transformer_engine/modules/multihead_attention.h"

namespace fp8::te {
namespace {

/// Operators of ours run with autocast off, and modules do not.
struct AsInModules {
  const runtime::autocast::OutsideOp outside{runtime::autocast::region_dtype().has_value()};
};

/// Without a bias RMSNorm.
at::Tensor normalized(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, double eps,
                      bool zero_centered_gamma) {
  const AsInModules as;
  const auto kind = bias.has_value() ? Normalization::LayerNorm : Normalization::RMSNorm;
  return normalize(kind, x, weight, bias.value_or(at::Tensor()), eps, zero_centered_gamma);
}

at::Tensor activated(const at::Tensor& x, const std::string& activation) {
  const AsInModules as;
  return activate(activation, x);
}

at::Tensor turned(const at::Tensor& x, const at::Tensor& angles) {
  const AsInModules as;
  return rotated(x, angles);
}

at::Tensor dot_product_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const std::optional<at::Tensor>& mask, const std::string& qkv_format,
                                 const std::string& attn_mask_type, double dropout, std::optional<double> scale) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4, "[fp8::dot_product_attention] q, k: expected four dimensions, found sizes ",
              q.sizes(), " and ", k.sizes());
  const AsInModules as;
  DotProductAttention module(DotProductAttentionOptions{.num_attention_heads = q.size(2),
                                                        .kv_channels = q.size(3),
                                                        .num_gqa_groups = k.size(2),
                                                        .attention_dropout = dropout,
                                                        .qkv_format = qkv_format,
                                                        .attn_mask_type = attn_mask_type,
                                                        .softmax_scale = scale});
  return module->forward(q, k, v, mask.value_or(at::Tensor()));
}

}  // namespace

FP8_LIBRARY_FRAGMENT(fp8, m) {
  m.def("normalized(Tensor x, Tensor weight, Tensor? bias, float eps, bool zero_centered_gamma=False) -> Tensor",
        &normalized);
  m.def("activated(Tensor x, str activation) -> Tensor", &activated);
  m.def("rotary_angles(int dim, int positions, float base, Device device) -> Tensor", &rotary_position_embedding);
  m.def("rotated(Tensor x, Tensor angles) -> Tensor", &turned);
  m.def(
      "dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, str qkv_format, str attn_mask_type, float "
      "dropout=0, float? scale=None) -> Tensor",
      &dot_product_attention);
}

}  // namespace fp8::te
