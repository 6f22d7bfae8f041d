// SPDX-License-Identifier: Apache-2.0
// Recipes from JSON: every key, every rejection by file and key, rules by module name, exact round trips, and the
// shipped files against the structs' defaults.
#include "fp8/configs/recipe_config.h"

#include <random>

#include "support/golden.h"
#include "support/temp_dir.h"
#include "support/throws_with.h"

namespace fp8::configs {
namespace {

using recipes::AmaxComputeAlgo;
using recipes::BlockScaling;
using recipes::CurrentScaling;
using recipes::DelayedScaling;
using recipes::MXFP8;
using recipes::Recipe;
using recipes::RecipeFormat;

RecipeConfig parse(const std::string& text) { return parse_recipe(io::parse_json(text, "r.json"), "r.json"); }

std::string error_in(const std::string& text) {
  return error_of<io::Error>([&] { parse(text); });
}

TEST(RecipeConfig, EmptyObjectIsTheDefault) {
  const RecipeConfig config = parse("{}");
  EXPECT_EQ(config.recipe, Recipe(DelayedScaling::habana()));
  EXPECT_TRUE(config.rules.empty());
  EXPECT_EQ(config.source, "r.json");
  EXPECT_EQ(parse(R"({"recipe": "delayed"})").recipe, Recipe(DelayedScaling::habana()));
}

TEST(RecipeConfig, EveryKeyOfDelayedScaling) {
  DelayedScaling expected{.margin = -2,
                          .interval = 16,
                          .fp8_format = RecipeFormat::HYBRID,
                          .amax_history_len = 8,
                          .amax_compute_algo = AmaxComputeAlgo::max};
  expected.reduce_amax = false, expected.power_of_two_scale = false, expected.stale_row_compat = true;
  EXPECT_EQ(parse(R"({"margin": -2, "interval": 16, "fp8_format": "hybrid", "amax_history_len": 8,
                      "amax_compute_algo": "MAX", "reduce_amax": false, "power_of_two_scale": false,
                      "stale_row_compat": true, "override_linear_precision": [false, false, false],
                      "scaling_factor_compute_algo": null})")
                .recipe,
            Recipe(expected));
  DelayedScaling nvidia = DelayedScaling::nvidia();
  nvidia.margin = 3, nvidia.override_linear_precision = {false, false, true};
  EXPECT_EQ(parse(R"({"margin": 3, "override_linear_precision": [false, false, true], "preset": "nvidia"})").recipe,
            Recipe(nvidia));  // the preset comes first wherever it stands
}

/// DelayedScaling has a member `dialect`: setting it means what "preset" says.
TEST(RecipeConfig, DialectIsAcceptedWhereTheStructSaysSo) {
  EXPECT_EQ(parse(R"({"dialect": "nvidia"})").recipe, Recipe(DelayedScaling::nvidia()));
  EXPECT_EQ(parse(R"({"recipe": "delayed", "dialect": "habana"})").recipe, Recipe(DelayedScaling::habana()));
  EXPECT_EQ(parse(R"({"preset": "nvidia", "dialect": "NVIDIA"})").recipe, Recipe(DelayedScaling::nvidia()));
  EXPECT_EQ(parse(R"({"preset": "habana-hybrid", "dialect": "habana"})").recipe,
            parse(R"({"preset": "habana-hybrid"})").recipe);
  const RecipeConfig rule = parse(R"({"modules": [{"match": "up", "dialect": "nvidia"}, )"
                                  R"({"match": "down", "recipe": "delayed", "dialect": "nvidia", "margin": 1}]})");
  EXPECT_EQ(*rule.for_module("up"), Recipe(DelayedScaling::nvidia()));
  auto with_margin = DelayedScaling::nvidia();
  with_margin.margin = 1;
  EXPECT_EQ(*rule.for_module("down"), Recipe(with_margin));
  EXPECT_GOLDEN(error_in(text));
}

TEST(RecipeConfig, EveryKeyOfTheOthers) {
  EXPECT_EQ(
      parse(R"({"recipe": "current", "fp8_format": "E4M3", "power_of_two_scale": true, "amax_epsilon": 0.25})").recipe,
      Recipe(CurrentScaling{RecipeFormat::E4M3, true, 0.25f}));
  EXPECT_EQ(parse(R"({"recipe": "block", "fp8_format": "HYBRID", "x_block_scaling_dim": 2, "w_block_scaling_dim": 1,
                      "grad_block_scaling_dim": 1, "power_of_two_scale": false, "block": 64, "amax_epsilon": 1e-3})")
                .recipe,
            Recipe(BlockScaling{RecipeFormat::HYBRID, 2, 1, 1, false, 64, 1e-3f}));
  EXPECT_EQ(parse(R"({"recipe": "MXFP8", "fp8_format": "HYBRID", "block": 32})").recipe,
            Recipe(MXFP8{RecipeFormat::HYBRID, 32}));
}

TEST(RecipeConfig, RulesByNameTheFirstCounts) {
  const RecipeConfig config = parse(R"({"recipe": "mxfp8", "modules": [
      {"match": "lm_head$", "keep": "bf16"},
      {"match": "^layers\\.0\\.", "recipe": "current", "power_of_two_scale": true},
      {"match": "layers\\.\\d+\\.mlp", "recipe": "delayed", "preset": "nvidia", "amax_history_len": 4}]})");
  ASSERT_EQ(config.rules.size(), 3u);
  EXPECT_EQ(config.for_module("model.lm_head"), nullptr);
  EXPECT_EQ(*config.for_module("lm_head.norm"), Recipe(MXFP8{}));
  EXPECT_EQ(*config.for_module("layers.0.mlp"), Recipe(CurrentScaling{.power_of_two_scale = true}));
  EXPECT_EQ(*config.for_module("model.layers.0.attention"), Recipe(MXFP8{}));
  DelayedScaling nvidia = DelayedScaling::nvidia();
  nvidia.amax_history_len = 4;
  EXPECT_EQ(*config.for_module("model.layers.12.mlp.up"), Recipe(nvidia));
  EXPECT_EQ(*config.for_module(""), Recipe(MXFP8{}));
}

TEST(RecipeConfig, RejectionsNameFileKeyFoundAndAllowed) { EXPECT_GOLDEN(error_in(text)); }

TEST(RecipeConfig, RejectionsInsideOfRules) { EXPECT_GOLDEN(error_in(text)); }

Recipe random_recipe(std::mt19937& random) {
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const RecipeFormat format = upto(2) == 0 ? RecipeFormat::HYBRID : RecipeFormat::E4M3;
  const float epsilon = std::ldexp(static_cast<float>(random()), -40 - upto(100));
  switch (upto(5)) {
    case 0: return CurrentScaling{format, upto(2) == 0, epsilon};
    case 1: return BlockScaling{format, 1 + upto(2), 1, 1, upto(2) == 0, 16 << upto(7), epsilon};
    case 2: return MXFP8{format, 32};
    case 3: {
      DelayedScaling nvidia = DelayedScaling::nvidia();
      nvidia.fp8_format = format, nvidia.margin = upto(9) - 4, nvidia.override_linear_precision[2] = upto(2) == 0;
      return nvidia;
    }
    default: {
      DelayedScaling habana{.margin = upto(129) - 64, .interval = 1 + upto(100), .amax_history_len = 1 + upto(65536)};
      habana.reduce_amax = upto(2) == 0, habana.stale_row_compat = upto(2) == 0,
      habana.power_of_two_scale = upto(2) == 0;
      habana.amax_compute_algo = upto(2) == 0 ? AmaxComputeAlgo::max : AmaxComputeAlgo::most_recent;
      return habana;
    }
  }
}

TEST(RecipeConfig, RoundTripsAreExact) {
  const test::TempDir folder;
  std::mt19937 random(21);
  for (int i = 0; i < 300; ++i) {
    RecipeConfig config{random_recipe(random), {}, "made"};
    for (unsigned rule = random() % 4; rule > 0; --rule) {
      config.rules.push_back({"layers\\.[0-" + std::to_string(rule) + "]\"\u00e4", std::nullopt});
      if (random() % 2 == 0) config.rules.back().recipe = random_recipe(random);
    }
    const auto path = folder.path() / "r.json";
    RecipeConfig back = parse(io::json_text(path, to_json(config)));
    if (i == 0) {  // once through a file, which costs an fsync
      io::write_json(path, to_json(config));
      back = read_recipe(path);
    }
    ASSERT_EQ(back.recipe, config.recipe) << to_json(config);
    ASSERT_EQ(back.rules.size(), config.rules.size());
    for (std::size_t rule = 0; rule < back.rules.size(); ++rule) {
      ASSERT_EQ(back.rules[rule].pattern, config.rules[rule].pattern);
      ASSERT_EQ(back.rules[rule].recipe, config.rules[rule].recipe) << to_json(config);
    }
  }
}

TEST(RecipeConfig, WhatCannotBeWritten) {
  DelayedScaling callable;
  callable.amax_compute_algo = [](const recipes::AmaxRows& history) -> Eigen::ArrayXf {
    return history.row(0).transpose();
  };
  EXPECT_EQ(error_of<io::Error>([&] { to_json({callable, {}, "mine"}); }),
            "mine: key 'amax_compute_algo': found a callable, which JSON can't hold, allowed: most_recent, max");
  EXPECT_EQ(
      error_of<io::Error>([&] { to_json({MXFP8{}, {{"a", Recipe(callable)}}, "mine"}); }),
      "mine: key 'modules[0].amax_compute_algo': found a callable, which JSON can't hold, allowed: most_recent, max");
  DelayedScaling scaling;
  scaling.scaling_factor_compute_algo = [](const auto&, const Eigen::ArrayXf& scale, float, const auto&) {
    return scale;
  };
  EXPECT_EQ(error_of<io::Error>([&] { to_json({scaling, {}, "mine"}); }),
            "mine: key 'scaling_factor_compute_algo': found a callable, which JSON can't hold, allowed: not set");
  EXPECT_EQ(error_of<io::Error>([&] { to_json({DelayedScaling{.margin = 99}, {}, "mine"}); }),
            "mine: key 'margin': found 99, allowed: -64 to 64");
  EXPECT_ERROR(io::Error, to_json({MXFP8{}, {{"a(b", std::nullopt}}, "mine"}), "modules[0].match");
  EXPECT_THAT(error_of<io::Error>([&] { RecipeConfig{MXFP8{}, {{"a(b", std::nullopt}}, "mine"}.for_module("x"); }),
              HasSubstr("mine: key 'modules[0].match'"));
}

TEST(RecipeConfig, PresetsAreTheShippedFilesAndTheDefaults) {
  const std::filesystem::path folder = std::filesystem::path(FP8_SOURCE_DIR) / "configs/json";
  const Recipe expected[] = {DelayedScaling::habana(), DelayedScaling{.fp8_format = RecipeFormat::HYBRID},
                             DelayedScaling::nvidia(), CurrentScaling{},
                             BlockScaling{},           MXFP8{}};
  ASSERT_EQ(recipe_preset_names().size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const std::string name = recipe_preset_names()[i];
    const auto path = folder / ("recipe_" + name + ".json");
    const auto preset = recipe_preset(name);
    ASSERT_TRUE(preset.has_value()) << name;
    EXPECT_EQ(preset->recipe, expected[i]) << name;
    EXPECT_EQ(read_recipe(path).recipe, expected[i]) << name;
    EXPECT_TRUE(read_recipe(path).rules.empty() && preset->rules.empty());
    EXPECT_EQ(to_json(*preset), io::read_json(path)) << name;  // the file says every key
    EXPECT_EQ(recipe_from_argument(name).recipe, expected[i]);
    EXPECT_EQ(recipe_from_argument(path.string()).source, path.string());
  }
  EXPECT_EQ(recipe_preset("Habana"), std::nullopt);
}

TEST(RecipeConfig, ArgumentThatIsAJson) {
  const auto optimum =
      recipe_from_argument(R"({"recipe": "delayed", "preset": "habana-hybrid", "interval": 16, "reduce_amax": false})");
  EXPECT_EQ(optimum.recipe,
            Recipe(DelayedScaling{.interval = 16, .fp8_format = RecipeFormat::HYBRID, .reduce_amax = false}));
  EXPECT_EQ(error_of<io::Error>([] { recipe_from_argument(R"({"intervall": 16})"); }),
            "recipe: unknown key 'intervall' of recipe delayed, did you mean 'interval'?");
}

TEST(RecipeConfig, ArgumentThatIsNeither) {
  EXPECT_EQ(error_of<io::Error>([] { recipe_from_argument("nvida"); }),
            "recipe: found 'nvida', allowed: habana, habana-hybrid, nvidia, current, block, mxfp8, or a JSON file; did "
            "you mean 'nvidia'?");
  EXPECT_ERROR(io::Error, recipe_from_argument("no/such.json"), "no/such.json");
}

}  // namespace
}  // namespace fp8::configs
