// SPDX-License-Identifier: Apache-2.0
// Every observer against plain ATen, on ordinary and on hostile tensors; what is written beside.
#include "fp8/measure/observers/observer.h"

#include <torch/torch.h>

#include <fstream>
#include <map>

#include "fp8/runtime/io/base/file.h"
#include "measure/amax_by_aten.h"
#include "support/hpu_test.h"
#include "support/temp_dir.h"

namespace fp8::measure {
namespace {

using test::throws_with;

void show(Observer& observer, const at::Tensor& t) {
  std::any memo;
  observer.observe(Observed(t, largest(t), &memo));
}

std::unique_ptr<Observer> make(const std::string& name, const ObserverContext& context = {}) {
  return find_observer(name).make(context);
}

Amax result_of(const std::string& name, const std::vector<at::Tensor>& seen, const ObserverContext& context = {}) {
  const auto observer = make(name, context);
  for (const auto& t : seen) show(*observer, t);
  return observer->result();
}

TEST(Observer, MaxabsIsTheLargestOfAll) {
  const at::Tensor a = torch::randn({4, 5}), b = torch::randn({2, 3, 5}) * 3;
  EXPECT_EQ(result_of("maxabs", {a, b}), Amax{std::max(largest(a), largest(b))});
  EXPECT_EQ(result_of("maxabs", {}), Amax{0.0f});
  EXPECT_EQ(result_of("maxabs", {torch::zeros({0, 5})}), Amax{0.0f});
}

TEST(Observer, MaxabsOfStackedExpertsIsOnePerExpert) {
  ObserverContext context;
  context.per_expert = true;
  const at::Tensor w = torch::randn({3, 4, 5});
  EXPECT_EQ(result_of("maxabs", {w}, context), along(w, 0));
}

TEST(Observer, OfACacheKeptAsidePerChannelTooMeansPerHead) {
  ObserverContext context;
  context.head_dim = -3;
  const at::Tensor keys = torch::randn({2, 3, 7, 8});
  for (const char* name : {"maxabs", "maxabs_per_channel"})
    EXPECT_EQ(result_of(name, {keys}, context), along(keys, 1)) << name;
}

TEST(Observer, PerChannelFollowsTheDimension) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor a = torch::randn({2, 6, 5, 3}).to(dtype), b = torch::randn({7, 6, 5, 3}).to(dtype) * 2;
    for (const std::int64_t dim : {-1, -2, -3, 0, 1}) {
      ObserverContext context;
      context.channel_dim = dim;
      EXPECT_EQ(result_of("maxabs_per_channel", {a}, context), along(a, dim)) << dim;
      if (dim == 0) continue;
      const Amax both = along(at::cat({a, b}), dim);
      EXPECT_EQ(result_of("maxabs_per_channel", {a, b}, context), both) << dim;
      EXPECT_EQ(result_of("maxabs_per_channel", {b.transpose(0, 2).contiguous().transpose(0, 2)}, context),
                along(b, dim));
    }
  }
}

TEST(Observer, PerChannelOfStackedExpertsIsOnePerOutputChannel) {
  ObserverContext context;
  context.per_expert = true;
  context.channel_dim = 0;
  const at::Tensor w = torch::randn({3, 4, 5});
  EXPECT_EQ(result_of("maxabs_per_channel", {w}, context), along(w.flatten(0, 1), 0));
}

TEST(Observer, PerChannelOfGrowingTensorsKeepsAll) {  // attention's probabilities get longer token by token
  const at::Tensor a = torch::rand({2, 3}), b = torch::rand({2, 5});
  Amax expected = along(b, -1);
  for (std::size_t i = 0; i < 3; ++i) expected[i] = std::max(expected[i], along(a, -1)[i]);
  EXPECT_EQ(result_of("maxabs_per_channel", {a, b}), expected);
  EXPECT_EQ(result_of("maxabs_per_channel", {b, a}), expected);
}

TEST(Observer, ShapeIsTheLast) {
  EXPECT_EQ(result_of("shape", {torch::zeros({2, 3}), torch::zeros({4, 0, 6})}), (Amax{4, 0, 6}));
  EXPECT_FALSE(find_observer("shape").reads_values);
}

TEST(Observer, HistogramsKeepTheMaximumAndTheThresholdsClip) {
  torch::manual_seed(1);
  at::Tensor x = torch::randn({100000});
  x[5] = -300;
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    EXPECT_EQ(result_of("histogram", {x.to(dtype)}), Amax{300.0f});
    EXPECT_LT(result_of("percentile", {x.to(dtype)})[0], 6.0f);
    EXPECT_LE(result_of("mse", {x.to(dtype)})[0], 300.0f);
    EXPECT_LE(result_of("kl", {x.to(dtype)})[0], 300.0f);
  }
  ObserverContext context;
  context.parameters = {{"percentile", 50.0}, {"bins", 65536}};
  EXPECT_NEAR(result_of("percentile", {x}, context)[0], 0.6745, 0.02);  // the normal distribution's quartile
}

TEST(Observer, HistogramsOfViewsCountTheViewsValues) {
  const at::Tensor t = torch::randn({6, 7, 8});
  const auto state = [](const at::Tensor& x) {
    const auto observer = make("histogram");
    show(*observer, x);
    return observer->state();
  };
  for (const at::Tensor& view : {t.transpose(0, 2), t.narrow(1, 2, 3), t.select(2, 1),
                                 t.narrow(0, 1, 2).transpose(1, 2), t.expand({2, 6, 7, 8})}) {
    EXPECT_EQ(state(view), state(view.clone(at::MemoryFormat::Contiguous))) << view.sizes();
  }
}

TEST(Observer, HostileTensorsGiveFiniteResults) {
  const std::vector<at::Tensor> hostile = {
      torch::zeros({3, 4}),     torch::zeros({0}),       torch::zeros({2, 0, 3}),
      torch::tensor(5.0f),      torch::tensor(0),        torch::full({3}, 3.4e38f),
      torch::full({3}, 1e-45f), torch::ones({4, 4}).t(), torch::ones({1, 1}).expand({3, 4})};
  for (const auto& name : observer_names()) {
    if (name == "save") continue;
    for (const auto& t : hostile) {
      for (float v : result_of(name, {t, t})) EXPECT_TRUE(std::isfinite(v) && v >= 0) << name << t.sizes();
    }
  }
}

TEST(Observer, MergedIsAsIfOneHadSeenAll) {
  const std::vector<at::Tensor> first = {torch::randn({4, 8}), torch::randn({4, 8}) * 9},
                                second = {torch::randn({3, 8}) * 2};
  for (const auto& name : observer_names()) {
    if (name == "save") continue;
    const auto all = make(name), a = make(name), b = make(name), restored = make(name);
    for (const auto& t : first) show(*all, t), show(*a, t);
    for (const auto& t : second) show(*all, t), show(*b, t);
    restored->restore(io::parse_json(b->state().dump(), "state"), "state");
    EXPECT_EQ(restored->result(), b->result()) << name;
    a->merge(*restored);
    EXPECT_EQ(a->result(), all->result()) << name;
    EXPECT_EQ(a->state(), all->state()) << name;
  }
  EXPECT_TRUE(throws_with({"same kind"}, [] { make("maxabs")->merge(*make("kl")); }));
  EXPECT_TRUE(throws_with({"F", "amax"}, [] { make("maxabs")->restore({{"amax", {-1.0}}}, "F"); }));
}

TEST(Observer, SaveWritesWhatTorchLoads) {
  const test::TempDir dir;
  ObserverContext context;
  context.module = "model.q_proj";
  context.tensor = "input0";
  context.folder = dir.path();
  context.rank = configs::Rank{1, 2};
  const at::Tensor whole = torch::randn({4, 6}), view = whole.t().narrow(0, 1, 2),
                   half = torch::randn({3}).to(at::kBFloat16);
  EXPECT_EQ(result_of("save", {view, half}, context), Amax{std::max(largest(view), largest(half))});
  int n = 0;
  for (const auto& t : {view, half}) {
    const auto path = dir / "tensors_1_2" / ("model.q_proj_input0_iter" + std::to_string(n++) + ".pt");
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(test::same_bits(torch::pickle_load(bytes).toTensor(), t)) << path;
    EXPECT_LT(bytes.size(), 2000u);  // the view, not what it is a view of
  }
}

TEST(Observer, SaveKeepsToItsLimit) {
  const test::TempDir dir;
  ObserverContext context;
  context.module = "m";
  context.tensor = "weight";
  context.folder = dir.path();
  context.parameters = {{"save_mib", 0.5}};
  context.bytes_saved = std::make_shared<std::atomic<std::int64_t>>(0);
  const at::Tensor t = torch::ones({50000}) * 2;  // 195 KiB
  EXPECT_EQ(result_of("save", {t, t, t, t}, context), Amax{2.0f});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir / "tensors"), {}), 2);
  EXPECT_EQ(*context.bytes_saved, 400000);
}

TEST(Observer, SavedTensorsOfAnEarlierRunAreMovedAside) {
  const test::TempDir dir;
  ObserverContext context;
  context.module = "m";
  context.tensor = "input0";
  context.folder = dir.path();
  const at::Tensor t = torch::ones({3});
  result_of("save", {t, t, t}, context);
  result_of("save", {t}, context);
  std::map<std::string, std::ptrdiff_t> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    files[entry.path().filename().string().substr(0, 15)] =
        std::distance(std::filesystem::directory_iterator(entry.path()), {});
  }
  EXPECT_EQ(files, (std::map<std::string, std::ptrdiff_t>{{"backup_tensors_", 3}, {"tensors", 1}}));
}

}  // namespace
}  // namespace fp8::measure
