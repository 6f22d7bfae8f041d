// SPDX-License-Identifier: Apache-2.0
// What a token of a decoder takes from the heap, one token after the other over a cache on the device: the demo model
// in fp8 with dynamic scales. Exit code 1 if that is more than was measured. LibTorch needs most of it:
//
//   a result of an operation   its memory, the Block, the storage, the tensor
//   a view or an alias         the tensor
//
//   instructions_decoder FOLDER   of the model's checkpoint
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/models/load.h"
#include "instructions/allocations.h"

namespace {

constexpr long kMost = 260;  // a layer's, and a fourth of what stands before and after them; 241 were measured
constexpr int kTokens = 8;
constexpr int kPrompt = 80;  // as many keys as attention's own kernel takes, and more

}  // namespace

int main(int, char** argv) {
  constexpr int kSkipped = 77;
  if (!fp8::test::counts_allocations()) return kSkipped;
  at::set_num_threads(1);
  fp8::kernels::set_num_threads(1);
  fp8::runtime::init();
  const at::Device hpu(at::kHPU, 0);
  fp8::models::LoadOptions options;
  options.device = hpu, options.dtype = at::kBFloat16;
  const auto loaded = fp8::models::load_model(argv[1], options);
  fp8::quant::convert(*loaded.model, fp8::quant::PlanOptions{});
  fp8::quant::serve(*loaded.model);
  const c10::InferenceMode inference;
  auto cache = loaded.model->make_cache(kPrompt + 2 * kTokens);
  loaded.model->forward(at::arange(kPrompt, at::kLong).unsqueeze(0).to(hpu), cache.get());
  const auto token = at::ones({1, 1}, at::kLong).to(hpu);
  const auto more = [&] {
    for (int i = 0; i < kTokens; ++i) loaded.model->forward(token, cache.get(), fp8::models::CausalLM::Logits::last);
  };
  more();
  const long before = fp8::test::allocations();
  more();
  const auto layers = loaded.model->shape().layers;
  const double each = static_cast<double>(fp8::test::allocations() - before) / kTokens / static_cast<double>(layers);
  const bool failed = each > kMost;
  std::printf("%.1f allocations for a token and layer of %ld%s\n", each, static_cast<long>(layers),
              failed ? ": FAILED" : "");
  return failed ? 1 : 0;
}
