// SPDX-License-Identifier: Apache-2.0
// Frequencies against the published formulas in double. Plain, linear and llama3: decoder_test.cpp.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fp8/tools/models/decoder/decoder_math.h"

namespace fp8::models {
namespace {

double plain_frequency(double theta, int i, int dims) { return std::pow(theta, -2.0 * i / dims); }

TEST(Rotary, DynamicStretchesPastTheContext) {
  const RopeSpec rope{.kind = RopeSpec::Kind::dynamic, .dims = 16, .factor = 2, .original_max_position_embeddings = 32};
  for (const int positions : {1, 32, 33, 48, 64}) {
    const auto found = rotary_frequencies(rope, positions);
    const double theta =
        positions <= 32 ? 10000 : 10000 * std::pow(2.0 * positions / 32 - 1, 16.0 / 14);  // NTK-aware, "dynamic"
    for (int i = 0; i < 8; ++i)
      EXPECT_NEAR(found[i].item<float>() / plain_frequency(theta, i, 16), 1, 1e-5) << positions;
  }
}

/// Of arXiv:2309.00071, section 3.2 and its implementation: r(i) = L f_i / (2 pi) turns; gamma goes from 0 at
/// r = beta_slow to 1 at r = beta_fast, linear in i between the elements where that is so.
TEST(Rotary, YarnIsARampBetweenStretchedAndKept) {
  RopeSpec rope{.kind = RopeSpec::Kind::yarn,
                .theta = 10000,
                .dims = 64,
                .factor = 4,
                .original_max_position_embeddings = 2048,
                .truncate = false};
  const auto found = rotary_frequencies(rope, 1);
  const auto element = [](double turns) { return 64 * std::log(2048 / (turns * 2 * M_PI)) / (2 * std::log(10000.0)); };
  const double low = element(32), high = element(1);
  int kept = 0, stretched = 0, between = 0;
  for (int i = 0; i < 32; ++i) {
    const double f = plain_frequency(10000, i, 64), gamma = 1 - std::clamp((i - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(found[i].item<float>() / ((1 - gamma) * f / 4 + gamma * f), 1, 1e-5) << i;
    const double turns = 2048 * f / (2 * M_PI);
    if (turns > 32) {
      EXPECT_NEAR(found[i].item<float>() / f, 1, 1e-5);
      ++kept;
    } else if (turns < 1) {
      EXPECT_NEAR(found[i].item<float>() / (f / 4), 1, 1e-5);
      ++stretched;
    } else {
      ++between;
    }
  }
  EXPECT_GT(std::min({kept, stretched, between}), 0);
  rope.truncate = true;  // whole elements: the ramp is not steeper
  const auto truncated = rotary_frequencies(rope, 1);
  for (int i = 0; i < 32; ++i) {
    const double f = plain_frequency(10000, i, 64);
    const double gamma = 1 - std::clamp((i - std::floor(low)) / (std::ceil(high) - std::floor(low)), 0.0, 1.0);
    EXPECT_NEAR(truncated[i].item<float>() / ((1 - gamma) * f / 4 + gamma * f), 1, 1e-5) << i;
  }
}

TEST(Rotary, LongRopeTakesTheLongFactorsPastTheOriginalContext) {
  const RopeSpec rope{.kind = RopeSpec::Kind::longrope,
                      .dims = 8,
                      .original_max_position_embeddings = 16,
                      .short_factor = {1, 1.25, 1.5, 2},
                      .long_factor = {1, 2, 4, 8},
                      .attention_factor = 1.5,
                      .long_attention_factor = 2};
  for (const int positions : {16, 17}) {
    const auto& by = positions > 16 ? rope.long_factor : rope.short_factor;
    const auto found = rotary_frequencies(rope, positions);
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(found[i].item<float>() * by[static_cast<std::size_t>(i)] / plain_frequency(10000, i, 8), 1, 1e-6);
    RotaryEmbedding embedding("Rotary", std::vector{rope});
    const auto angles = embedding->forward(at::arange(positions, at::kFloat).unsqueeze(0), positions, at::empty(0));
    EXPECT_NEAR(angles[0].cos[0][0][0][0].item<float>(), positions > 16 ? 2 : 1.5, 1e-6);
  }
}

TEST(Rotary, AnglesOfPositions) {
  const RopeSpec rope{.theta = 100, .dims = 4};
  RotaryEmbedding embedding("Rotary", std::vector{rope, RopeSpec{.theta = 1000, .dims = 6}});
  const auto positions = at::tensor({0.0f, 5.0f, 2.0f, 9.0f}).view({2, 2});
  const auto found = embedding->forward(positions, 10, at::empty(0, at::kDouble));
  ASSERT_EQ(found.size(), 2);
  ASSERT_EQ(found[0].cos.sizes(), (std::vector<std::int64_t>{2, 1, 2, 4}));
  ASSERT_EQ(found[1].sin.sizes(), (std::vector<std::int64_t>{2, 1, 2, 6}));
  for (int b = 0; b < 2; ++b)
    for (int l = 0; l < 2; ++l)
      for (int i = 0; i < 4; ++i) {
        const double angle = positions[b][l].item<double>() * plain_frequency(100, i % 2, 4);
        EXPECT_NEAR(found[0].cos[b][0][l][i].item<double>(), std::cos(angle), 1e-6);
        EXPECT_NEAR(found[0].sin[b][0][l][i].item<double>(), std::sin(angle), 1e-6);
      }
}

/// A token at a time reads a table; all at once are computed as the formula above says.
TEST(Rotary, ATokensAnglesAreThoseOfAllAtOnce) {
  const RopeSpec plain{.dims = 64};
  const RopeSpec longrope{.kind = RopeSpec::Kind::longrope,
                          .dims = 8,
                          .original_max_position_embeddings = 300,
                          .short_factor = {1, 1.25, 1.5, 2},
                          .long_factor = {1, 2, 4, 8},
                          .attention_factor = 1.5,
                          .long_attention_factor = 2};
  const RopeSpec dynamic{
      .kind = RopeSpec::Kind::dynamic, .dims = 16, .factor = 2, .original_max_position_embeddings = 290};
  RotaryEmbedding tokens("Rotary", std::vector{plain, longrope, dynamic});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t position : {0, 1, 255, 256, 257, 290, 299, 300, 301, 511, 512, 3, 70000}) {
      const at::Tensor like = at::empty({0}, dtype);
      const at::Tensor one = at::full({1, 1}, static_cast<double>(position), at::kFloat);
      const auto found = tokens->forward(one, position + 1, like);
      RotaryEmbedding fresh("Rotary", std::vector{plain, longrope, dynamic});
      const auto expected = fresh->forward(at::cat({one, one}), position + 1, like);  // a batch: no table
      ASSERT_EQ(found.size(), 3u);
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].cos.sizes(), at::IntArrayRef({1, 1, 1, expected[i].cos.size(-1)}));
        EXPECT_TRUE(at::allclose(found[i].cos[0], expected[i].cos[0], 1e-6, 2e-7)) << position << ' ' << i;
        EXPECT_TRUE(at::allclose(found[i].sin[0], expected[i].sin[0], 1e-6, 2e-7)) << position << ' ' << i;
      }
    }
  }
}

TEST(Rotary, ATableOfInferenceIsNoneForTraining) {
  RotaryEmbedding embedding("Rotary", std::vector{RopeSpec{.dims = 16}});
  const at::Tensor one = at::zeros({1, 1});
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(embedding->forward(one, 1, at::empty({0}))[0].cos.is_inference());
  }
  EXPECT_FALSE(embedding->forward(one, 1, at::empty({0}))[0].cos.is_inference());
}

}  // namespace
}  // namespace fp8::models
