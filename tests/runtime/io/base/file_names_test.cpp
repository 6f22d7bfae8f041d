// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"

namespace fp8::io {
namespace {

TEST(FileNames, ShardsAreCountedFromOne) {
  EXPECT_EQ(shard_file(0, 3), "model-00001-of-00003.safetensors");
  EXPECT_EQ(shard_file(2, 3), "model-00003-of-00003.safetensors");
  EXPECT_EQ(shard_file(99999, 123456), "model-100000-of-123456.safetensors");
}

TEST(FileNames, TheOnlyShardIsTheWeights) {
  EXPECT_EQ(shard_file(0, 1), "model.safetensors");
  EXPECT_EQ(kWeightsFile + std::string(".index.json"), kIndexFile);
  EXPECT_EQ(kTorchWeightsFile + std::string(".index.json"), kTorchIndexFile);
}

}  // namespace
}  // namespace fp8::io
