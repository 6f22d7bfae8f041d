// SPDX-License-Identifier: Apache-2.0
// A tensor is looked at once as long as nobody writes to it, and never kept alive.
#include <c10/core/InferenceMode.h>

#include "fp8/measure/calibration/watched_node.h"
#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/device/block.h"
#include "support/hpu_test.h"

namespace fp8::measure {
namespace {

using test::hpu;

/// Writes without anybody's knowing: a second look would show it.
void write_behind(const at::Tensor& t, float value) { runtime::cpu_alias(t).mutable_data_ptr<float>()[0] = value; }

TEST(TensorMemory, LooksOnceAtEachOfAFewTensors) {
  TensorMemory memory;
  std::vector<at::Tensor> tensors;
  for (int i = 1; i <= 4; ++i) tensors.push_back(hpu(torch::full({3}, static_cast<float>(-i))));
  for (const auto& t : tensors) memory.find(t, true).memo = std::string("seen");
  for (int i = 0; i < 4; ++i) {
    write_behind(tensors[static_cast<std::size_t>(i)], 100.0f);
    const auto& entry = memory.find(tensors[static_cast<std::size_t>(i)], true);
    EXPECT_EQ(entry.amax, static_cast<float>(i + 1));
    EXPECT_TRUE(entry.memo.has_value());
  }
  memory.find(hpu(torch::ones({1})), true);  // the fifth takes the first one's place
  EXPECT_EQ(memory.find(tensors[0], true).amax, 100.0f);
  memory.clear();
  EXPECT_EQ(memory.find(tensors[3], true).amax, 100.0f);
}

TEST(TensorMemory, LooksAgainAfterAWrite) {
  TensorMemory memory;
  at::Tensor t = hpu(torch::ones({3}));
  memory.find(t, true).memo = 1;
  t.mul_(5);
  EXPECT_EQ(memory.find(t, true).amax, 5.0f);
  EXPECT_FALSE(memory.find(t, true).memo.has_value());
}

TEST(TensorMemory, InferenceTensorsAreLookedAtEveryTime) {
  TensorMemory memory;
  const c10::InferenceMode inference;
  const at::Tensor t = hpu(torch::ones({3}));
  EXPECT_EQ(memory.find(t, true).amax, 1.0f);
  write_behind(t, 7.0f);
  EXPECT_EQ(memory.find(t, true).amax, 7.0f);
}

TEST(TensorMemory, AnotherTensorAtTheSameAddressIsAnother) {
  TensorMemory memory;
  for (int i = 0; i < 100; ++i) {
    const at::Tensor t = hpu(torch::full({3}, static_cast<float>(i)));
    ASSERT_EQ(memory.find(t, true).amax, static_cast<float>(i));
  }
}

TEST(TensorMemory, KeepsNoMemoryOfTheDevice) {
  const auto before = runtime::memory_stats().InUse;
  TensorMemory memory;
  memory.find(hpu(torch::ones({1000})), true);
  EXPECT_EQ(runtime::memory_stats().InUse, before);
}

TEST(TensorMemory, AmaxOfViewsIsTheViews) {
  const at::Tensor t = hpu(torch::randn({6, 7, 8}));
  for (const at::Tensor& view : {t, t.transpose(0, 2), t.narrow(1, 2, 3), t.select(2, 1),
                                 t.narrow(0, 1, 2).transpose(1, 2), t.expand({2, 6, 7, 8}), t.narrow(0, 0, 0)}) {
    EXPECT_EQ(amax_of(view), view.numel() == 0 ? 0.0f : view.cpu().abs().max().item<float>()) << view.sizes();
  }
}

TEST(TensorMemory, UnreadValuesMayBeAnything) {
  TensorMemory memory;
  EXPECT_EQ(memory.find(hpu(torch::full({2}, NAN)), false).amax, 0.0f);
}

}  // namespace
}  // namespace fp8::measure
