// SPDX-License-Identifier: Apache-2.0
// Several linear layers of one shape, each for its own share of the rows (experts): y = concat_i(x_i w_i^T + b_i), each
// product in fp8 with scales of its own inside an enabled fp8_autocast region.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <vector>

#include "fp8/transformer_engine/modules/fp8_cloneable.h"
#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {

struct GroupedLinearOptions {
  std::int64_t num_gemms = 0, in_features = 0, out_features = 0;
  bool bias = true;
  bool return_bias = false;                  ///< the biases are not added; they are the members `biases`
  at::ScalarType params_dtype = at::kFloat;  ///< f32, bf16 or f16
  InitMethod init_method = nullptr;
  at::Device device = at::Device(at::kHPU, 0);
  bool minimize_memory = false;
  std::string name = "grouped_linear";
  ParallelOptions parallel = {};
  bool save_original_input = false;                                   ///< as in Linear
  bool fuse_wgrad_accumulation = false, delay_wgrad_compute = false;  ///< not built: refused
};

class GroupedLinearImpl : public Fp8Cloneable<GroupedLinearImpl> {
 public:
  /// Throws c10::Error naming the argument.
  explicit GroupedLinearImpl(GroupedLinearOptions options);
  GroupedLinearImpl(std::int64_t num_gemms, std::int64_t in_features, std::int64_t out_features)
      : GroupedLinearImpl(
            GroupedLinearOptions{.num_gemms = num_gemms, .in_features = in_features, .out_features = out_features}) {}

  void reset() override;
  /// x: [..., in_features]; m_splits: num_gemms numbers >= 0 of rows (all but the last dimension counted together) that
  /// sum to those of x. Throws c10::Error naming both where they don't fit.
  at::Tensor forward(const at::Tensor& x, const std::vector<std::int64_t>& m_splits,
                     std::optional<bool> is_first_microbatch = std::nullopt);

  /// One per product.
  std::vector<std::shared_ptr<Fp8State>> fp8_states() const override { return states_; }
  void pretty_print(std::ostream& stream) const override;

  const GroupedLinearOptions& options() const { return options_; }

  std::vector<at::Tensor> weights;  ///< parameters weight0, weight1, ...: [out_features, in_features]
  std::vector<at::Tensor> biases;   ///< bias0, ...: [out_features]; undefined without

 private:
  GroupedLinearOptions options_;
  std::vector<std::shared_ptr<Fp8State>> states_;
};
TORCH_MODULE(GroupedLinear);

}  // namespace fp8::te
