// SPDX-License-Identifier: Apache-2.0
// The example of tools/pages/cpp.md as a program: what stands between the two marks is that page's text. Its output is
// checked by a ctest.
//
// README begins
#include <torch/torch.h>

#include <iostream>

#include "fp8/fp8.h"

int main() {
  torch::nn::Sequential model(torch::nn::Linear(256, 512), torch::nn::GELU(), torch::nn::Linear(512, 64));
  model->to(torch::Device("hpu"));
  torch::NoGradGuard no_grad;
  const auto batch = [] { return torch::randn({32, 256}).to(torch::Device("hpu")); };
  const auto x = batch(), reference = model->forward(x);

  fp8::te::HPUPrecisionPlugin plugin("fp8");
  plugin.convert_modules(*model, {.inference = true, .quant = false});  // measure: run data through the model
  for (int i = 0; i < 2; ++i) model->forward(batch());
  fp8::measure::finalize_calibration(*model);  // writes fp8_measure/inc_output_hooks_maxabs.{json,npz}
  std::cout << plugin.convert_modules(*model, {.inference = true, .quant = true});  // the weights become fp8
  const auto y = model->forward(x);  // activations are cast, products run on fp8
  std::cout << "error " << ((y - reference).norm() / reference.norm()).item<float>() << "\n";
  fp8::quant::save(*model, "fp8_model", "compressed-tensors", {.overwrite = true});
}
// README ends
