// SPDX-License-Identifier: Apache-2.0
// Ways to run the same steps: as they are called, as graphs, and in lazy mode. Losses, norms of gradients, parameters,
// scales with their histories, and the state of random numbers have to be equal, bit for bit. All pairs of what a
// training can be are met by some seventy trainings; FP8_ALL_MODES=1 runs each combination (hours).
#include <random>

#include "fp8/transformer_engine/te.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::test {
namespace {

/// A training. precision: "32-true", "bf16-mixed", or the name of a recipe.
struct TrainingCase {
  std::string net, precision, optimizer;
  double dropout = 0;
  std::int64_t accumulation = 1;
  int threads = 1;
  bool recomputed = false;
  int ranks = 1;
};

std::ostream& operator<<(std::ostream& out, const TrainingCase& c) {
  return out << c.net << ", " << c.precision << ", " << c.optimizer << ", dropout " << c.dropout << ", "
             << c.accumulation << " batches a step, " << c.threads << " threads, "
             << (c.recomputed ? "recomputed" : "kept") << ", " << c.ranks << " ranks";
}

constexpr std::int64_t kWidth = 32, kLength = 4;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    for (auto* layer : {&up, &down}) *layer = torch::nn::Linear(kWidth, kWidth);
    register_module("up", up), register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  torch::nn::Linear up = nullptr, down = nullptr;
};

/// A sequence is an image of one channel.
struct ConvolutionImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor image = at::relu(norm(conv(x.unsqueeze(1))));
    return out(image.mean(1));
  }
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(4))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(kWidth, kWidth))};
};

/// A block of a transformer: BERT's with norms behind and attention over all, or Llama's with norms before, causal
/// attention and a gated MLP.
struct BlockImpl : torch::nn::Module {
  BlockImpl(bool llama, double dropout) : llama(llama), dropout(dropout) {
    for (const char* name : {"q", "k", "v", "o", "gate", "up", "down"})
      if (llama || std::string(name) != "gate")
        linears.emplace(name, register_module(name, torch::nn::Linear(kWidth, kWidth)));
    for (const char* name : {"norm_1", "norm_2"}) {
      if (llama)
        rms.push_back(register_module(name, te::RMSNorm(kWidth)));
      else
        norms.push_back(register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}))));
    }
  }
  at::Tensor normed(std::size_t which, const at::Tensor& x) { return llama ? rms[which](x) : norms[which](x); }
  at::Tensor attention(const at::Tensor& x) {
    const auto heads = [&](const char* name) {
      return linears.at(name)(x).view({x.size(0), kLength, 2, kWidth / 2}).transpose(1, 2);
    };
    const double p = is_training() && !llama ? dropout : 0;
    const at::Tensor y =
        at::scaled_dot_product_attention(heads("q"), heads("k"), heads("v"), {}, p, /*is_causal=*/llama);
    return linears.at("o")(y.transpose(1, 2).reshape(x.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (llama) {
      const at::Tensor y = x + attention(normed(0, x)), z = normed(1, y);
      return y + linears.at("down")(at::silu(linears.at("gate")(z)) * linears.at("up")(z));
    }
    const at::Tensor y = normed(0, x + attention(x));
    return normed(1, y + linears.at("down")(at::gelu(linears.at("up")(y))));
  }
  bool llama;
  double dropout;
  std::map<std::string, torch::nn::Linear> linears;
  std::vector<te::RMSNorm> rms;
  std::vector<torch::nn::LayerNorm> norms;
};
struct NetImpl : torch::nn::Module {
  explicit NetImpl(const TrainingCase& c) : dropout(c.dropout), recomputed(c.recomputed) {
    const auto add = [this](auto net) {
      block = [net](const at::Tensor& x) mutable { return net->forward(x); };
      register_module("block", std::move(net));
    };
    if (c.net == "mlp") add(std::make_shared<MlpImpl>());
    if (c.net == "convolution") add(std::make_shared<ConvolutionImpl>());
    if (c.net == "bert" || c.net == "llama") add(std::make_shared<BlockImpl>(c.net == "llama", c.dropout));
    head = register_module("head", torch::nn::Linear(kWidth, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = recomputed && is_training() ? te::checkpoint(block, x) : block(x);
    return head(torch::dropout(y, dropout, is_training()));
  }
  std::function<at::Tensor(const at::Tensor&)> block;
  torch::nn::Linear head = nullptr;
  double dropout;
  bool recomputed;
};
TORCH_MODULE(Net);

/// x [n, kLength, kWidth], y: the first column. The last of an epoch's batches has fewer samples.
class CaseBatches : public trainer::BatchSource {
 public:
  std::int64_t batches() const override { return 6; }
  void seek(std::int64_t epoch, std::int64_t batch) override { place_ = epoch * batches() + batch; }
  std::optional<trainer::Batch> next() override {
    const std::int64_t within = place_ % batches(), count = within == batches() - 1 ? 2 : 3;
    const at::Tensor x =
        at::arange(count * kLength * kWidth, at::kFloat).add(17.0 * static_cast<double>(place_++)).sin();
    const at::Tensor shaped = x.view({count, kLength, kWidth}).to(kHpu);
    return trainer::Batch{{shaped, shaped.narrow(2, 0, 1).contiguous()}, count, 0};
  }

 private:
  std::int64_t place_ = 0;
};

class CaseTask : public trainer::TrainingModule {
 public:
  explicit CaseTask(const TrainingCase& c) : optimizer_(c.optimizer) {
    torch::manual_seed(3);
    net = Net(c);
    net->to(kHpu);
  }
  torch::nn::Module& network() override { return *net; }
  at::Tensor training_step(const trainer::Batch& batch, std::int64_t) override {
    return at::mse_loss(net(batch.tensors[0]).to(at::kFloat), batch.tensors[1]);
  }
  /// The state of weights in fp8 is part of a checkpoint, as fp8 train has it.
  trainer::TrainingState extra_state() override {
    auto state = te::get_extra_state(*net);
    return {std::move(state.json), std::move(state.tensors)};
  }
  void load_extra_state(const trainer::TrainingState& state) override {
    EXPECT_TRUE(te::set_extra_state(*net, {state.json, state.tensors}).missing.empty());
  }
  trainer::Optimizers configure_optimizers() override {
    namespace optim = runtime::optim;
    trainer::Optimizers all;
    if (optimizer_ == "lamb") {
      all.optimizers = {std::make_shared<optim::FusedLamb>(net->parameters(), optim::FusedLambOptions(0.01))};
      all.lr_factor = [](std::int64_t step) { return std::min(1.0, static_cast<double>(step + 1) / 8); };
    } else if (optimizer_ == "muon") {
      std::vector<at::Tensor> hidden, others;
      for (const auto& p : net->named_parameters())
        (p.value().dim() == 2 && p.key() != "head.weight" ? hidden : others).push_back(p.value());
      all.optimizers = {std::make_shared<optim::Muon>(hidden, others)};
    } else {
      all.optimizers = {std::make_shared<optim::FusedAdamW>(net->parameters(), optim::FusedAdamWOptions(0.01))};
    }
    return all;
  }
  Net net = nullptr;

 private:
  std::string optimizer_;
};

/// What `steps` steps leave: a mode that gives the same in all of it is the same training.
struct TrainingTrace {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> tensors;  ///< parameters, buffers, the state of random numbers
  std::vector<std::string> states;  ///< of weights that train in fp8
  trainer::FitResult result;
};

class Numbers : public trainer::TrainerCallback {
 public:
  explicit Numbers(TrainingTrace& trace) : trace_(&trace) {}
  void on_step_end(trainer::Trainer&, const trainer::StepReport& report) override {
    trace_->losses.push_back(report.loss);
    trace_->norms.push_back(report.grad_norm);
  }

 private:
  TrainingTrace* trace_;
};

/// options: of the mode. group: null for one rank.
TrainingTrace train(const TrainingCase& c, trainer::TrainerOptions options, std::int64_t steps,
                    const std::shared_ptr<runtime::distributed::ProcessGroup>& group = nullptr) {
  const int threads = at::get_num_threads();
  at::set_num_threads(c.threads);
  TrainingTrace trace;
  CaseTask task(c);
  const bool fp8 = c.precision != "32-true" && c.precision != "bf16-mixed";
  te::HPUPrecisionPlugin plugin(fp8 ? "fp8" : c.precision);
  if (fp8) {
    const auto recipe = configs::recipe_from_argument(c.precision).recipe;
    plugin.convert_modules(*task.net, {.replace_layers = true, .recipe = recipe});
  }
  options.max_steps = steps;
  options.accumulate_grad_batches = c.accumulation;
  options.gradient_clip_val = 0.5;
  options.group = group;
  if (group != nullptr) options.strategy.kind = trainer::StrategyKind::fast_ddp;
  trainer::Trainer trainer(te::with_precision(plugin, options), {std::make_shared<Numbers>(trace)});
  CaseBatches batches;
  trace.result = trainer.fit(task, batches);
  for (const auto& p : task.net->parameters()) {
    trace.tensors.push_back(p.detach());
    if (te::training_handler(p) != nullptr) trace.states.push_back(te::training_state(p));
  }
  for (const auto& b : task.net->buffers()) trace.tensors.push_back(b);
  trace.tensors.push_back(at::globalContext().defaultGenerator(at::kCPU).get_state());
  at::set_num_threads(threads);
  return trace;
}

void expect_same(const TrainingTrace& found, const TrainingTrace& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.states, expected.states);
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i)
    EXPECT_TRUE(same_bits(found.tensors[i], expected.tensors[i])) << "tensor " << i;
}

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
