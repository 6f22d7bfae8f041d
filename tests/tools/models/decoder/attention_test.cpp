// SPDX-License-Identifier: Apache-2.0
// The positions that rows see, against the rule in a loop.
#include "fp8/tools/models/decoder/attention.h"

#include <c10/core/GradMode.h>

#include "fp8/quant/model/convert_inference.h"
#include "fp8/tools/models/decoder/decoder.h"
#include "fp8/tools/models/load.h"
#include "support/hpu_test.h"
#include "support/test_data.h"

namespace fp8::models {
namespace {

bool sees(const Rows& rows, const LayerKind& kind, std::int64_t start, std::int64_t i, std::int64_t j) {
  if (!rows.causal) return kind.window == 0 || std::abs(i - j) < kind.window;
  if (j > i || j < start || (kind.window > 0 && i - j >= kind.window)) return false;
  return kind.chunk == 0 || (i - start) / kind.chunk == (j - start) / kind.chunk;
}

void expect_sight(const Rows& rows, const LayerKind& kind) {
  const auto sight = sight_of(rows, kind, at::kCPU);
  const auto seen = sight.seen(rows.count);
  const std::int64_t end = rows.first + rows.count, columns = end - sight.first;
  const auto sequences = std::max<std::size_t>(1, rows.starts.size());
  for (std::size_t b = 0; b < sequences; ++b)
    for (std::int64_t i = rows.first; i < end; ++i)
      for (std::int64_t j = 0; j < end; ++j) {
        const bool expected = sees(rows, kind, rows.starts.empty() ? 0 : rows.starts[b], i, j);
        bool found = j >= sight.first;
        if (found && seen.defined()) {
          const auto row =
              seen.dim() == 4 ? seen[static_cast<std::int64_t>(b)][0][i - rows.first] : seen[i - rows.first];
          ASSERT_EQ(row.size(0), columns);
          found = row[j - sight.first].item<bool>();
        } else if (found && sight.causal) {
          found = j <= i;
        }
        ASSERT_EQ(found, expected) << "sequence " << b << ", row " << i << ", column " << j;
      }
}

TEST(Sight, IsTheRule) {
  for (const std::int64_t window : {0, 1, 3, 8, 100}) {
    for (const std::int64_t chunk : {0, 1, 4, 100}) {
      if (window > 0 && chunk > 0) continue;
      const LayerKind kind{.window = window, .chunk = chunk};
      for (const std::int64_t first : {0, 1, 5, 12})
        for (const std::int64_t count : {1, 2, 9}) expect_sight({.first = first, .count = count}, kind);
      for (const std::int64_t count : {1, 3}) expect_sight({.first = 9, .count = count, .starts = {0, 4, 8}}, kind);
    }
    for (const std::int64_t count : {1, 2, 9}) expect_sight({.count = count, .causal = false}, {.window = window});
  }
}

TEST(Sight, OneRowNeedsNoMask) {
  const auto sight = sight_of({.first = 20, .count = 1}, {.window = 8}, at::kCPU);
  EXPECT_FALSE(sight.mask.defined());
  EXPECT_EQ(sight.first, 13);
  EXPECT_TRUE(sight_of({.count = 7}, {}, at::kCPU).causal);
}

TEST(Sight, APieceOfALongTextNeedsNoMask) {
  const auto sight = sight_of({.first = 3000, .count = 256}, {}, at::kCPU);
  EXPECT_FALSE(sight.mask.defined());
  EXPECT_EQ(sight.band.numel(), 3256 + 255);
  EXPECT_EQ(sight.seen(256).sizes(), at::IntArrayRef({256, 3256}));
}

TEST(Sight, PositionsCountFromAStart) {
  const Rows plain{.first = 3, .count = 2}, joined{.first = 3, .count = 2, .starts = {0, 2}};
  EXPECT_TRUE(at::equal(plain.positions(), at::tensor({3.0f, 4.0f}).view({1, 2})));
  EXPECT_EQ(plain.in_use(), 5);
  EXPECT_TRUE(at::equal(joined.positions(), at::tensor({3.0f, 4.0f, 1.0f, 2.0f}).view({2, 2})));
  EXPECT_EQ(joined.in_use(), 5);
  EXPECT_EQ((Rows{.first = 3, .count = 2, .starts = {1, 2}}).in_use(), 4);
}

void expect_slopes(const at::Tensor& found, const std::vector<double>& exponents) {
  ASSERT_EQ(found.numel(), static_cast<std::int64_t>(exponents.size()));
  for (std::size_t i = 0; i < exponents.size(); ++i)
    EXPECT_NEAR(found[static_cast<std::int64_t>(i)].item<double>() / std::exp2(-exponents[i]), 1, 1e-6) << i;
}

/// arXiv:2108.12409: 1/2, 1/4, ... 1/256 for 8 heads; 2^-0.5 ... 2^-8 for 16.
TEST(AlibiSlopes, PowersOfTwo) {
  expect_slopes(alibi_slopes(8, 8), {1, 2, 3, 4, 5, 6, 7, 8});
  expect_slopes(alibi_slopes(4, 8), {2, 4, 6, 8});
  expect_slopes(alibi_slopes(1, 8), {8});
  expect_slopes(alibi_slopes(4, 16), {4, 8, 12, 16});
}

/// The paper's own code: those of the power below, then every second of the power above. MPT's order, those at odd
/// places of the power above and then those at even ones, is the same.
TEST(AlibiSlopes, OtherNumbers) {
  expect_slopes(alibi_slopes(6, 8), {2, 4, 6, 8, 1, 3});
  expect_slopes(alibi_slopes(5, 8), {2, 4, 6, 8, 1});
  expect_slopes(alibi_slopes(12, 8), {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
}

// Buckets of distances against transformers' T5Attention._relative_position_bucket (5.23), and what a bias hides.

/// starts[b]: the nearest distance in bucket b; the bucket of a distance is the last that has begun.
void expect_starts(const BucketSpec& spec, bool both_ways, const std::vector<std::int64_t>& starts) {
  constexpr std::int64_t kRows = 300;
  const auto buckets = distance_buckets(spec, 0, kRows, both_ways);
  ASSERT_EQ(buckets.sizes(), (std::vector<std::int64_t>{kRows, kRows}));
  for (std::int64_t distance = 0; distance < kRows; ++distance) {
    const auto expected = std::upper_bound(starts.begin(), starts.end(), distance) - starts.begin() - 1;
    EXPECT_EQ(buckets[kRows - 1][kRows - 1 - distance].item<std::int64_t>(), expected) << distance;
    const auto behind = distance == 0 ? 0 : both_ways ? expected + spec.count / 2 : 0;
    EXPECT_EQ(buckets[0][distance].item<std::int64_t>(), behind) << "behind by " << distance;
  }
}

TEST(DistanceBuckets, AreThoseOfTransformers) {
  expect_starts({}, /*both_ways=*/true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91});
  expect_starts({}, /*both_ways=*/false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                          16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113});
  expect_starts({.count = 8, .reach = 16}, /*both_ways=*/true, {0, 1, 2, 6});
  expect_starts({.count = 12, .reach = 100}, /*both_ways=*/false, {0, 1, 2, 3, 4, 5, 6, 10, 16, 25, 40, 63});
  expect_starts({.count = 7, .reach = 20}, /*both_ways=*/true, {0, 1, 5});
}

TEST(DistanceBuckets, LaterRowsSeeWhatIsInFront) {
  const BucketSpec spec;
  EXPECT_TRUE(at::equal(distance_buckets(spec, 40, 10, false), distance_buckets(spec, 0, 50, false).narrow(0, 40, 10)));
}

TEST(SeenBias, HidesWhatIsNotSeen) {
  const auto bias = at::arange(12, at::kFloat).view({2, 3, 2});
  const auto all = seen_bias(bias, {});
  ASSERT_EQ(all.sizes(), (std::vector<std::int64_t>{1, 2, 2, 3}));
  EXPECT_EQ(all[0][1][0][2].item<float>(), 5);
  const auto triangle = seen_bias(bias, {.causal = true});
  EXPECT_EQ(triangle[0][0][1][1].item<float>(), 8);
  EXPECT_TRUE(std::isinf(triangle[0][0][0][1].item<float>()));
  const auto mask = at::tensor({1, 0, 1}, at::kLong).to(at::kBool).view({1, 1, 1, 3}).expand({4, 1, 2, 3});
  const auto masked = seen_bias(bias, {.mask = mask});
  ASSERT_EQ(masked.sizes(), (std::vector<std::int64_t>{4, 2, 2, 3}));
  EXPECT_TRUE(std::isinf(masked[3][1][1][1].item<float>()));
  EXPECT_EQ(masked[3][1][1][2].item<float>(), 11);
}

// Buckets of distances against transformers' (make_log_bucket_position), scores against their formula in loops.

/// Rows of the table for query i = 0, 1, ... and key 0, less S: buckets of the distances 0, 1, ...
std::vector<std::int64_t> buckets_of(const DistanceSpec& spec, std::int64_t length) {
  const auto column = (distance_rows(spec, length).select(1, 0) - spec.span).contiguous();
  return {column.const_data_ptr<std::int64_t>(), column.const_data_ptr<std::int64_t>() + length};
}

TEST(DistanceRows, BucketsAreThoseOfTransformers) {
  std::vector<std::int64_t> expected = {0, 1, 2, 3, 4, 5, 5, 5, 5, 5, 5};
  expected.resize(26, 6);
  expected.resize(64, 7);
  EXPECT_EQ(buckets_of({.span = 8, .buckets = 8, .reach = 64}, 64), expected);
  const auto large = buckets_of({.span = 256, .buckets = 256, .reach = 512}, 512);  // DeBERTa-v3's
  EXPECT_EQ(std::accumulate(large.begin(), large.end(), std::int64_t{0}), 87297);
  for (const auto& [distance, bucket] :
       {std::pair(128, 128), {130, 130}, {200, 169}, {300, 207}, {400, 233}, {511, 255}})
    EXPECT_EQ(large[static_cast<std::size_t>(distance)], bucket) << distance;
}

TEST(DistanceRows, KeysBehindTheQueryAreMirrored) {
  for (const std::int64_t buckets : {0, 8}) {
    const DistanceSpec spec{.span = 8, .buckets = buckets, .reach = 12};
    const auto from_middle = distance_rows(spec, 41) - spec.span;
    for (std::int64_t i = 0; i < 41; ++i)
      for (std::int64_t j = 0; j < 41; ++j) {
        const auto there = from_middle[i][j].item<std::int64_t>(), back = from_middle[j][i].item<std::int64_t>();
        EXPECT_TRUE(there == -back || (std::max(there, back) == 7 && std::min(there, back) == -8)) << i << " " << j;
      }
  }
}

TEST(DistanceRows, WithoutBucketsFarDistancesShareTheLastRow) {
  EXPECT_EQ(buckets_of({.span = 3}, 6), (std::vector<std::int64_t>{0, 1, 2, 2, 2, 2}));
  EXPECT_EQ(distance_rows({.span = 3}, 6)[0][5].item<std::int64_t>(), 0);
}

struct DistanceScores : ::testing::TestWithParam<std::tuple<bool, bool, bool>> {
  static constexpr std::int64_t kBatch = 2, kHeads = 3, kLength = 7, kWidth = 4, kHidden = kHeads * kWidth;
};

TEST_P(DistanceScores, AreTheFormula) {
  const c10::NoGradGuard no_grad;
  at::manual_seed(5);
  const auto [c2p, p2c, own] = GetParam();
  DecoderConfig config;
  config.shape.hidden = kHidden, config.shape.heads = kHeads, config.attend.head_dim = kWidth;
  config.distances = {.span = 4, .buckets = 4, .reach = 16, .c2p = c2p, .p2c = p2c, .own_projections = own};
  config.names.distance_key = "self.pos_key", config.names.distance_query = "self.pos_query";
  torch::nn::Module attention("Attention");
  torch::nn::Linear query(kHidden, kHidden), key(kHidden, kHidden);
  DisentangledScores scores(config, attention, query, key);
  for (auto& item : attention.named_parameters()) item.value().set_data(at::randn(item.value().sizes()));
  EXPECT_EQ(attention.named_parameters().size(), own ? 2u * (c2p + p2c) : 0u);
  const auto q = at::randn({kBatch, kHeads, kLength, kWidth}), k = at::randn(q.sizes()),
             table = at::randn({1, 8, kHidden});
  const Distances distances{table, distance_rows(*config.distances, kLength)};
  const auto found = scores.forward(q, k, distances);

  const auto projected = [&](torch::nn::Linear& shared, const char* name) {
    const auto parameters = attention.named_parameters();
    const std::string at = std::string("self.") + name + ".";
    const auto& weight = own ? parameters[at + "weight"] : shared->weight;
    const auto& bias = own ? parameters[at + "bias"] : shared->bias;
    return (at::matmul(table[0], weight.t()) + bias).view({8, kHeads, kWidth});
  };
  at::Tensor keys, queries;
  if (c2p) keys = projected(key, "pos_key");
  if (p2c) queries = projected(query, "pos_query");
  ASSERT_EQ(found.sizes(), (std::vector<std::int64_t>{kBatch, kHeads, kLength, kLength}));
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t a = 0; a < kHeads; ++a)
      for (std::int64_t i = 0; i < kLength; ++i)
        for (std::int64_t j = 0; j < kLength; ++j) {
          const auto row = distances.rows[i][j].item<std::int64_t>();
          double expected = 0;
          if (c2p) expected += q[b][a][i].dot(keys[row][a]).item<double>();
          if (p2c) expected += k[b][a][j].dot(queries[row][a]).item<double>();
          ASSERT_NEAR(found[b][a][i][j].item<double>(), expected, 1e-5);
        }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<bool, bool, bool>>& info) {
  const auto [c2p, p2c, own] = info.param;
  return std::string(c2p ? "c2p_" : "") + (p2c ? "p2c_" : "") + (own ? "own" : "shared");
}

INSTANTIATE_TEST_SUITE_P(All, DistanceScores,
                         ::testing::Values(std::tuple(true, true, false), std::tuple(true, true, true),
                                           std::tuple(true, false, true), std::tuple(false, true, false)),
                         name_of);

TEST(DottedModules, AreMadeWhereTheyAreMissing) {
  torch::nn::Module root("Root");
  const auto linear = add_module(root, "a.b.c", torch::nn::Linear(2, 3));
  const auto below = add_module(root, "a.b.c.d", torch::nn::Linear(3, 3));
  const auto beside = add_module(root, "a.e", torch::nn::Linear(1, 1));
  const auto modules = root.named_modules("", /*include_self=*/false);
  EXPECT_EQ(modules.size(), 5);  // a, a.b, a.b.c, a.b.c.d, a.e
  EXPECT_EQ(modules["a.b.c"].get(), linear.get());
  EXPECT_EQ(modules["a.b.c.d"].get(), below.get());
  EXPECT_EQ(modules["a.e"].get(), beside.get());
  EXPECT_EQ(&module_at(root, ""), &root);
  EXPECT_EQ(&module_at(root, "a.b"), modules["a.b"].get());
  EXPECT_EQ(module_at(root, "x.y", "Kind").name(), "Kind");
}

TEST(DottedModules, PathsHaveParentsAndLeaves) {
  EXPECT_EQ(parent_of("a.b.c"), "a.b");
  EXPECT_EQ(leaf_of("a.b.c"), "c");
  EXPECT_EQ(parent_of("a"), "");
  EXPECT_EQ(leaf_of("a"), "a");
  EXPECT_EQ(leaf_of("a."), "");
}

// The convolution beside a first layer against its formula in loops.

TEST(Convolution, IsTheFormula) {
  constexpr std::int64_t kHidden = 6, kGroups = 2, kKernel = 5, kLength = 4;  // shorter than the kernel
  const c10::NoGradGuard no_grad;
  at::manual_seed(6);
  DecoderConfig config;
  config.shape.hidden = kHidden;
  config.norm = {.kind = NormSpec::Kind::layer, .eps = 1e-3, .bias = true};
  config.convolution = {.kernel = kKernel, .groups = kGroups, .activation = Activation::tanh};
  Convolution convolution(config);
  for (auto& item : convolution->named_parameters()) item.value().set_data(at::randn(item.value().sizes()));
  const auto parameters = convolution->named_parameters();
  const auto &weight = parameters["conv.weight"], &bias = parameters["conv.bias"];
  ASSERT_EQ(weight.sizes(), (std::vector<std::int64_t>{kHidden, kHidden / kGroups, kKernel}));
  const auto x = at::randn({2, kLength, kHidden}), y = at::randn(x.sizes());

  auto sum = y.clone();
  constexpr auto kWidth = kHidden / kGroups;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t t = 0; t < kLength; ++t)
      for (std::int64_t o = 0; o < kHidden; ++o) {
        double value = bias[o].item<double>();
        for (std::int64_t i = 0; i < kWidth; ++i)
          for (std::int64_t n = 0; n < kKernel; ++n) {
            const auto from = t + n - kKernel / 2;
            if (from < 0 || from >= kLength) continue;
            value += weight[o][i][n].item<double>() * x[b][from][o / kWidth * kWidth + i].item<double>();
          }
        sum[b][t][o] += std::tanh(value);
      }
  const auto centred = sum - sum.mean(-1, /*keepdim=*/true);
  const auto expected =
      centred / (centred.square().mean(-1, /*keepdim=*/true) + 1e-3).sqrt() * parameters["LayerNorm.weight"] +
      parameters["LayerNorm.bias"];
  EXPECT_LE((convolution->forward(x, y) - expected).abs().max().item<double>(), 1e-5);
}

// A model's logits and the tokens that it generates, with q, k, v and gate, up together and one by one: somebody who
// listens makes the difference, and sees each module by its own name.

struct Products final : runtime::LeafListener {
  std::map<std::string, int> of_module;
  void leaf_begins(const runtime::LeafRecord& leaf) override {
    if (leaf.op == "hpu::fp8_gemm_v2" || leaf.op == "fp8::weight_only_linear") ++of_module[std::string(leaf.module)];
  }
};

struct Generated {
  std::vector<std::int64_t> ids;
  std::vector<at::Tensor> logits;
};

constexpr int kTokens = 12;

Generated generate(CausalLM& model) {
  Generated out;
  const auto cache = model.make_cache(64);
  at::Tensor ids = (at::arange(20, at::kLong) * 11 % 96 + 32).unsqueeze(0);
  for (int i = 0; i < kTokens; ++i) {
    const at::Tensor logits = model.forward(ids.to(test::kHpu), cache.get());
    out.logits.push_back(logits.cpu());
    ids = out.logits.back().select(1, -1).argmax(-1, /*keepdim=*/true);
    out.ids.push_back(ids.item<std::int64_t>());
  }
  return out;
}

void expect_same(const quant::PlanOptions& options, at::ScalarType dtype, const std::string& what) {
  const torch::NoGradGuard no_grad;
  const auto loaded = load_model(test::demo_data() / "kjv-byte-1.7M",
                                 {.dtype = dtype, .device = test::kHpu, .attention = AttentionKind::fused});
  CausalLM& model = *loaded.model;
  quant::convert(model, options);
  quant::serve(model);
  const Generated together = generate(model);
  Products products;
  const runtime::Listening listening(products);
  const Generated alone = generate(model);
  EXPECT_EQ(together.ids, alone.ids) << what;
  for (std::size_t i = 0; i < alone.logits.size(); ++i)
    EXPECT_TRUE(test::same_bits(together.logits[i], alone.logits[i])) << what << ", token " << i;
  for (const char* name : {"self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    EXPECT_EQ(products.of_module["model.layers.0." + std::string(name)], kTokens) << what << ", " << name;
  const bool kept = !options.exclude.empty();
  EXPECT_EQ(products.of_module["model.layers.0.self_attn.k_proj"], kept ? 0 : kTokens) << what;
}

TEST(LinearTogetherInModels, LogitsAndTokensAreThoseOfEach) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto activations : {quant::ActivationScaling::dynamic_token, quant::ActivationScaling::none}) {
      quant::PlanOptions options{.activations = activations};
      expect_same(options, dtype, name_of(activations));
      options.exclude = {"k_proj"};
      expect_same(options, dtype, std::string(name_of(activations)) + ", k in high precision");
    }
}

double value_of(Activation activation, double x) {
  switch (activation) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return x * (1 + std::erf(x / std::sqrt(2))) / 2;
    case Activation::gelu_tanh: return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::relu: return std::max(x, 0.0);
    case Activation::relu2: return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::tanh: return std::tanh(x);
  }
  return 0;
}

constexpr Activation kAll[] = {Activation::silu, Activation::gelu,  Activation::gelu_tanh,
                               Activation::relu, Activation::relu2, Activation::tanh};

TEST(Mlp, Activations) {
  const auto x = at::linspace(-5, 5, 41);
  for (const auto activation : kAll) {
    const auto y = activate(activation, x);
    for (std::int64_t i = 0; i < 41; ++i)
      EXPECT_NEAR(y[i].item<double>(), value_of(activation, x[i].item<double>()), 2e-6);
  }
}

Mlp made(DecoderConfig& config, torch::nn::Module& parent) {
  config.shape.hidden = 6;
  Mlp mlp(config, config.mlp, parent);
  std::int64_t k = 0;
  for (const auto& item : parent.named_parameters())
    item.value().set_data(
        ((at::arange(item.value().numel(), at::kFloat) + 7 * k++) * 0.61).sin().view(item.value().sizes()));
  return mlp;
}

TEST(Mlp, GateTimesUp) {
  const at::NoGradGuard no_grad;
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  for (const auto activation : kAll) {
    DecoderConfig separate, fused;
    for (auto* config : {&separate, &fused}) config->mlp = {.activation = activation, .inner = 5};
    fused.names.gate_up = "gate_up_proj";
    torch::nn::Module a("A"), b("B");
    auto one = made(separate, a), other = made(fused, b);
    const auto pa = a.named_parameters();
    const auto gate = at::linear(x, pa["gate_proj.weight"]), up = at::linear(x, pa["up_proj.weight"]);
    const auto expected = at::linear(activate(activation, gate) * up, pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(one.forward(x), expected, 1e-5, 1e-6));
    auto pb = b.named_parameters();
    pb["gate_up_proj.weight"].set_data(at::cat({pa["gate_proj.weight"], pa["up_proj.weight"]}));
    pb["down_proj.weight"].set_data(pa["down_proj.weight"]);
    EXPECT_TRUE(at::allclose(other.forward(x), expected, 1e-5, 1e-6));
  }
}

TEST(Mlp, PlainWithBiases) {
  const at::NoGradGuard no_grad;
  DecoderConfig config;
  config.mlp = {.gated = false, .activation = Activation::relu, .up_bias = true, .down_bias = true, .inner = 5};
  config.names.up = "in.fc", config.names.down = "out.fc";
  torch::nn::Module parent("P");
  auto mlp = made(config, parent);
  const auto p = parent.named_parameters();
  EXPECT_EQ(p.size(), 4);
  const auto x = (at::arange(12, at::kFloat) * 0.3).cos().view({2, 6});
  const auto expected =
      at::linear(at::relu(at::linear(x, p["in.fc.weight"], p["in.fc.bias"])), p["out.fc.weight"], p["out.fc.bias"]);
  EXPECT_TRUE(at::allclose(mlp.forward(x), expected, 1e-5, 1e-6));
}

}  // namespace
}  // namespace fp8::models
