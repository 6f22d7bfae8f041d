// SPDX-License-Identifier: Apache-2.0
// Frequencies against the published formulas in double.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <numbers>

#include "fp8/tools/models/decoder/decoder_math.h"
#include "fp8/tools/models/registry.h"

namespace fp8::models {
namespace {

double plain_frequency(double theta, int i, int dims) { return std::pow(theta, -2.0 * i / dims); }

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
  for (const auto dtype : {at::kFloat, at::kBFloat16})
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

TEST(Rotary, ATableOfInferenceIsNoneForTraining) {
  RotaryEmbedding embedding("Rotary", std::vector{RopeSpec{.dims = 16}});
  const at::Tensor one = at::zeros({1, 1});
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(embedding->forward(one, 1, at::empty({0}))[0].cos.is_inference());
  }
  EXPECT_FALSE(embedding->forward(one, 1, at::empty({0}))[0].cos.is_inference());
}

// Rotary embeddings as they are published, written out in double, with the numbers of published models; what one
// forward leaves to the next.

using RopeKind = RopeSpec::Kind;

std::vector<double> published_plain(double theta, std::int64_t dims) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < dims / 2; ++i)
    all.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  return all;
}

/// meta-llama/llama-models, apply_scaling().
double published_llama3(const RopeSpec& rope, double f) {
  const auto context = static_cast<double>(rope.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / f;
  if (wavelength < context / rope.high_freq_factor) return f;
  if (wavelength > context / rope.low_freq_factor) return f / rope.factor;
  const double smooth = (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * f / rope.factor + smooth * f;
}

/// jquesnelle/yarn: find_correction_range(), linear_ramp_mask().
std::vector<double> published_yarn(const RopeSpec& rope) {
  const auto dims = static_cast<double>(rope.dims),
             context = static_cast<double>(rope.original_max_position_embeddings);
  const auto correction = [&](double rotations) {
    return dims * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  std::vector<double> all;
  for (const double f : published_plain(rope.theta, rope.dims)) {
    const double mask = 1 - std::clamp((static_cast<double>(all.size()) - low) / (high - low), 0.0, 1.0);
    all.push_back(f / rope.factor * (1 - mask) + f * mask);
  }
  return all;
}

void expect_frequencies(const RopeSpec& rope, std::int64_t positions, const std::vector<double>& expected,
                        double tolerance = 4e-6) {
  const at::Tensor found = rotary_frequencies(rope, positions);
  ASSERT_EQ(found.scalar_type(), at::kFloat);
  ASSERT_EQ(found.sizes(), at::IntArrayRef({static_cast<std::int64_t>(expected.size())}));
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(found.const_data_ptr<float>()[i] / expected[i], 1, tolerance) << "element " << i;
}

TEST(RotaryPublished, PlainAndLinear) {
  for (const std::int64_t dims : {2, 6, 64, 128})
    for (const double theta : {10000.0, 500000.0}) {
      auto expected = published_plain(theta, dims);
      for (const std::int64_t positions : {1, 100000})
        expect_frequencies({.theta = theta, .dims = dims}, positions, expected);
      for (double& f : expected) f /= 2.5;
      expect_frequencies({.kind = RopeKind::linear, .theta = theta, .dims = dims, .factor = 2.5}, 7, expected);
    }
}

TEST(RotaryPublished, Llama3HasThreeRanges) {
  for (const double factor : {8.0, 32.0}) {  // Llama 3.1 and 3.2
    const RopeSpec rope = {.kind = RopeKind::llama3,
                           .theta = 500000,
                           .dims = 128,
                           .factor = factor,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_max_position_embeddings = 8192};
    const auto plain = published_plain(rope.theta, rope.dims);
    std::vector<double> expected;
    int kept = 0, divided = 0;
    for (const double f : plain) {
      expected.push_back(published_llama3(rope, f));
      kept += expected.back() == f ? 1 : 0, divided += expected.back() == f / factor ? 1 : 0;
    }
    EXPECT_GT(std::min({kept, divided, 64 - kept - divided}), 2);
    expect_frequencies(rope, 1, expected, 2e-5);
    expect_frequencies(rope, 131072, expected, 2e-5);
  }
}

/// The stretch is such that the slowest element turns exactly so much slower, and the fastest as it did.
TEST(RotaryPublished, DynamicStretchesTheSlowestElementAlone) {
  for (const RopeSpec& rope :
       {RopeSpec{.kind = RopeKind::dynamic, .dims = 64, .factor = 4, .original_max_position_embeddings = 2048},
        RopeSpec{.kind = RopeKind::dynamic, .dims = 16, .factor = 2, .original_max_position_embeddings = 32}}) {
    const auto plain = published_plain(rope.theta, rope.dims);
    const std::int64_t context = rope.original_max_position_embeddings, last = rope.dims / 2 - 1;
    for (const std::int64_t positions : {std::int64_t{1}, context}) expect_frequencies(rope, positions, plain);
    for (const std::int64_t positions : {context + 1, context * 3 / 2, context * 2, context * 4}) {
      const at::Tensor found = rotary_frequencies(rope, positions);
      const double stretched =
          rope.factor * static_cast<double>(positions) / static_cast<double>(context) - (rope.factor - 1);
      EXPECT_EQ(found[0].item<double>(), 1);
      EXPECT_NEAR(found[last].item<double>() * stretched / plain.back(), 1, 4e-6) << positions;
      for (std::int64_t i = 1; i < last; ++i)
        EXPECT_NEAR(found[i].item<double>() * std::pow(stretched, static_cast<double>(i) / static_cast<double>(last)) /
                        plain[static_cast<std::size_t>(i)],
                    1, 4e-6);
    }
  }
}

TEST(RotaryPublished, YarnOfPublishedModelsAndAtItsEdges) {
  const auto rope = [](double theta, std::int64_t dims, double factor, std::int64_t original, double fast = 32,
                       double slow = 1, bool truncate = true) {
    return RopeSpec{.kind = RopeKind::yarn,
                    .theta = theta,
                    .dims = dims,
                    .factor = factor,
                    .original_max_position_embeddings = original,
                    .beta_fast = fast,
                    .beta_slow = slow,
                    .truncate = truncate};
  };
  for (const RopeSpec& spec : {rope(1e4, 128, 16, 4096),  // Yarn-Llama-2-64k
                               rope(1e6, 128, 4, 32768),  // Qwen2.5
                               rope(1e4, 64, 40, 4096),   // DeepSeek-V3
                               rope(1e4, 64, 4, 2048), rope(1e4, 64, 4, 2048, 32, 1, false),
                               rope(150000, 64, 32, 4096, 32, 1, false),    // gpt-oss
                               rope(1e4, 64, 8, 4096, 4, 4, false),         // a step
                               rope(100, 16, 4, 16), rope(2, 8, 4, 64)}) {  // the ramp begins, or ends, outside
    SCOPED_TRACE(std::to_string(spec.theta) + ", " + std::to_string(spec.dims));
    expect_frequencies(spec, 1, published_yarn(spec), 2e-5);
  }
}

/// modeling_phi3.py: 1 / (factor_i theta^(2i/d)), the long factors where positions pass the original context.
TEST(RotaryPublished, LongRopeChoosesForEachForward) {
  RopeSpec rope = {.kind = RopeKind::longrope,
                   .dims = 8,
                   .original_max_position_embeddings = 16,
                   .short_factor = {1, 1.25, 1.5, 2},
                   .long_factor = {1, 2, 4, 8},
                   .attention_factor = 1.5};
  const auto plain = published_plain(10000, 8);
  for (const double long_factor : {0.0, 1.75}) {
    rope.long_attention_factor = long_factor;  // 0: the same; Phi-MoE has its own
    RotaryEmbedding rotary("Phi3RotaryEmbedding", std::vector<RopeSpec>{rope});
    for (const std::int64_t in_use : {16, 17, 40, 16, 3}) {  // short ones come back
      const auto angles = rotary->forward(at::full({1, 1}, 2.0f), in_use, at::empty({0}, at::kDouble));
      const auto& by = in_use > 16 ? rope.long_factor : rope.short_factor;
      const double magnitude = in_use > 16 && long_factor > 0 ? long_factor : 1.5;
      expect_frequencies(rope, in_use, {plain[0] / by[0], plain[1] / by[1], plain[2] / by[2], plain[3] / by[3]});
      for (std::int64_t i = 0; i < 8; ++i) {
        const auto element = static_cast<std::size_t>(i % 4);
        const double angle = 2 * plain[element] / by[element];
        EXPECT_NEAR(angles.at(0).cos[0][0][0][i].item<double>(), magnitude * std::cos(angle), 2e-6) << in_use;
        EXPECT_NEAR(angles.at(0).sin[0][0][0][i].item<double>(), magnitude * std::sin(angle), 2e-6) << in_use;
      }
    }
  }
}

/// Factors that config.json leaves out: 0.1 ln s + 1 (YaRN, section 3.3), DeepSeek's ratio of two of them, and Phi-3's
/// sqrt(1 + ln s / ln L), 1.190238 of its 128k models.
TEST(RotaryPublished, MagnitudesThatConfigsLeaveOut) {
  const auto factor_of = [](const io::Json& scaling, std::int64_t context) {
    const io::Json json = {{"model_type", "llama"},
                           {"vocab_size", 32},
                           {"hidden_size", 16},
                           {"intermediate_size", 24},
                           {"num_hidden_layers", 1},
                           {"num_attention_heads", 4},
                           {"max_position_embeddings", context},
                           {"rope_scaling", scaling}};
    const auto config = parse_config(json, "config.json");
    return dynamic_cast<const DecoderConfig&>(*config.values).ropes.at(0).attention_factor;
  };
  io::Json yarn = {{"rope_type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}};
  EXPECT_NEAR(factor_of(yarn, 163840), 0.1 * std::log(40) + 1, 1e-12);
  yarn["mscale"] = 1.0, yarn["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(factor_of(yarn, 163840), (0.1 * std::log(40) + 1) / (0.05 * std::log(40) + 1), 1e-12);
  yarn["attention_factor"] = 1.25;
  EXPECT_EQ(factor_of(yarn, 163840), 1.25);
  const io::Json longrope = {{"type", "longrope"},
                             {"short_factor", {1.0, 1.0}},
                             {"long_factor", {1.0, 2.0}},
                             {"original_max_position_embeddings", 4096}};
  EXPECT_NEAR(factor_of(longrope, 131072), 1.1902380714238083, 1e-9);
  EXPECT_EQ(factor_of(longrope, 4096), 1);
}

TEST(RotaryPublished, AModulesDtypeLeavesTheFrequenciesAlone) {
  RotaryEmbedding rotary("LlamaRotaryEmbedding", std::vector<RopeSpec>{{.dims = 16}});
  EXPECT_TRUE(rotary->parameters().empty() && rotary->buffers().empty());
  const auto turn = [&](at::ScalarType dtype) {
    return rotary->forward(at::full({1, 1}, 1000.0f), 1001, at::empty({0}, dtype)).at(0);
  };
  const RotaryAngles before = turn(at::kFloat);
  rotary->to(at::kBFloat16);
  EXPECT_TRUE(turn(at::kFloat).cos.equal(before.cos) && turn(at::kFloat).sin.equal(before.sin));
  EXPECT_TRUE(turn(at::kBFloat16).cos.equal(before.cos.to(at::kBFloat16)));
}

}  // namespace
}  // namespace fp8::models
