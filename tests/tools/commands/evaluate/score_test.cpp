// SPDX-License-Identifier: Apache-2.0
// Scores against the formulas written out in double with plain loops.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include "fp8/tools/commands/evaluate/continuation.h"
#include "fp8/tools/commands/evaluate/scoring.h"
#include "support/test_data.h"
#include "support/throws_with.h"

namespace fp8::commands {
namespace {

std::vector<double> softmax(const at::Tensor& row) {
  std::vector<double> p;
  double sum = 0;
  for (std::int64_t v = 0; v < row.size(0); ++v) {
    p.push_back(std::exp(row[v].item<double>()));
    sum += p.back();
  }
  for (auto& value : p) value /= sum;
  return p;
}

ChunkScore expected_score(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& reference) {
  ChunkScore score;
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    const auto q = softmax(logits[t]), p = softmax(reference[t]);
    if (t + 1 < logits.size(0)) score.nll -= std::log(q[static_cast<std::size_t>(ids[t + 1].item<std::int64_t>())]);
    for (std::size_t v = 0; v < p.size(); ++v) score.kl += p[v] * std::log(p[v] / q[v]);
    score.agree += std::max_element(p.begin(), p.end()) - p.begin() == std::max_element(q.begin(), q.end()) - q.begin();
  }
  return score;
}

TEST(ScoreChunks, EqualsTheFormulas) {
  at::manual_seed(3);
  const auto logits = at::randn({3, 7, 11}) * 2, reference = logits + at::randn({3, 7, 11});
  const auto ids = at::randint(0, 11, {3, 7}, at::kLong);
  const auto scores = score_chunks(logits, ids, reference);
  ASSERT_EQ(scores.size(), 3u);
  std::int64_t agree = 0;
  for (int b = 0; b < 3; ++b) {
    const auto expected = expected_score(logits[b], ids[b], reference[b]);
    EXPECT_NEAR(scores[b].nll, expected.nll, 1e-5);
    EXPECT_NEAR(scores[b].kl, expected.kl, 1e-10);
    EXPECT_EQ(scores[b].agree, expected.agree);
    agree += scores[b].agree;
  }
  EXPECT_GT(agree, 0);
  EXPECT_LT(agree, 21);
}

TEST(ScoreChunks, SlicesOfLargeVocabulariesChangeNothing) {
  at::manual_seed(4);
  const std::int64_t vocabulary = 400'000;  // two rows a slice
  const auto logits = at::randn({1, 5, vocabulary});
  const auto ids = at::randint(0, vocabulary, {1, 5}, at::kLong);
  const auto log_p = at::log_softmax(logits.to(at::kDouble), -1);
  double nll = 0;
  for (int t = 0; t < 4; ++t) nll -= log_p[0][t][ids[0][t + 1].item<std::int64_t>()].item<double>();
  const auto score = score_chunks(logits, ids, logits)[0];
  EXPECT_NEAR(score.nll, nll, 1e-4);
  EXPECT_NEAR(score.kl, 0, 1e-12);
  EXPECT_EQ(score.agree, 5);
}

TEST(ScoreChunks, NaNIsNotHidden) {
  auto logits = at::zeros({2, 3, 4});
  logits[1][0][2] = std::numeric_limits<float>::quiet_NaN();
  const auto scores = score_chunks(logits, at::zeros({2, 3}, at::kLong), {});
  EXPECT_NEAR(scores[0].nll, 2 * std::log(4.0), 1e-6);
  EXPECT_TRUE(std::isnan(scores[1].nll));
  EXPECT_EQ(scores[0].kl, 0);
}

TEST(Score, WithoutIdsThereIsADistanceAlone) {
  const auto a = at::tensor({0.0f, 1.0f, 2.0f, 3.0f}).view({1, 2, 2}),
             b = at::tensor({0.0f, 2.0f, 3.0f, 2.0f}).view({1, 2, 2});
  const auto with = score_chunks(a, at::tensor({0, 1}, at::kLong).view({1, 2}), b), without = score_chunks(a, {}, b);
  EXPECT_EQ(without[0].nll, 0);
  EXPECT_EQ(without[0].kl, with[0].kl);
  EXPECT_EQ(without[0].agree, 1);
}

TEST(Score, CosinesOfMeans) {
  const auto a = at::tensor({1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 2, 2});
  const auto b = at::tensor({3.0f, 3.0f, 3.0f, 5.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({2, 2, 2});
  const auto found = cosines(a, b);  // (1, 0) and (3, 4); 0 and 0
  EXPECT_DOUBLE_EQ(found[0], 0.6);
  EXPECT_DOUBLE_EQ(found[1], 1);
}

// A model that counts: after token i it says i + 1. Its "cache" remembers the last token of each sequence, so that a
// row that is taken for another shows.

constexpr std::int64_t kVocab = 256, kContext = 20;

struct CountingCache : models::Cache {
  using Cache::Cache;
  void keep(const std::vector<std::int64_t>& sequences) override {
    std::vector<std::int64_t> kept, kept_starts;
    for (const auto i : sequences) {
      kept.push_back(last.at(static_cast<std::size_t>(i)));
      kept_starts.push_back(starts().at(static_cast<std::size_t>(i)));
    }
    last = kept;
    set_starts(kept_starts);
  }
  using Cache::set_starts;
  std::vector<std::int64_t> last;
};

class CountingModel : public models::CausalLM {
 public:
  explicit CountingModel(bool joins, std::int64_t context = kContext)
      : CausalLM("CountingModel", shape_of(context)), joins_(joins) {
    words_ = register_module("words", torch::nn::Embedding(kVocab, kVocab));
    head_ = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kVocab, kVocab).bias(false)));
    words_->weight.set_data(at::eye(kVocab));
    head_->weight.set_data(at::eye(kVocab).roll(1, 0) * 100);  // row i + 1 is the unit vector i
  }
  std::unique_ptr<models::Cache> make_cache(std::int64_t capacity) const override {
    return std::make_unique<CountingCache>(capacity);
  }
  std::unique_ptr<models::Cache> join(const std::vector<models::Cache*>& caches, std::int64_t capacity) const override {
    if (!joins_) return nullptr;
    auto all = std::make_unique<CountingCache>(capacity);
    std::int64_t longest = 0;
    for (auto* cache : caches) {
      all->last.push_back(dynamic_cast<CountingCache&>(*cache).last.at(0));
      longest = std::max(longest, cache->length());
    }
    std::vector<std::int64_t> starts;
    for (auto* cache : caches) starts.push_back(longest - cache->length());
    all->set_starts(starts);
    all->advance(longest);
    return all;
  }
  Parts parts() const override { return {.words = words_, .head = head_}; }
  LayerFunction begin(const at::Tensor& h, models::Cache* cache, std::int64_t) override {
    auto& seen = dynamic_cast<CountingCache&>(*cache);
    const at::Tensor ids = h.argmax(-1);
    EXPECT_LE(seen.length() + ids.size(1), seen.capacity());
    batches.push_back(ids.size(0));
    lengths.push_back(ids.size(1));
    if (!seen.last.empty()) {
      EXPECT_EQ(seen.last.size(), static_cast<std::size_t>(ids.size(0)));
      for (std::int64_t i = 0; i < ids.size(0); ++i)
        EXPECT_EQ(ids[i][0].item<std::int64_t>(), seen.last[static_cast<std::size_t>(i)] + 1) << "row " << i;
    }
    seen.last.clear();
    for (std::int64_t i = 0; i < ids.size(0); ++i) seen.last.push_back(ids[i][ids.size(1) - 1].item<std::int64_t>());
    return {};
  }
  at::Tensor norm(const at::Tensor& h) override {
    heads.push_back(h.size(1));
    return broken ? h * std::numeric_limits<float>::quiet_NaN() : h;
  }

  static models::ModelShape shape_of(std::int64_t context) {
    models::ModelShape shape;
    shape.vocab = shape.hidden = kVocab;
    shape.context = context;
    shape.eos = {'z'};
    return shape;
  }

  bool reads_in_parts() const override { return !whole; }

  bool broken = false, whole = false;
  std::vector<std::int64_t> batches, lengths;  ///< of every forward
  std::vector<std::int64_t> heads;             ///< positions of every one that has logits

 private:
  bool joins_;
  torch::nn::Embedding words_{nullptr};
  torch::nn::Linear head_{nullptr};
};

struct ContinuationTest : ::testing::TestWithParam<bool> {
  text::Tokenizer tokenizer_{test::demo_data() / "kjv-byte-1.7M"};
  CountingModel model_{GetParam()};
  ContinuationOptions options_;
  std::vector<std::pair<std::int64_t, std::int64_t>> begun_;
  std::vector<std::string> emitted_;
  const c10::NoGradGuard no_grad_;

  std::vector<Continuation> run(const std::vector<std::string>& prompts) {
    std::vector<Continuation> all(prompts.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i].prompt.assign(prompts[i].begin(), prompts[i].end());
    emitted_.assign(all.size(), "");
    options_.model = "counting";
    options_.begin = [&](std::int64_t first, std::int64_t count) { begun_.emplace_back(first, count); };
    const auto seconds = continue_prompts(model_, tokenizer_, options_, 40, all,
                                          [&](std::size_t i, const std::string& piece) { emitted_.at(i) += piece; });
    EXPECT_GE(seconds.all, seconds.prompts);
    return all;
  }
};

TEST_P(ContinuationTest, EachEndsWhereItEnds) {
  options_.tokens = 6;
  const auto all = run({"xa", "vw", std::string(17, 'b'), "y", "c", std::string(20, 'd')});
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"bcdefg", "tokens"}, {"xy", "eos"}, {"cdef", "context"}, {"", "eos"}, {"defghi", "tokens"}, {"e", "context"}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].text, expected[i].first) << i;
    EXPECT_EQ(all[i].stopped, expected[i].second) << i;
    EXPECT_EQ(std::string(all[i].ids.begin(), all[i].ids.end()), all[i].text) << i;
    EXPECT_EQ(emitted_[i], all[i].text) << i;
  }
}

TEST_P(ContinuationTest, ForwardsAndTheirSamples) {
  options_.tokens = 4;
  run({"a", "x", "b"});  // of "x" follow y and the end
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  if (GetParam()) {
    EXPECT_EQ(model_.batches, (std::vector<std::int64_t>{1, 1, 1, 3, 2, 2}));
    EXPECT_EQ(begun_, (Pairs{{40, 1}, {41, 1}, {42, 1}, {40, 3}}));
  } else {
    EXPECT_EQ(model_.batches, (std::vector<std::int64_t>(3 + 3 + 1 + 3, 1)));
    EXPECT_EQ(begun_, (Pairs{{40, 1}, {41, 1}, {42, 1}, {40, 1}, {41, 1}, {42, 1}}));
  }
}

TEST_P(ContinuationTest, OneTokenNeedsNoSecondForward) {
  options_.tokens = 1;
  const auto all = run({"a", "b"});
  EXPECT_EQ(all[0].text + all[1].text, "bc");
  EXPECT_EQ(model_.batches.size(), 2u);
}

TEST_P(ContinuationTest, APromptIsReadPartByPartWhereTheFamilyDoes) {
  options_.tokens = 2;
  options_.part = 3;
  EXPECT_EQ(run({"abcdefg"})[0].text, "hi");
  EXPECT_EQ(model_.lengths, (std::vector<std::int64_t>{3, 3, 1, 1}));
  EXPECT_EQ(model_.heads, (std::vector<std::int64_t>{1, 1}));
  model_.lengths.clear();
  EXPECT_EQ(run({"abcdef"})[0].text, "gh");
  EXPECT_EQ(model_.lengths, (std::vector<std::int64_t>{3, 3, 1}));
  model_.whole = true;
  model_.lengths.clear();
  EXPECT_EQ(run({"abcdefg"})[0].text, "hi");
  EXPECT_EQ(model_.lengths, (std::vector<std::int64_t>{7, 1}));
}

TEST_P(ContinuationTest, PartsOfASmallModelHave256Tokens) {
  CountingModel model(GetParam(), 1000);
  options_.tokens = 1;
  options_.begin = [](std::int64_t, std::int64_t) {};
  std::vector<Continuation> all(1);
  all[0].prompt.assign(256, 'a');  // the second part begins with what follows the first
  all[0].prompt.insert(all[0].prompt.end(), 3, 'b');
  continue_prompts(model, tokenizer_, options_, 0, all, [](std::size_t, const std::string&) {});
  EXPECT_EQ(all[0].text, "c");
  EXPECT_EQ(model.lengths, (std::vector<std::int64_t>{256, 3}));
}

TEST_P(ContinuationTest, LogitsThatAreNoNumbersAreAnError) {
  model_.broken = true;
  EXPECT_EQ(error_of<io::Error>([&] { run({"a"}); }), "counting: NaN or infinite logits");
}

INSTANTIATE_TEST_SUITE_P(Families, ContinuationTest, ::testing::Bool());

// The demo model's tokens are bytes, so characters arrive in parts.

struct TextStreamTest : ::testing::Test {
  text::Tokenizer tokenizer_{test::demo_data() / "kjv-byte-1.7M"};

  static std::vector<std::int64_t> bytes(const std::string& text) {
    std::vector<std::int64_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
};

TEST_F(TextStreamTest, CharactersComeOutWhole) {
  const std::string text = "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x98\x80 end";
  TextStream stream(tokenizer_, bytes("a prompt"));
  std::string all;
  for (const auto id : bytes(text)) {
    const auto piece = stream.append(id);
    if (!piece.empty()) {
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "a piece starts inside a character";
    }
    EXPECT_TRUE(piece.size() <= 1 || static_cast<unsigned char>(piece[0]) >= 0xC0) << piece;
    all += piece;
  }
  EXPECT_EQ(all + stream.finish(), text);
}

TEST_F(TextStreamTest, EmptyPrompt) {
  TextStream stream(tokenizer_, {});
  EXPECT_EQ(stream.append('x'), "x");
  EXPECT_EQ(stream.finish(), "");
}

TEST_F(TextStreamTest, BytesThatNeverBecomeACharacterAreGivenOut) {
  TextStream stream(tokenizer_, bytes("p"));
  std::string all;
  for (int i = 0; i < 40; ++i) all += stream.append(0x80);
  EXPECT_NE(all, "");
  TextStream cut(tokenizer_, bytes("p"));
  EXPECT_EQ(cut.append(0xC3), "");
  EXPECT_EQ(cut.finish(), "\xEF\xBF\xBD");
}

// Picked tokens against PyTorch's argmax, and against softmax and its cumulative sum in f64.

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LogitsRow row_of(const at::Tensor& logits) {
  return {logits.const_data_ptr(), runtime::float_type_of(logits.scalar_type()), logits.numel()};
}

struct SamplingTest : ::testing::TestWithParam<at::ScalarType> {
  static at::Tensor random(std::int64_t n) { return (at::randn({n}, at::kFloat) * 4).to(GetParam()); }
};

TEST_P(SamplingTest, TheLargestIsPyTorchs) {
  at::manual_seed(1);
  for (const std::int64_t n : {1, 2, 7, 31, 64, 1000, 32001})
    for (const double shift : {0.0, -100.0}) {
      const at::Tensor logits = random(n) + shift;
      const auto largest = largest_of(row_of(logits));
      ASSERT_TRUE(largest.has_value());
      EXPECT_EQ(largest->index, logits.argmax().item<std::int64_t>());
      EXPECT_EQ(largest->value, logits.max().item<float>());
    }
}

TEST_P(SamplingTest, OfEqualOnesItIsTheFirst) {
  const auto first_of = [](const std::vector<float>& values) {
    return largest_of(row_of(at::tensor(values).to(GetParam()))).value().index;
  };
  EXPECT_EQ(first_of({1, 3, 2, 3, 3}), 1);
  EXPECT_EQ(first_of({-1, -0.0f, 0, -0.0f}), 1);
  EXPECT_EQ(first_of({-1, 0, -0.0f, 0}), 1);
  EXPECT_EQ(first_of({-5, -2, -2, -7}), 1);
}

TEST_P(SamplingTest, NoNumberHasNoLargest) {
  for (const double wrong : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()})
    for (const std::int64_t i : {0, 500, 999}) {
      const at::Tensor logits = random(1000);
      logits[i] = wrong;
      EXPECT_FALSE(largest_of(row_of(logits)).has_value());
    }
  const double most = GetParam() == at::kHalf ? 65504 : GetParam() == at::kBFloat16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
  EXPECT_EQ(largest_of(row_of(at::tensor({-most, most}, at::kDouble).to(GetParam()))).value().index, 1);
}

TEST_P(SamplingTest, DrawsFollowTheSoftmax) {
  at::manual_seed(2);
  std::mt19937_64 generator(3), same(3);
  for (const double temperature : {0.2, 1.0, 3.0}) {
    TokenDraw draw(temperature);
    for (const std::int64_t n : {1, 5, 300, 5000, 300}) {
      const at::Tensor logits = random(n);
      const auto until = at::softmax(logits.to(at::kDouble) / temperature, 0).cumsum(0);
      for (int i = 0; i < 50; ++i) {
        const double u = static_cast<double>(same() >> 11) * 0x1p-53;
        const auto expected = at::searchsorted(until, u, /*out_int32=*/false, /*right=*/true).item<std::int64_t>();
        const auto largest = largest_of(row_of(logits)).value().value;
        EXPECT_EQ(draw.draw(row_of(logits), largest, generator), expected) << "u " << u;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SamplingTest, ::testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& test) { return c10::toString(test.param); });

TEST(Confidence, StudentsQuantilesAreScipys) {
  // scipy.stats.t.ppf(0.975, n)
  for (const auto& [n, t] : {std::pair{1, 12.70620},
                             {2, 4.30265},
                             {3, 3.18245},
                             {4, 2.77645},
                             {5, 2.57058},
                             {7, 2.36462},
                             {10, 2.22814},
                             {31, 2.03951},
                             {63, 1.99834},
                             {1'000'000, 1.95997}})
    EXPECT_NEAR(student_t(n) / t, 1, 4e-4) << n;
}

TEST(Confidence, OfEqualChunksItIsTheStandardErrorOfTheMean) {
  // Python's statistics: mean, and stdev / sqrt(5), of [1, 2, 4, 4.5, 3.5]
  const auto e = estimate({2, 4, 8, 9, 7}, {2, 2, 2, 2, 2});
  EXPECT_DOUBLE_EQ(e.mean, 3);
  EXPECT_NEAR(e.error.value(), 0.6519202405202649, 1e-12);
  EXPECT_NEAR(e.interval.value()[0], 3 - 2.77645 * 0.65192, 1e-3);
  EXPECT_NEAR(e.interval.value()[1], 3 + 2.77645 * 0.65192, 1e-3);
}

TEST(Confidence, LongChunksWeighMore) {
  const auto e = estimate({3, 5, 1, 7}, {2, 4, 1, 5});
  EXPECT_DOUBLE_EQ(e.mean, 16.0 / 12);
  EXPECT_NEAR(e.error.value(), 0.06415002990995843, 1e-12);  // sqrt(4) stdev(x - mean n) / 12, with Python's statistics
  EXPECT_NEAR(e.interval.value()[0], 1.1291793076625112, 1e-12);
}

TEST(Confidence, OneChunkHasNone) {
  const auto e = estimate({3}, {2});
  EXPECT_EQ(e.mean, 1.5);
  EXPECT_FALSE(e.error.has_value() || e.interval.has_value());
}

}  // namespace
}  // namespace fp8::commands
