// SPDX-License-Identifier: Apache-2.0
// The tables of kinds and classes.
#include "fp8/configs/module_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace fp8::configs {
namespace {

TEST(ModuleTypes, RowsOfKindsFitTogether) {
  for (const KindInfo& info : module_kinds()) {
    const char* name = name_of(info.kind);
    EXPECT_EQ(&info_of(info.kind), &info) << name;
    EXPECT_TRUE(!info.linear || info.weight) << name;
    EXPECT_TRUE(!info.product || (info.inputs == 2 && !info.weight)) << name;
    EXPECT_TRUE(!info.lookup || info.weight) << name;
    EXPECT_EQ(info.inputs > 0, info.quantized) << name;
  }
}

TEST(ModuleTypes, EveryKindHasAClassAndEveryClassStandsOnce) {
  std::set<ModuleKind> kinds;
  std::set<std::string_view> names;
  for (const ModuleType& type : module_types()) {
    kinds.insert(type.kind);
    EXPECT_TRUE(names.insert(type.name).second) << type.name;
    const ModuleType* found = find_module_type(type.name);
    ASSERT_NE(found, nullptr) << type.name;
    EXPECT_EQ(found->name, type.name);
    EXPECT_TRUE(is_of_kind(type.name, type.kind)) << type.name;
  }
  EXPECT_EQ(kinds.size(), module_kinds().size());
}

TEST(ModuleTypes, KindsAreAskedByClass) {
  EXPECT_TRUE(is_linear("Linear"));
  EXPECT_TRUE(is_linear("RowParallelLinear"));
  for (const char* other : {"Conv2d", "Embedding", "Matmul", "LayerNorm", "linear", ""}) EXPECT_FALSE(is_linear(other));
  EXPECT_TRUE(type_is("VLLMKVCache", &KindInfo::cache));
  for (const char* other : {"Softmax", "FusedMoE", "LayerNorm"}) EXPECT_FALSE(type_is(other, &KindInfo::cache));
  EXPECT_TRUE(is_of_kind("VLLMKVCache", ModuleKind::kv_cache));
  EXPECT_FALSE(is_of_kind("Softmax", ModuleKind::kv_cache));
  EXPECT_FALSE(is_of_kind("LayerNorm", ModuleKind::no_quantize)) << "not known";
}

}  // namespace
}  // namespace fp8::configs
