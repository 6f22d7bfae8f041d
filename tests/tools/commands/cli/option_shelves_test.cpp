// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/option_shelves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

TEST(OptionShelves, NewcomersSeeFew) {
  EXPECT_EQ(shelf_of("quantize", "--dynamic"), Shelf::common);
  EXPECT_EQ(shelf_of("quantize", "--shard-size"), Shelf::advanced);
  EXPECT_EQ(shelf_of("quantize", "--lease-seconds"), Shelf::processes);
  EXPECT_EQ(shelf_of("measurements expand", "--world-size"), Shelf::common);
  EXPECT_EQ(shelf_of("quantize", "--json"), Shelf::common);
  EXPECT_EQ(shelf_of("somebody's", "--shares"), Shelf::common);
}

/// Each command has fewer than 30 options on its first screen, all with a sentence, and none twice.
TEST(OptionShelves, EveryCommandsFirstScreen) {
  std::set<std::string> shelves;
  const auto look_at = [&](const CommandPage& page) {
    std::set<std::string> names;
    for (const OptionRow& option : page.options) {
      for (const auto& name : option.names) EXPECT_TRUE(names.insert(name).second) << page.name << " " << name;
      EXPECT_GT(option.help.size(), 5u) << page.name << " " << option.long_name();
      shelves.insert(std::to_string(static_cast<int>(option.shelf)));
    }
    EXPECT_LT(std::ranges::count(page.options, Shelf::common, &OptionRow::shelf), 30) << page.name;
    const bool has_help = names.contains("--help-all") && (page.name == "help" || names.contains("--help"));
    EXPECT_TRUE(has_help || !page.children.empty()) << page.name;
  };
  const CommandPage program = page_of_program();
  EXPECT_GE(program.children.size(), 14u);
  for (const CommandPage& page : program.children) {
    look_at(page);
    for (const CommandPage& child : page.children) look_at(child);
  }
  EXPECT_EQ(shelves.size(), 3u);
}

}  // namespace
}  // namespace fp8::commands
