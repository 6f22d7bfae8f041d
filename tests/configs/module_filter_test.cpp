// SPDX-License-Identifier: Apache-2.0
// The rule of allowlist and blocklist: every combination against its formula, the documented cases, and unused
// entries.
#include "fp8/configs/module_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fp8/runtime/io/base/file.h"

namespace fp8::configs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool selects(const ModuleList& allow, const ModuleList& block, const char* type, const char* name) {
  return ModuleFilter(allow, block, "quant.json").selects(type, name);
}

// All 16 combinations of lists that do or do not hold the module's type and name.
TEST(ModuleFilter, FollowsTheFormula) {
  for (int bits = 0; bits < 64; ++bits) {
    const bool allow_type = bits & 1, allow_name = bits & 2, block_type = bits & 4, block_name = bits & 8;
    const bool other_type = bits & 16, other_name = bits & 32;  // entries that match something else
    ModuleList allow, block;
    if (allow_type) allow.types.push_back("Linear");
    if (other_type) allow.types.push_back("Conv2d");
    if (allow_name) allow.names.push_back("fc1");
    if (other_name) allow.names.push_back("gate");
    if (block_type) block.types.push_back("Linear");
    if (block_name) block.names.push_back("fc1");
    const bool empty = !allow_type && !allow_name && !other_type && !other_name;
    EXPECT_EQ(selects(allow, block, "Linear", "layers.0.fc1"),
              !block_type && (empty || allow_type || allow_name) && !block_name)
        << bits;
  }
}

TEST(ModuleFilter, EmptyListsSelectEverything) { EXPECT_TRUE(selects({}, {}, "Linear", "fc")); }

TEST(ModuleFilter, TypesAreExactNamesAreSearched) {
  EXPECT_FALSE(selects({{}, {"torch.nn.Linear"}}, {}, "Linear", "fc"));
  EXPECT_FALSE(selects({{}, {"linear"}}, {}, "Linear", "fc"));
  EXPECT_FALSE(selects({{}, {"Lin"}}, {}, "Linear", "fc"));
  EXPECT_TRUE(selects({{"ayers"}, {}}, {}, "Linear", "layers.0.fc"));
  EXPECT_FALSE(selects({{"Layers"}, {}}, {}, "Linear", "layers.0.fc"));
  EXPECT_FALSE(selects({}, {{"lm_head"}, {}}, "Linear", "model.lm_head"));
  EXPECT_TRUE(selects({}, {{R"(mlp\.gate\b)"}, {}}, "Linear", "layers.0.mlp.gate_proj"));
}

TEST(ModuleFilter, BlocklistBeatsAllowlist) {
  EXPECT_FALSE(selects({{"fc"}, {"Linear"}}, {{"fc"}, {}}, "Linear", "fc"));
  EXPECT_FALSE(selects({{"fc"}, {"Linear"}}, {{}, {"Linear"}}, "Linear", "fc"));
}

TEST(ModuleFilter, BadPatternNamesListAndIndex) {
  try {
    ModuleFilter({}, {{"ok", "a(b"}, {}}, "quant.json");
    FAIL() << "no error";
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("quant.json: key 'blocklist.names[1]': pattern 'a(b'"), HasSubstr("offset 3")));
  }
}

TEST(ModuleFilter, UnusedEntriesAreThoseThatNoModuleNeeded) {
  ModuleFilter filter({{"fc1", "router"}, {"torch.nn.Linear", "Linear"}}, {{"lm_head"}, {"Embeding"}}, "quant.json");
  filter.selects("Linear", "layers.0.fc1");
  filter.selects("Embedding", "embed");
  filter.selects("Linear", "lm_head");
  const std::vector<UnusedEntry> unused = filter.unused_entries();
  ASSERT_EQ(unused.size(), 3u);
  EXPECT_EQ(unused[0].key, "allowlist.types");
  EXPECT_EQ(unused[0].entry, "torch.nn.Linear");
  EXPECT_THAT(unused[0].message,
              AllOf(HasSubstr("quant.json: key 'allowlist.types': 'torch.nn.Linear' matches no module"),
                    HasSubstr("did you mean 'Linear'?")));
  EXPECT_EQ(unused[1].key, "allowlist.names");
  EXPECT_EQ(unused[1].entry, "router");
  EXPECT_THAT(unused[1].message, HasSubstr("regular expressions"));
  EXPECT_EQ(unused[2].key, "blocklist.types");
  EXPECT_THAT(unused[2].message, HasSubstr("did you mean 'Embedding'?"));
}

// An entry counts as used even when another one decided before it.
TEST(ModuleFilter, EveryMatchingEntryIsUsed) {
  ModuleFilter filter({{"fc", "fc1"}, {"Linear"}}, {{"fc"}, {"Linear"}}, "quant.json");
  EXPECT_FALSE(filter.selects("Linear", "fc1"));
  EXPECT_TRUE(filter.unused_entries().empty());
}

TEST(ModuleFilter, UnusedEntryOfAModelWithoutModulesHasNoSuggestion) {
  const ModuleFilter filter({{}, {"torch.nn.Linear"}}, {}, "quant.json");
  ASSERT_EQ(filter.unused_entries().size(), 1u);
  EXPECT_THAT(filter.unused_entries()[0].message, testing::Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace fp8::configs
