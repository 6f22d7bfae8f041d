// SPDX-License-Identifier: Apache-2.0
// Which calls wait, who ends the waiting, and what comes of errors.
#include "fp8/runtime/lazy/lazy_mode.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <regex>

#include "fp8/runtime/device/allocator.h"
#include "fp8/runtime/graph/graph_counter.h"
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/lazy/lazy_work.h"
#include "fp8/runtime/tape/heard.h"
#include "lazy_test.h"

namespace fp8::runtime {
namespace {

using test::hpu;
using test::In;
using test::Mode;
using test::queued_by;
using Tensors = std::vector<at::Tensor>;

constexpr Mode kLazyModes[] = {Mode::lazy, Mode::worker};

at::Tensor ramp(std::int64_t rows = 4, std::int64_t cols = 4) {
  return hpu(torch::arange(rows * cols, torch::kFloat).view({rows, cols}));
}

TEST(LazyMode, CallsThatRanBeforeWait) {
  const auto x = ramp();
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    at::Tensor y;
    const auto work = [&] {
      y = x.mul(2);
      y.add_(1);
      y = y.t().relu();
    };
    EXPECT_EQ(queued_by(work), 3);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 4}));
    EXPECT_TRUE(y.cpu().equal((x.cpu() * 2 + 1).t()));
    EXPECT_NE(y.const_data_ptr(), nullptr);
  }
}

TEST(LazyMode, TheExampleOfThePage) {
  const auto x = ramp(), w = ramp();
  const auto work = [&] {
    // clang-format off
set_lazy_mode(true);                            // this thread
at::Tensor y = x.mm(w).relu();                  // at once, where neither ran before; later it is queued
mark_step();                                    // what is queued runs, and the program continues
const auto sum = y.sum().item<float>();         // waits
set_lazy_mode(false);
    // clang-format on
    return sum;
  };
  const auto expected = x.cpu().mm(w.cpu()).relu().sum().item<float>();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(work(), expected);
}

TEST(LazyMode, AnAddressThatIsNotThereThrowsByName) {
  const auto x = ramp();
  const In lazy(Mode::lazy);
  at::Tensor y;
  queued_by([&] { y = x.mul(3); });
  EXPECT_REFUSED(y.const_data_ptr(), "[lazy] the call that gives this tensor has not run");
  EXPECT_REFUSED(y.mutable_data_ptr(), "mark_step");
  finish_work();
  EXPECT_NE(y.const_data_ptr(), nullptr);
}

TEST(LazyMode, WhoReadsWaits) {
  const auto x = ramp();
  const std::vector<std::function<bool(const at::Tensor&)>> readers = {
      [](const at::Tensor& y) { return y.sum().item<float>() == 240; },
      [](const at::Tensor& y) { return y.cpu()[0][1].item<float>() == 2; },
      [](const at::Tensor& y) { return cpu_alias(y)[0][1].item<float>() == 2; },
      [](const at::Tensor& y) { return y.equal(y.clone()); },
      [](const at::Tensor& y) { return torch::zeros({4, 4}).copy_(y)[0][1].item<float>() == 2; },
      [](const at::Tensor& y) { return y.index({y > 28}).numel() == 1; },
      [](const at::Tensor& y) { return at::nonzero(y).size(0) == 15; },
      [](const at::Tensor& y) { return same_place(y, y) && !same_place(y, y.clone()); },
      [](const at::Tensor& y) { return block_of(y)->bytes == 64; },
  };
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    for (std::size_t i = 0; i < readers.size(); ++i) {
      at::Tensor y;
      EXPECT_EQ(queued_by([&] { y = x.mul(2); }), 1);
      EXPECT_TRUE(readers[i](y)) << i;
    }
  }
}

TEST(LazyMode, AnAsynchronousCopyOfPinnedMemoryWaits) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    const auto x = ramp();
    at::Tensor pinned = torch::full({4, 4}, 3.0F).pin_memory();
    EXPECT_EQ(queued_by([&] { x.add_(1), x.copy_(pinned, /*non_blocking=*/true).add_(1); }), 3);
    pinned = at::Tensor();  // the queue has it
    EXPECT_EQ(x.sum().item<float>(), 64);
    const at::Tensor ordinary = torch::full({4, 4}, 5.0F);
    EXPECT_EQ(queued_by([&] { x.copy_(ordinary, /*non_blocking=*/true); }), 0);
    EXPECT_EQ(x.sum().item<float>(), 80);
  }
}

TEST(LazyMode, AnEventIsReachedAfterTheCallsBeforeIt) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    const auto x = ramp();
    c10::Event before(at::kHPU, c10::EventFlag::BACKEND_DEFAULT), after(at::kHPU, c10::EventFlag::BACKEND_DEFAULT);
    const auto stream = c10::impl::VirtualGuardImpl(at::kHPU).getDefaultStream(at::Device(at::kHPU, 0));
    const auto waits = lazy_counts().waits;
    queued_by([&] { before.record(stream), x.add_(1), after.record(stream); });
    EXPECT_LE(lazy_counts().waits, waits + 1);  // of the first x.add_
    after.synchronize();
    const c10::impl::ExcludeDispatchKeyGuard reads(kHeardKey);
    EXPECT_EQ(static_cast<const float*>(x.const_data_ptr())[0], 2);
    EXPECT_GE(before.elapsedTime(after), 0);
  }
}

TEST(LazyMode, MemoryThatIsThereIsReadAfterItsWrites) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    const auto x = ramp();
    queued_by([&] { x.add_(1); });
    EXPECT_EQ(cpu_alias(x)[0][0].item<float>(), 2);
    queued_by([&] { x.mul_(2); });
    float seen = 0;
    std::thread([&] { seen = (x + 0).cpu()[0][0].item<float>(); }).join();  // its calls do not wait, and see all
    EXPECT_EQ(seen, 8);
  }
}

TEST(LazyMode, AnAliasThatIsHeldSeesWrites) {
  const auto x = ramp();
  const In lazy(Mode::lazy);
  queued_by([&] { x.add_(1); });
  const auto alias = cpu_alias(x);
  EXPECT_EQ(queued_by([&] { x.add_(1); }), 0);
  EXPECT_EQ(alias[0][0].item<float>(), 4);
}

TEST(LazyMode, SizesThatDependOnValuesAreRight) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    for (int i = 0; i < 5; ++i) {
      const auto x = ramp() - 3.0 * i;
      EXPECT_EQ(x.index({x < 0}).numel(), 3 * i);
      EXPECT_EQ(x.masked_select(x < 0).numel(), 3 * i);
      EXPECT_EQ(at::nonzero(x).size(0), 15);
      EXPECT_EQ(x.index({hpu(torch::tensor({0, 2}))}).size(0), 2);
    }
  }
}

TEST(LazyMode, MemoryThatIsReplaced) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    for (int i = 0; i < 3; ++i) {
      auto x = ramp(), y = x.mul(2), z = ramp(2, 2);
      y.resize_({2, 4}), y.add_(1);
      z.set_(y.clone()), z.add_(1);
      x.set_data(z.mul(1));
      at::add_out(y, x, x);
      EXPECT_TRUE(z.cpu().equal(torch::arange(8, torch::kFloat).view({2, 4}) * 2 + 2));
      EXPECT_TRUE(y.cpu().equal(z.cpu() * 2));
      EXPECT_TRUE(x.cpu().equal(z.cpu()));
    }
  }
}

TEST(LazyMode, RandomNumbersComeInTheirOrder) {
  const auto draw = [](Mode mode) {
    const In in(mode);
    const auto x = ramp();
    torch::manual_seed(3);
    at::Tensor sum = torch::zeros({4, 4}).to(at::kHPU);
    for (int i = 0; i < 4; ++i) {
      sum = sum + at::dropout(x, 0.5, true) + torch::rand({4, 4}, x.options()) + hpu(torch::rand({4, 4}));
      sum.add_(at::bernoulli(sum.sigmoid()));
    }
    return sum.cpu();
  };
  const auto eager = draw(Mode::eager);
  for (const Mode mode : kLazyModes) EXPECT_TRUE(test::same_bits(draw(mode), eager));
}

TEST(LazyMode, AnErrorComesWhereSomebodyWaits) {
  const auto table = ramp(), good = hpu(torch::tensor({0, 1})), bad = hpu(torch::tensor({0, 9}));
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    const std::string path = "net.embed";
    at::Tensor y, z;
    const auto work = [&](const at::Tensor& indices) {
      const ModuleScope module(path);
      y = at::gather(table, 0, indices.view({1, 2}));
      z = y + 1;
    };
    queued_by([&] { work(good); });
    finish_work();
    const auto held = z;
    EXPECT_NO_THROW(work(bad));
    EXPECT_REFUSED(finish_work(), "index", "aten::gather in module 'net.embed'");
    EXPECT_NO_THROW(finish_work());  // it is told once
    EXPECT_REFUSED(z.cpu(), "[lazy] this tensor has no memory: ");
    EXPECT_REFUSED(z + 1, "aten::gather");
    EXPECT_EQ(held.cpu()[0][1].item<float>(), table.cpu()[1][1].item<float>() + 1);
    work(good);
    EXPECT_TRUE(z.cpu().equal(held.cpu()));
  }
}

TEST(LazyMode, AnotherResultThanPromisedIsAnError) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", "");
  KnownCall known{KnownCall::Way::later};
  known.results.push_back({KnownResult::Kind::made, 0, {2, 2}, {2, 1}, at::kFloat, 16, 0});
  known.lists = {-1}, known.made = 1;
  LazyWork work;
  const auto memory = ramp().storage();
  LazyNode node{op, c10::DispatchKeySet(c10::DispatchKey::HPU), {ramp()}, &known};
  node.made.emplace_back(memory.getWeakStorageImpl());
  work.add(std::move(node), Circumstances::present());
  EXPECT_REFUSED(work.finish(), "sizes [4, 4]", "aten::relu");
}

TEST(LazyMode, OneThreadAtATime) {
  const In lazy(Mode::lazy);
  EXPECT_TRUE(is_lazy_mode());
  EXPECT_TRUE(set_lazy_mode(true));
  std::thread([] {
    EXPECT_FALSE(is_lazy_mode());
    EXPECT_REFUSED(set_lazy_mode(true), "expected one thread");
    EXPECT_REFUSED(HPUGraph().capture_begin(), "another thread than that of lazy mode");
  }).join();
  EXPECT_REFUSED(set_lazy_options({.max_queued = 0}), "max_queued: found 0");
}

TEST(LazyMode, CapturesWorkAsInEager) {
  for (const Mode mode : kLazyModes) {
    const In lazy(mode);
    const auto x = ramp();
    queued_by([&] { x.add_(1); });
    HPUGraph graph;
    at::Tensor y;
    {
      const GraphCapture capture(graph);
      y = x.mul(2).add_(1);
      EXPECT_REFUSED(set_lazy_mode(false), "a capture that has not ended");
    }
    EXPECT_TRUE(is_lazy_mode());
    EXPECT_EQ(graph.nodes(), 2U);
    EXPECT_EQ(y.cpu()[0][0].item<float>(), 5);
    EXPECT_GT(queued_by([&] { x.add_(1); }), 0);
    graph.replay();
    EXPECT_EQ(y.cpu()[0][0].item<float>(), 9);
  }
}

/// Of all operators of ours that have a kernel of the device, as the text of their schemas says.
TEST(LazyMode, HowOurOperatorsAreHeardIsInTheirSchemas) {
  using Way = HeardOp::Way;
  std::map<Way, std::set<std::string>> found;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    const bool ours = name.name.starts_with("hpu::") || name.name.starts_with("fp8::");
    if (!ours || !op.has_value()) continue;
    const std::string text = c10::str(op->schema()), results = text.substr(text.rfind(" -> ") + 4);
    const auto has = [](const std::string& in, const char* what) { return std::regex_search(in, std::regex(what)); };
    const bool lists = has(text, R"([(, ]Tensor(\([a-z]!?\))?\[\] )"),
               writes_lists = has(text, R"(Tensor\([a-z]!\)\[\] )");
    const bool fresh = has(results, R"(^\(?Tensor(\[\])?(, Tensor(\[\])?)*\)?$)");
    const bool calls_others = op->hasKernelForDispatchKey(c10::DispatchKey::AutogradHPU);
    const Way expected = is_composite(*op)                 ? Way::inside
                         : results == "()"                 ? (writes_lists ? Way::step : Way::now)
                         : lists && fresh && !calls_others ? Way::learns
                                                           : Way::now;
    const Way way = HeardOp(*op).way;
    EXPECT_EQ(static_cast<int>(way), static_cast<int>(expected)) << text;
    found[way].insert(name.name);
  }
  EXPECT_EQ(found[Way::learns], (std::set<std::string>{"hpu::fused_clip_norm", "hpu::fused_norm",
                                                       "hpu::mixture_of_experts", "hpu::optimizer_lamb_fused_norm"}));
  EXPECT_GE(found[Way::step].size(), 16U);
  EXPECT_GE(found[Way::now].size(), 50U);
  EXPECT_EQ(found.size(), 4U);  // none looks or is random
}

TEST(LazyMode, TheQueueGoesWhenItIsLong) {
  const In lazy(Mode::lazy);
  set_lazy_options({.max_queued = 4, .worker = false});
  const auto x = ramp();
  queued_by([&] { x.add_(1); });
  const auto waits = lazy_counts().waits;
  for (int i = 0; i < 40; ++i) x.add_(1);
  EXPECT_EQ(lazy_counts().waits, waits);
  EXPECT_EQ(x.cpu()[0][0].item<float>(), 42);
}

TEST(LazyMode, GraphsAreCountedAsInEager) {
  const auto count = [](Mode mode) {
    const In in(mode);
    GraphCounter counter;
    const auto x = ramp();
    std::vector<std::string> lines;
    for (int i = 0; i < 6; ++i) {
      const std::string path = "fc";
      const ModuleScope module(path);
      auto y = x.slice(0, 0, 2 + i % 3).mul(2).relu();
      if (i == 4) (void)y.sum().item<float>();
      mark_step(true);
    }
    const auto counts = counter.counts();
    for (const auto& graph : counts.fresh) lines.push_back(graph.line());
    for (const auto& read : counts.host_read_lines()) lines.push_back(read);
    lines.push_back(std::to_string(counts.compiled) + " " + std::to_string(counts.reused));
    return lines;
  };
  const auto eager = count(Mode::eager);
  EXPECT_EQ(eager.back(), "4 2");
  for (const Mode mode : kLazyModes) EXPECT_EQ(count(mode), eager);
}

TEST(LazyMode, NoMoreMemoryThanEager) {
  const auto x = hpu(torch::rand({64, 1024}));
  const auto peak = [&](Mode mode) {
    const In in(mode);
    std::int64_t most = 0;
    for (int i = 0; i < 2; ++i) {
      finish_work();
      reset_peak_memory_stats();
      const auto before = memory_allocated();
      at::Tensor y = x;
      for (int j = 0; j < 20; ++j) y = y.sigmoid() * 2;
      (void)y.sum().item<float>();
      most = max_memory_allocated() - before;
    }
    return most;
  };
  const auto eager = peak(Mode::eager);
  for (const Mode mode : kLazyModes) EXPECT_LE(peak(mode), eager + eager / 20);
}

TEST(LazyMode, ViewsAndSavedResults) {
  const auto train = [](Mode mode) {
    const In in(mode);
    auto w = hpu(torch::linspace(-1, 1, 16).view({4, 4})).requires_grad_(true);
    for (int i = 0; i < 4; ++i) {
      const auto y = w.mm(w.t()).view({2, 8}).sigmoid().exp().softmax(1);
      (y.chunk(2, 1)[0] * y.chunk(2, 1)[1]).sum().backward();
      const at::NoGradGuard no_grad;
      w.sub_(w.grad(), 0.5), w.grad().zero_();
    }
    return w.detach().cpu();
  };
  const auto eager = train(Mode::eager);
  for (const Mode mode : kLazyModes) EXPECT_TRUE(test::same_bits(train(mode), eager));
}

TEST(LazyMode, AChildProcessGoesOnByItself) {
  const In lazy(Mode::worker);
  const auto x = ramp();
  queued_by([&] { x.add_(1); });
  submit_work();
  const auto child = fork();
  if (child == 0) {
    for (int i = 0; i < 3; ++i) {  // each finds a worker that sleeps
      x.add_(1);
      submit_work();
      usleep(20000);
    }
    _exit(x.cpu()[0][0].item<float>() == 5 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(x.cpu()[0][0].item<float>(), 2);
}

TEST(LazyMode, OfTheHostNothingIsQueued) {
  const In lazy(Mode::lazy);
  EXPECT_EQ(queued_by([] { (void)(torch::ones(3) * 2).sum().item<float>(); }), 0);
}

TEST(LazyMode, NumbersOfTheHostAreThoseOfTheCall) {
  const In lazy(Mode::lazy);
  const auto x = ramp();
  at::Tensor number = torch::tensor(1.0), y;
  queued_by([&] { y = x + number; });
  number.fill_(7);
  EXPECT_EQ(y.cpu()[0][0].item<float>(), 1);
}

// Generated programs, each in eager mode, captured and replayed, and in lazy mode: equal bits.

constexpr int kPrograms = 60, kCalls = 24;

/// A program: tensors [4, 6], or views of such, come out of each call.
class Program {
 public:
  explicit Program(unsigned seed) {
    std::mt19937 random(seed);
    const auto next = [](std::mt19937& r) { return static_cast<unsigned>(r()); };
    for (int i = 0; i < kCalls; ++i) calls_.push_back({next(random), next(random), next(random)});
  }

  /// inputs: two of [4, 6]; they may be written.
  Tensors operator()(const Tensors& inputs) const {
    Tensors pool = inputs;
    for (const Call& call : calls_) {
      const at::Tensor a = pool[call.a % pool.size()], b = pool[call.b % pool.size()];
      pool.push_back(step(call.what, a, b));
    }
    return pool;
  }

 private:
  struct Call {
    unsigned what, a, b;
  };

  static at::Tensor step(unsigned what, const at::Tensor& a, const at::Tensor& b) {
    switch (what % 26) {
      case 0: return a + b;
      case 1: return (a * b).tanh();
      case 2: return a.mm(b.t()).tanh().mm(b) * 0.125;
      case 3: return a.t().contiguous().view({4, 6});
      case 4: return a.relu() - 0.25;
      case 5: return at::Tensor(a).add_(0.5);
      case 6: return at::Tensor(a).mul_(b).tanh_();
      case 7: return a.slice(0, 0, 2).add_(1), a;
      case 8: return at::cat({a.slice(1, 0, 3), b.slice(1, 3, 6)}, 1);
      case 9: return at::where(a > b, a, b * 0.5);
      case 10: return a.softmax(1);
      case 11: return a + b.sum(0, true);
      case 12: return a.index_select(0, hpu(torch::tensor({3, 1, 0, 2})));
      case 13: return a.masked_fill(b > 0.5, -1);
      case 14: return a.clone().copy_(b.slice(0, 0, 1));
      case 15: return at::dropout(a, 0.25, true);
      case 16: return at::add_out(const_cast<at::Tensor&>(b), a, b).tanh_();
      case 17: return a.expand({4, 6}).select(0, 1).fill_(0.125), a;
      case 18: return a.to(at::kBFloat16).to(at::kFloat);
      case 19: return at::layer_norm(a, {6});
      case 20: return std::get<0>(a.sort(1, false));
      case 21: return torch::rand({4, 6}, a.options()) + a;
      case 22: return std::get<0>(a.max(0)).unsqueeze(0) * b.sigmoid();
      case 23: return at::stack(a.unbind(0), 0).clamp(-2, 2);
      case 24: return (a + torch::full({}, 0.5, a.options())).cumsum(0) * 0.25;
      default: return a.narrow(0, 1, 3).copy_(b.narrow(0, 0, 3).clone()), a;
    }
  }

  std::vector<Call> calls_;
};

Tensors inputs_of(unsigned seed) {
  torch::manual_seed(seed);
  return {hpu(torch::randn({4, 6})), hpu(torch::randn({4, 6}))};
}

Tensors on_host(const Tensors& tensors) {
  Tensors all;
  for (const auto& t : tensors) all.push_back(t.cpu());
  all.push_back(torch::rand(2));  // the random numbers after it
  return all;
}

void expect_same(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(test::same_bits(found[i], expected[i])) << "tensor " << i;
}

TEST(LazyPrograms, GiveTheBitsOfEager) {
  for (unsigned seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Program program(seed);
    const auto expected = on_host(program(inputs_of(seed)));
    for (const Mode mode : {Mode::lazy, Mode::worker}) {
      const In lazy(mode);
      for (int run = 0; run < 3; ++run) expect_same(on_host(program(inputs_of(seed))), expected);
    }
  }
}

TEST(LazyPrograms, AreReplayedToTheBitsOfEager) {
  for (unsigned seed = 0; seed < kPrograms; ++seed) {
    SCOPED_TRACE(seed);
    const Program program(seed);
    const auto expected = on_host(program(inputs_of(seed)));
    const auto inputs = inputs_of(seed);
    HPUGraph graph;
    Tensors results;
    {
      const GraphCapture capture(graph);
      results = program(inputs);
    }
    expect_same(on_host(results), expected);
    const auto again = inputs_of(seed);
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i].copy_(again[i]);
    graph.replay();
    expect_same(on_host(results), expected);
  }
}

TEST(LazyPrograms, MostOfTheirCallsWait) {
  const In lazy(Mode::lazy);
  std::int64_t queued = 0;
  for (unsigned seed = 0; seed < kPrograms; ++seed)
    queued += test::queued_by([&] { (void)Program(seed)(inputs_of(seed)); });
  EXPECT_GT(queued, kPrograms * kCalls);
}

}  // namespace
}  // namespace fp8::runtime
