// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {
namespace {

TEST(DottedModules, AreMadeWhereTheyAreMissing) {
  torch::nn::Module root("Root");
  const auto linear = add_module(root, "a.b.c", torch::nn::Linear(2, 3));
  const auto below = add_module(root, "a.b.c.d", torch::nn::Linear(3, 3));
  const auto beside = add_module(root, "a.e", torch::nn::Linear(1, 1));
  const auto modules = root.named_modules("", /*include_self=*/false);
  EXPECT_EQ(modules.size(), 5);  // a, a.b, a.b.c, a.b.c.d, a.e
  EXPECT_EQ(modules["a.b.c"].get(), linear.get());
  EXPECT_EQ(modules["a.b.c.d"].get(), below.get());
  EXPECT_EQ(modules["a.e"].get(), beside.get());
  EXPECT_EQ(&module_at(root, ""), &root);
  EXPECT_EQ(&module_at(root, "a.b"), modules["a.b"].get());
  EXPECT_EQ(module_at(root, "x.y", "Kind").name(), "Kind");
}

TEST(DottedModules, PathsHaveParentsAndLeaves) {
  EXPECT_EQ(parent_of("a.b.c"), "a.b");
  EXPECT_EQ(leaf_of("a.b.c"), "c");
  EXPECT_EQ(parent_of("a"), "");
  EXPECT_EQ(leaf_of("a"), "a");
  EXPECT_EQ(leaf_of("a."), "");
}

}  // namespace
}  // namespace fp8::models
