// SPDX-License-Identifier: Apache-2.0
// Ways to run the same steps: as they are called, as graphs, and in lazy mode. Losses, norms of gradients, parameters,
// scales with their histories, and the state of random numbers have to be equal, bit for bit. All pairs of what a
// training can be are met by some seventy trainings; FP8_ALL_MODES=1 runs each combination (hours).

#include <random>

#include "support/ranks.h"
#include "transformer_engine/modes/modes_task.h"

namespace fp8::test {
namespace {

constexpr std::int64_t kSteps = 20;

/// What the parts of a case may be, by part.
struct Parts {
  std::vector<std::string> net = {"mlp", "convolution", "bert", "llama"};
  std::vector<std::string> precision = {"32-true", "bf16-mixed"};
  std::vector<std::string> optimizer = {"adamw", "muon", "lamb"};
  std::vector<std::size_t> sizes() const { return {net.size(), precision.size(), optimizer.size(), 2, 2, 2, 2, 2}; }
  TrainingCase at(const std::vector<std::size_t>& i) const {
    return {net[i[0]],         precision[i[1]],   optimizer[i[2]], i[3] == 0 ? 0.0 : 0.1,
            i[4] == 0 ? 1 : 4, i[5] == 0 ? 1 : 2, i[6] == 1,       i[7] == 0 ? 1 : 2};
  }
};

Parts parts() {
  Parts all;
  for (const auto& name : configs::recipe_preset_names()) all.precision.push_back(name);
  return all;
}

using Row = std::vector<std::size_t>;

/// Rows in which each two values of two parts meet: of fifty random rows always the one with most pairs that are new.
std::vector<Row> all_pairs(const std::vector<std::size_t>& sizes) {
  std::set<std::array<std::size_t, 4>> open;
  for (std::size_t a = 0; a < sizes.size(); ++a)
    for (std::size_t b = a + 1; b < sizes.size(); ++b)
      for (std::size_t i = 0; i < sizes[a]; ++i)
        for (std::size_t j = 0; j < sizes[b]; ++j) open.insert({a, i, b, j});
  std::mt19937 random(7);
  const auto pairs_of = [&](const Row& row) {
    std::vector<std::array<std::size_t, 4>> found;
    for (std::size_t a = 0; a < row.size(); ++a)
      for (std::size_t b = a + 1; b < row.size(); ++b)
        if (open.contains({a, row[a], b, row[b]})) found.push_back({a, row[a], b, row[b]});
    return found;
  };
  std::vector<Row> rows;
  while (!open.empty()) {
    const auto [a, i, b, j] = *open.begin();
    Row best;
    for (int trial = 0; trial < 50; ++trial) {
      Row row;
      for (const std::size_t size : sizes) row.push_back(random() % size);
      row[a] = i, row[b] = j;
      if (best.empty() || pairs_of(row).size() > pairs_of(best).size()) best = row;
    }
    for (const auto& pair : pairs_of(best)) open.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

std::vector<Row> every_row(const std::vector<std::size_t>& sizes) {
  std::vector<Row> rows = {{}};
  for (const std::size_t size : sizes) {
    std::vector<Row> longer;
    for (const Row& row : rows)
      for (std::size_t i = 0; i < size; ++i) longer.push_back(row), longer.back().push_back(i);
    rows = std::move(longer);
  }
  return rows;
}

std::vector<TrainingCase> cases(int ranks) {
  const Parts all = parts();
  const char* whole = std::getenv("FP8_ALL_MODES");
  std::vector<TrainingCase> found;
  for (const Row& row : whole != nullptr && *whole == '1' ? every_row(all.sizes()) : all_pairs(all.sizes()))
    if (auto c = all.at(row); c.ranks == ranks) found.push_back(std::move(c));
  return found;
}

/// The modes, beside the one that runs calls as they come.
std::vector<std::pair<const char*, trainer::TrainerOptions>> modes() {
  return {{"graphs", {.hpu_graphs = {.training = true}}},
          {"lazy", {.lazy = {.on = true}}},
          {"pipelined", {.lazy = {.on = true, .pipelining = true}}},
          {"lazy graphs", {.hpu_graphs = {.training = true}, .lazy = {.on = true}}}};
}

void compare(int ranks, const std::shared_ptr<runtime::distributed::ProcessGroup>& group) {
  for (const TrainingCase& c : cases(ranks)) {
    SCOPED_TRACE(c);
    const TrainingTrace eager = train(c, {}, kSteps, group);
    EXPECT_EQ(eager.losses.size(), static_cast<std::size_t>(kSteps));
    EXPECT_LT(eager.losses.back(), eager.losses.front());
    for (const auto& [name, options] : modes()) {
      SCOPED_TRACE(name);
      const TrainingTrace found = train(c, options, kSteps, group);
      expect_same(found, eager);
      // A part that runs again within backward is no part of a graph: such steps run as they are.
      if (options.hpu_graphs.training && !c.recomputed) {
        EXPECT_GT(found.result.graphs.replayed, kSteps / 2) << found.result.graph_refusals;
      }
    }
  }
}

TEST(TrainingModes, OneRank) { compare(1, nullptr); }

/// Half of the steps, and the other half by another trainer from its checkpoint.
TEST(TrainingModes, Resumed) {
  for (const std::string& precision : parts().precision) {
    TrainingCase c;
    c.net = "bert", c.precision = precision, c.optimizer = "adamw", c.dropout = 0.1;
    const TrainingTrace eager = train(c, {}, kSteps);
    auto all = modes();
    all.emplace_back("eager", trainer::TrainerOptions{});
    for (const auto& [name, mode] : all) {
      SCOPED_TRACE(precision + ", " + name);
      const TempDir folder;
      trainer::TrainerOptions options = mode;
      options.checkpoint_root = folder.path(), options.save_every_n_steps = 5, options.resume = true;
      const TrainingTrace first = train(c, options, kSteps / 2);
      TrainingTrace both = train(c, options, kSteps);
      both.losses.insert(both.losses.begin(), first.losses.begin(), first.losses.end());
      both.norms.insert(both.norms.begin(), first.norms.begin(), first.norms.end());
      expect_same(both, eager);
    }
  }
}

FP8_TEST_RANKS(TrainingModes, TwoRanks, 2) { compare(2, rank_group()); }

}  // namespace
}  // namespace fp8::test
