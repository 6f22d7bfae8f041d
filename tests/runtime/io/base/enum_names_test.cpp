// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/enum_names.h"

#include "fp8/runtime/kernels/format.h"
#include "fp8/runtime/kernels/simd.h"
#include "support/enum_names.h"

namespace fp8::test {

enum class Fruit : std::uint8_t { apple, pear, plum };
constexpr auto names_of(Fruit) {
  using enum Fruit;
  return std::to_array<EnumName<Fruit>>({{pear, "pear"}, {apple, "red apple"}, {plum, "plum"}});
}

enum class Tree : std::uint8_t { oak, elm, ash };
constexpr auto names_of(Tree) { return std::to_array<EnumName<Tree>>({{Tree::oak, "oak"}, {Tree::elm, "elm"}}); }

enum class Bush : std::uint8_t { rose, sloe };
constexpr auto names_of(Bush) { return std::to_array<EnumName<Bush>>({{Bush::rose, "rose"}, {Bush::sloe, "rose"}}); }

enum class Nameless : std::uint8_t { one };

namespace {

static_assert(NamedEnum<Fruit> && !NamedEnum<Nameless> && !NamedEnum<int>);
static_assert(std::string_view(name_of(Fruit::apple)) == "red apple");
static_assert(parse_enum<Fruit>("red apple") == Fruit::apple);

TEST(EnumNames, RoundTrip) {
  check_names<Fruit>();
  check_names<kernels::Format>();
  check_names<kernels::Dialect>();
  check_names<kernels::FloatType>();
  check_names<kernels::SimdLevel>();
}

TEST(EnumNames, ListsInTheOrderOfTheTable) {
  EXPECT_EQ(allowed_names<Fruit>(), "pear, red apple, plum");
  EXPECT_EQ(allowed_names(choice_of({Fruit::plum, Fruit::pear})), "plum, pear");
  EXPECT_TRUE(choice_of<Fruit>().at(1).value == Fruit::apple);
}

TEST(EnumNames, AReaderMayHaveNamesOfItsOwn) {
  const EnumChoice<Fruit> own = {{Fruit::plum, "damson"}, {Fruit::pear, "Williams"}};
  EXPECT_EQ(allowed_names(own), "damson, Williams");
  EXPECT_STREQ(name_of(Fruit::plum, own), "damson");
  EXPECT_STREQ(name_of(Fruit::apple, own), "unknown");
}

TEST(EnumNames, KnowsExactNamesOnly) {
  for (const char* name : {"", "Pear", "pear ", "pea", "apple", "red"})
    EXPECT_FALSE(parse_enum<Fruit>(name).has_value()) << name;
}

TEST(EnumNames, ChecksFindWhatIsMissingOrDouble) {
  static_assert(!has_a_row_for_each_value<Tree>());  // no row for ash
  static_assert(has_a_row_for_each_value<Bush>());
  static_assert(has_a_name_for_each_row<Tree>());
  static_assert(!has_a_name_for_each_row<Bush>());
  EXPECT_STREQ(name_of(Tree::ash), "unknown");
}

}  // namespace
}  // namespace fp8::test
