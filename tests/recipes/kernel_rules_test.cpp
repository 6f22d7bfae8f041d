// SPDX-License-Identifier: Apache-2.0
// The recipes say what the scale of a block is; the kernels compute it per block on their own. Here both are asked the
// same questions.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "fp8/recipes/block_scaling.h"
#include "fp8/runtime/kernels/block_cast.h"

namespace fp8::recipes {
namespace {

/// Every exponent with a few significands, then what is no number.
template <class F>
void for_each_amax(F&& f) {
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t significand :
         {0u, 1u, 0x12345u, 0x400000u, 0x400001u, 0x5FFFFFu, 0x600000u, 0x600001u, 0x7FFFFFu}) {
      f(std::bit_cast<float>(exponent << 23 | significand));
    }
  }
  f(std::numeric_limits<float>::infinity());
  f(std::numeric_limits<float>::quiet_NaN());
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(KernelRules, BlockScalesAreThoseOfTheRecipe) {
  for (const float max : {240.0f, 448.0f, 57344.0f}) {
    for (const bool power_of_two : {false, true}) {
      for (const float epsilon : {0.0f, 1e-4f}) {
        BlockScaling recipe;
        recipe.power_of_two_scale = power_of_two;
        recipe.amax_epsilon = epsilon;
        for_each_amax([&](float amax) {
          EXPECT_TRUE(same(kernels::block_scale(amax, kernels::FloatType::F32, max, epsilon, power_of_two),
                           block_scale(amax, max, recipe)))
              << amax;
          EXPECT_TRUE(same(kernels::block_scale(amax, kernels::FloatType::BF16, max, epsilon, power_of_two),
                           block_scale(amax, max, recipe, std::bit_cast<float>(0x7F7F0000u))))
              << amax;
        });
      }
    }
  }
}

}  // namespace
}  // namespace fp8::recipes
