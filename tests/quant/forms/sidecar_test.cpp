// SPDX-License-Identifier: Apache-2.0
// fp8.json: what is written, read back, and refused.
#include "fp8/quant/forms/folder.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/version.h"
#include "support/throws_with.h"

namespace fp8::quant {
namespace {

using test::throws_with;

TEST(Sidecar, HoldsWhatTheFormatHasNoWordsFor) {
  Plan plan;
  plan.scale_method = "MAXABS_HW";
  plan.measurements = "0123456789abcdef";
  plan.skipped = {{"lm_head", "kept"}};
  Scheme s;
  s.dialect = recipes::Dialect::gaudi2;
  s.convention = Convention::inc;
  const auto json = make_sidecar(plan, s);
  EXPECT_EQ(json, (io::Json{{"tool", "fp8 " FP8_VERSION},
                            {"dialect", "gaudi2"},
                            {"convention", "inc"},
                            {"scale_method", "MAXABS_HW"},
                            {"hp_dtype", "bf16"},
                            {"measurements", "0123456789abcdef"},
                            {"skipped", {{"lm_head", "kept"}}}}));
  const Scheme back = read_sidecar(json, "fp8.json");
  EXPECT_EQ(back.dialect, s.dialect);
  EXPECT_EQ(back.convention, s.convention);
  EXPECT_EQ(back.hp, s.hp);
}

TEST(Sidecar, OwnConventionHasNoHpDtype) {
  const auto json = make_sidecar({}, {});
  EXPECT_TRUE(json["hp_dtype"].is_null());
  EXPECT_TRUE(json["measurements"].is_null());
  EXPECT_EQ(json["skipped"], io::Json::object());
  EXPECT_EQ(read_sidecar(json, "x").convention, Convention::own);
}

TEST(Sidecar, BadOnesAreNamed) {
  const auto fails = [](const io::Json& json, const std::vector<std::string>& words) {
    EXPECT_TRUE(throws_with(words, [&] { read_sidecar(json, "d/fp8.json"); })) << json;
  };
  fails(io::Json::array(), {"d/fp8.json", "'dialect'", "a string"});
  fails({{"dialect", 3}}, {"d/fp8.json", "'dialect'"});
  fails({{"dialect", "gaudi9"}, {"convention", "own"}},
        {"d/fp8.json: key 'dialect'", "\"gaudi9\"", "gaudi2, gaudi3, ocp"});
  fails({{"dialect", "ocp"}}, {"'convention'"});
  fails({{"dialect", "ocp"}, {"convention", "other"}}, {"'convention'", "\"other\"", "own, inc"});
  fails({{"dialect", "ocp"}, {"convention", "inc"}, {"hp_dtype", nullptr}}, {"'hp_dtype'"});
  fails({{"dialect", "ocp"}, {"convention", "inc"}, {"hp_dtype", "f64"}}, {"'hp_dtype'", "\"f64\"", "f32, bf16, f16"});
}

}  // namespace
}  // namespace fp8::quant
