// SPDX-License-Identifier: Apache-2.0
// The training block of transformer_engine/README.md as a program: what stands between the two marks is that text. The
// names that the READMEs give for several processes, memory, optimizers and lists come from the same header.
#include <torch/torch.h>

#include <iostream>

#include "fp8/fp8.h"

namespace {

at::Tensor step(torch::nn::Sequential& model, const at::Tensor& batch) { return model->forward(batch).pow(2).mean(); }

}  // namespace

int main() {
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::GELU(), torch::nn::Linear(128, 64));
  model->to(torch::Device("hpu"));
  std::vector<at::Tensor> data;
  for (int i = 0; i < 3; ++i) data.push_back(torch::randn({32, 64}).to(torch::Device("hpu")));
  // clang-format off
// README begins
namespace te = fp8::te;
te::HPUPrecisionPlugin plugin("fp8");                                   // also "32-true", "bf16-mixed", "16-mixed"
torch::optim::AdamW optimizer(model->parameters(), 1e-3);               // before or after conversion: parameters stay
                                                                        // the same objects
std::cout << plugin.convert_modules(*model, {.replace_layers = true, .recipe = fp8::recipes::DelayedScaling::nvidia()});
for (const auto& batch : data) {
  at::Tensor loss;
  { const auto region = plugin.forward_context(); loss = step(model, batch); }   // bf16 autocast, fp8_autocast inside
  optimizer.zero_grad(); loss.backward(); optimizer.step();
}
te::save_extra_state(*model, "checkpoint");                             // scales and histories, JSON and safetensors
// README ends
std::cout << te::to_inference(*model);  // training ends: fp8 codes, with scales of the amaxes that training has seen
fp8::quant::save(*model, "trained_fp8", "compressed-tensors", {.overwrite = true});
  // clang-format on
  namespace distributed = fp8::runtime::distributed;
  const auto group = distributed::make_gloo_group(distributed::group_options_from_environment());
  distributed::broadcast_parameters(model->parameters(), *group);
  distributed::all_reduce_gradients(model->parameters(), *group);
  { const auto region = plugin.forward_context({.group = group}); }
  const auto lists = fp8::runtime::autocast::lists();
  fp8::runtime::autocast::set_lists(lists);
  namespace optim = fp8::runtime::optim;
  optim::FusedAdamW adamw(model->parameters());
  optim::FusedSGD sgd(model->parameters());
  optim::FusedLamb lamb(model->parameters());
  std::cout << "memory " << (fp8::runtime::memory_stats().InUse > 0 ? "in use" : "unknown") << ", ranks "
            << group->size() << "\n";
}
