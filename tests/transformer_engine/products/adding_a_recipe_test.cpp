// SPDX-License-Identifier: Apache-2.0
// A recipe of one's own: a row. From then on files and --recipe name it, models train with it, and their state says so.
//
//   squares   E4M3 forward, E5M2 backward; each block x block square by its own amax

#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/transformer_engine/modules/linear.h"
#include "support/temp_dir.h"
#include "support/threads.h"
#include "transformer_engine/training_models.h"

namespace fp8::te {
namespace {

using namespace test;
using recipes::FieldProblem;
using recipes::OperandScaling;
using recipes::RecipeFields;
using recipes::RecipeFormat;
using recipes::RecipeRegistration;
using recipes::RecipeScaling;
using recipes::RecipeType;
using recipes::ScalingRule;

RecipeType squares() {
  return {.name = "squares",
          .help = "each square by itself",
          .fields = {{"block", 64}, {"power_of_two_scale", true}},
          .scaling =
              [](const RecipeFields& fields) {
                const int block = std::get<int>(fields.at("block"));
                const OperandScaling how{.rule = ScalingRule::blocks,
                                         .block_rows = block,
                                         .block_cols = block,
                                         .power_of_two = std::get<bool>(fields.at("power_of_two_scale"))};
                return RecipeScaling{.fp8_format = RecipeFormat::HYBRID, .input = how, .weight = how, .grad = how};
              },
          .problem = [](const RecipeFields& fields) -> std::optional<FieldProblem> {
            const int block = std::get<int>(fields.at("block"));
            if (block >= 16) return std::nullopt;
            return FieldProblem{"block", std::to_string(block), "16 or more"};
          }};
}

/// x [rows, cols] as the recipe rounds it, in f64: scale = 2^floor(log2(max / amax)) of each square.
at::Tensor rounded_by_squares(const at::Tensor& x, std::int64_t block, double max, at::ScalarType fp8) {
  const at::Tensor y = x.detach().cpu().to(at::kDouble).clone();
  for (std::int64_t r = 0; r < y.size(0); r += block)
    for (std::int64_t c = 0; c < y.size(1); c += block) {
      const at::Tensor square = y.slice(0, r, r + block).slice(1, c, c + block);
      const double scale = std::exp2(std::floor(std::log2(max / square.abs().max().item<double>())));
      square.copy_((square * scale).clamp(-max, max).to(at::kFloat).to(fp8).to(at::kDouble) / scale);
    }
  return y;
}

bool is_near(const at::Tensor& got, const at::Tensor& expected) {
  return torch::allclose(got.detach().cpu().to(at::kDouble), expected, 1e-4, 1e-4);
}

TEST(AddingARecipe, OperandsAndProductsAreThoseOfTheFormula) {
  const RecipeRegistration mine(squares());
  torch::manual_seed(3);
  for (const int block : {64, 16}) {
    const recipes::Recipe recipe = mine.recipe({{"block", block}});
    Linear layer(96, 80);
    const at::Tensor x = hpu(torch::randn({72, 96})).requires_grad_(), g = hpu(torch::randn({72, 80})) * 0.01;
    test::within(torch::NoGradGuard(), [&] { layer->bias.copy_(torch::randn({80})); });
    const at::Tensor y = test::within(fp8_autocast({.recipe = recipe}), [&] { return layer->forward(x); });
    y.backward(g);
    const at::Tensor x8 = rounded_by_squares(x, block, 448, at::kFloat8_e4m3fn),
                     w8 = rounded_by_squares(layer->weight, block, 448, at::kFloat8_e4m3fn),
                     g8 = rounded_by_squares(g, block, 57344, at::kFloat8_e5m2);
    const OperandPair pair =
        quantize_operand(x.detach(), {.recipe = recipe, .dialect = recipes::Dialect::gaudi3, .role = Role::input});
    EXPECT_TRUE(torch::equal(runtime::dequantize(pair.columns, at::kFloat).cpu(), x8.to(at::kFloat))) << block;
    EXPECT_TRUE(pair.rows.codes.is_same(pair.columns.codes)) << "squares serve both ways";
    EXPECT_TRUE(is_near(y, torch::matmul(x8, w8.t()) + layer->bias.detach().cpu().to(at::kDouble))) << block;
    EXPECT_TRUE(is_near(x.grad(), torch::matmul(g8, w8))) << block;
    EXPECT_TRUE(is_near(layer->weight.grad(), torch::matmul(g8.t(), x8))) << block;
  }
}

TEST(AddingARecipe, FilesAndArgumentsNameIt) {
  const RecipeRegistration mine(squares());
  const TempDir dir;
  const auto path = dir / "recipe.json";
  const io::Json rule = {{"match", "fc3"}, {"keep", "bf16"}};
  io::write_json(path, {{"recipe", "squares"}, {"block", 32}, {"modules", io::Json::array({rule})}});
  const configs::RecipeConfig config = configs::read_recipe(path);
  EXPECT_EQ(config.recipe, recipes::Recipe(mine.recipe({{"block", 32}})));
  EXPECT_NE(config.recipe, recipes::Recipe(mine.recipe()));
  EXPECT_EQ(config.rules.size(), 1u);
  EXPECT_EQ(configs::parse_recipe(configs::to_json(config), "again").recipe, config.recipe);
  EXPECT_EQ(configs::to_json({config.recipe, {}}),
            io::Json({{"recipe", "squares"}, {"block", 32}, {"power_of_two_scale", true}}));
  EXPECT_EQ(recipes::describe(config.recipe),
            "squares (each square by itself), HYBRID, block 32, power_of_two_scale true");
  EXPECT_EQ(configs::recipe_from_argument("squares").recipe, recipes::Recipe(mine.recipe()));
  EXPECT_EQ(configs::recipe_preset_names().back(), "squares");

  const auto parse = [](const io::Json& json) { configs::parse_recipe(json, "r.json"); };
  EXPECT_REFUSED(parse({{"recipe", "squares"}, {"block", 8}}), "r.json: key 'block': found 8, allowed: 16 or more");
  EXPECT_REFUSED(parse({{"recipe", "squares"}, {"block", "big"}}), "r.json: key 'block'", "an integer");
  EXPECT_REFUSED(parse({{"recipe", "squares"}, {"blok", 32}}),
                 "unknown key 'blok' of recipe squares, did you mean 'block'?");
}

TEST(AddingARecipe, AModelLearnsWithItAndItsStateSaysSo) {
  const RecipeRegistration mine(squares());
  const Task task = mlp_task(), other = mlp_task();
  const HPUPrecisionPlugin plugin = converted(task, mine.recipe()), second = converted(other, mine.recipe());
  torch::optim::AdamW optimizer(task.model->parameters(), torch::optim::AdamWOptions(1e-2));
  const auto losses = train(task, plugin, optimizer, 8);
  EXPECT_LT(losses.back(), 0.9f * losses.front());
  const ExtraState state = get_extra_state(*task.model);
  EXPECT_THAT(state.json.dump(), HasSubstr("squares HYBRID"));
  EXPECT_TRUE(set_extra_state(*other.model, state).missing.empty());
  EXPECT_TRUE(same_state(*task.model, *other.model));
}

TEST(AddingARecipe, WhatNeedsOneScaleTakesItWhereItHasOne) {
  const auto initialize = [](const recipes::OwnRecipe& recipe) {
    const quantized_model_init init({.recipe = recipe});
    return Linear(32, 32)->weight.scalar_type();
  };
  const RecipeRegistration mine(squares());
  EXPECT_REFUSED(initialize(mine.recipe()), "quantized_model_init: recipe: found squares, allowed: delayed, current");
  const auto one_scale = [](const RecipeFields&) { return RecipeScaling{.fp8_format = RecipeFormat::E4M3}; };
  const RecipeRegistration whole({.name = "whole", .scaling = one_scale});
  EXPECT_EQ(initialize(whole.recipe()), at::kFloat8_e4m3fn);
}

TEST(AddingARecipe, IsInForceWhileItsRegistrationLives) {
  std::optional<recipes::Recipe> kept;
  {
    const RecipeRegistration mine(squares());
    kept = mine.recipe();
    EXPECT_REFUSED(configs::parse_recipe({{"recipe", "square"}}, "r.json"),
                   "\"square\", allowed: delayed, current, block, mxfp8, squares; did you mean 'squares'");
    EXPECT_REFUSED(configs::recipe_from_argument("square"),
                   "habana, habana-hybrid, nvidia, current, block, mxfp8, squares, or a JSON file");
  }
  EXPECT_REFUSED(configs::parse_recipe({{"recipe", "squares"}}, "r.json"),
                 "found \"squares\", allowed: delayed, current, block, mxfp8; did");
  EXPECT_REFUSED(configs::recipe_from_argument("squares"), "recipe: found 'squares'");
  const fp8_autocast region({.recipe = kept});  // what was made of it goes on
  EXPECT_TRUE(Linear(32, 32)->forward(hpu(torch::randn({8, 32}))).isfinite().all().item<bool>());
}

TEST(AddingARecipe, RowsThatCannotStandAreRefused) {
  const RecipeRegistration mine(squares());
  const auto add = [](auto&& change) {
    RecipeType type = squares();
    type.name = "other";
    change(type);
    const RecipeRegistration other(std::move(type));
  };
  for (const char* name : {"", "Squares", "a b", "a.b"})
    EXPECT_TRUE(throws_with({"recipe: found the name"}, [&] { add([&](RecipeType& t) { t.name = name; }); })) << name;
  for (const char* name : {"squares", "delayed", "habana-hybrid", "mxfp8"})
    EXPECT_TRUE(throws_with({"the name is taken"}, [&] { add([&](RecipeType& t) { t.name = name; }); })) << name;
  EXPECT_TRUE(throws_with({"scaling is missing"}, [&] { add([](RecipeType& t) { t.scaling = nullptr; }); }));
  EXPECT_TRUE(throws_with({"found a field 'match'"}, [&] { add([](RecipeType& t) { t.fields["match"] = 1; }); }));
  EXPECT_TRUE(throws_with({"recipe 'other': block is 8, allowed: 16 or more"},
                          [&] { add([](RecipeType& t) { t.fields["block"] = 8; }); }));
  EXPECT_TRUE(throws_with({"recipe 'other': input.rule is history, allowed: tensor, blocks, mx"}, [&] {
    add([](RecipeType& t) {
      t.scaling = [](const RecipeFields&) { return RecipeScaling{.input = {.rule = ScalingRule::history}}; };
    });
  }));
  EXPECT_REFUSED(mine.recipe({{"blok", 32}}), "found the field 'blok', allowed: block, power_of_two_scale");
  EXPECT_REFUSED(mine.recipe({{"block", 32.0f}}), "block: expected a value of the same kind");
}

TEST(AddingARecipe, RegistrationIsThreadSafe) {
  fp8::test::on_threads(8, [](int i) {
    RecipeType type = squares();
    type.name = "mine-" + std::to_string(i);
    for (int k = 0; k < 100; ++k) {
      const RecipeRegistration mine(type);
      EXPECT_EQ(recipes::find_recipe(type.name), recipes::Recipe(mine.recipe()));
    }
  });
  EXPECT_EQ(recipes::recipe_presets().back(), "mxfp8");
}

}  // namespace
}  // namespace fp8::te
