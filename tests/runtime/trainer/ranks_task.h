// SPDX-License-Identifier: Apache-2.0
// The task that tests of several ranks train.
#pragma once
#include "runtime/trainer/toy_task.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::trainer::testing {

using Group = std::shared_ptr<runtime::distributed::ProcessGroup>;

/// A network without random numbers.
class PlainTask : public TrainingModule {
 public:
  explicit PlainTask(std::uint64_t seed) {
    torch::manual_seed(seed);
    net = torch::nn::Sequential(torch::nn::Linear(4, 40), torch::nn::Tanh(), torch::nn::Linear(40, 1));
    net->to(test::kHpu);
  }
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const Batch& batch, std::int64_t) override {
    return torch::mse_loss(net->forward(moved(batch.tensors[0])), moved(batch.tensors[1]));
  }
  at::Tensor moved(const at::Tensor& t) const {
    return pinned ? t.pin_memory().to(test::kHpu, /*non_blocking=*/true) : t.to(test::kHpu);
  }
  Optimizers configure_optimizers() override {
    return {{std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01))}};
  }
  torch::nn::Sequential net;
  bool pinned = false;  ///< copies that do not wait
};

inline bool same_everywhere(const at::Tensor& t, const Group& group) {
  at::Tensor of_first = t.detach().clone();
  group->broadcast(of_first, 0);
  return test::same_bits(of_first, t.detach());
}

}  // namespace fp8::trainer::testing
