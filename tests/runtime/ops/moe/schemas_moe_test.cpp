// SPDX-License-Identifier: Apache-2.0
// The second page of schemas: those of bridge 1.19 argument by argument; of the later ones names and order; all have
// kernels for hpu and meta tensors.
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include "runtime/ops/op_call.h"
#include "support/schema_test.h"

namespace fp8::test {
namespace {

const char* const kVendor[] = {
    "hpu::mixture_of_experts(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, Tensor[] w1, "
    "Tensor[] w2, Tensor[] w3, bool permuted_weights, str activation, int experts_min, int experts_max) -> Tensor",
    "hpu::mixture_of_experts.fused_weights(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, "
    "Tensor[] w12, Tensor[] w3, bool permuted_weights, str activation, int experts_min, int experts_max) -> Tensor",
    "hpu::mixture_of_experts.fp8_measurement(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, "
    "Tensor[] w1, Tensor[] w2, Tensor[] w3, bool permuted_weights, str activation, int experts_min, int experts_max, "
    "bool measurement_mode) -> (Tensor, Tensor)",
    "hpu::mixture_of_experts.fp8_measurement_fused_weights(Tensor hidden_states, Tensor expert_routing_table, Tensor "
    "router_weights, Tensor[] w12, Tensor[] w3, bool permuted_weights, str activation, int experts_min, int "
    "experts_max, bool measurement_mode) -> (Tensor, Tensor)",
    "hpu::in_place_interleave(Tensor self) -> Tensor",
    "hpu::in_place_interleave_(Tensor(a!) self) -> Tensor(a!)",
    "hpu::kv_reorder(Tensor self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor",
    "hpu::kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!)",
    "hpu::convert_from_int4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor",
    "hpu::convert_from_uint4(Tensor input, Tensor scale, Tensor? zero_point, ScalarType out_dtype) -> Tensor",
    "hpu::fake_quant_fp4(Tensor input, bool stochastic_rounding, int axis, str dtype) -> Tensor",
    "hpu::fp8_gemm(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor D, ScalarType out_dtype, Tensor? "
    "A_scale_inv, "
    "Tensor? B_scale_inv, Tensor? bias, bool accumulate, Tensor(a!) out) -> Tensor(a!)",
    "hpu::fp8_index_copy_(Tensor(a!) self, int dim, Tensor index, Tensor source) -> Tensor(a!)",
    "hpu::fp8_index_select_v2(Tensor self, int dim, Tensor index) -> Tensor",
    "hpu::fp8_repeat_v2(Tensor self, SymInt[] repeats) -> Tensor",
    "hpu::fp8_kv_reorder_(Tensor(a!) self, Tensor start, Tensor end, Tensor beam_idx) -> Tensor(a!)",
    "hpu::fp8_copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)",
    "hpu::fp8_transpose(Tensor input, Tensor(a!) out) -> Tensor(a!)",
    "hpu::fp8_permute(Tensor input, int[] dims, Tensor(a!) out) -> Tensor(a!)",
    "hpu::fp8_reshape(Tensor input, int[] shape) -> Tensor",
};

TEST(SecondPage, EqualsTheVendors) {
  for (const char* text : kVendor) test::expect_schema(text);
}

TEST(SecondPage, LaterExpertsHaveTheOrderOfTheLaterBridge) {
  // What stands between the weights and permuted_weights; the rest is common.
  const std::pair<const char*, std::vector<std::string>> kForms[] = {
      {"fp8",
       {"d_scale_hidden_states", "d_scale_intermediate_hidden_states", "d_scale_w1", "d_scale_w2", "d_scale_w3"}},
      {"fp8_fused_weights",
       {"d_scale_hidden_states", "d_scale_intermediate_hidden_states", "d_scale_w12", "d_scale_w3"}},
      {"fp8_dynamic", {"d_scale_hidden_states", "d_scale_w1", "d_scale_w2", "d_scale_w3"}},
      {"fp8_fused_weights_dynamic", {"d_scale_hidden_states", "d_scale_w12", "d_scale_w3"}},
      {"fp8_blockwise", {"d_scale_w1", "d_scale_w2", "d_scale_w3", "block_size"}},
      {"fp8_fused_weights_blockwise", {"d_scale_w12", "d_scale_w3", "block_size"}},
  };
  for (const auto& [form, scales] : kForms) {
    const std::string name = form;
    const std::size_t dynamic = name.find("_dynamic");
    const std::string scalars =
        dynamic == std::string::npos ? name + "_scalars" : name.substr(0, dynamic) + "_scalars_dynamic";
    std::vector<std::string> expected = {"hidden_states", "expert_routing_table", "router_weights"};
    const bool fused = name.find("fused") != std::string::npos;
    for (const char* w : fused ? std::vector<const char*>{"w12", "w3"} : std::vector<const char*>{"w1", "w2", "w3"})
      expected.emplace_back(w);
    expected.insert(expected.end(), scales.begin(), scales.end());
    for (const char* tail :
         {"permuted_weights", "activation", "experts_min", "experts_max", "chunk_size", "total_experts"})
      expected.emplace_back(tail);
    const bool blockwise = name.find("blockwise") != std::string::npos;
    for (const std::string& overload :
         blockwise ? std::vector<std::string>{name} : std::vector<std::string>{name, scalars}) {
      const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("hpu::mixture_of_experts", overload.c_str());
      std::vector<std::string> names;
      for (const auto& argument : op.schema().arguments()) names.push_back(argument.name());
      EXPECT_EQ(names, expected) << overload;
      EXPECT_EQ(op.schema().arguments().back().default_value()->toInt(), 0);
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::HPU)) << overload;
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) << overload;
    }
  }
}

}  // namespace
}  // namespace fp8::test
