// SPDX-License-Identifier: Apache-2.0
// Every collective on hpu tensors beside the same on CPU tensors, which is Gloo's own: results bit for bit, refusals
// word for word. What asynchronous calls hold, and what they may be left with.
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "fp8/runtime/fp8_tensor/cast.h"
#include "support/hpu_test.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using Tensors = std::vector<at::Tensor>;
using Group = c10d::ProcessGroup;

c10::intrusive_ptr<Group> rank_c10d() { return make_group(test::rank_options()); }

/// The input of one rank: made on the CPU, equal for both devices.
struct Place {
  Group& group;
  at::Device device;
  at::ScalarType dtype;

  int rank() const { return group.getRank(); }
  int size() const { return group.getSize(); }
  /// {rows, 3} of small integers that differ from rank to rank and from salt to salt.
  at::Tensor make(int salt, std::int64_t rows = 2) const {
    const at::Tensor t = (torch::arange(rows * 3) * 7 + 5 * rank() + 11 * salt).remainder(13).view({rows, 3});
    if (c10::isFloat8Type(dtype)) return (t + 16).to(at::kByte).view(dtype).to(device);
    return t.to(dtype).to(device);
  }
  at::Tensor zeros(std::int64_t rows = 2) const {
    const at::Tensor t = torch::zeros({rows, 3}, c10::isFloat8Type(dtype) ? at::kByte : dtype);
    return (c10::isFloat8Type(dtype) ? t.view(dtype) : t).to(device);
  }
  Tensors many(int count) const {
    Tensors list;
    for (int i = 0; i < count; ++i) list.push_back(zeros());
    return list;
  }
  Tensors made(int count) const {
    Tensors list;
    for (int i = 0; i < count; ++i) list.push_back(make(i));
    return list;
  }
};

c10d::AllreduceOptions reducing(c10d::ReduceOp::RedOpType op) {
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return options;
}

Tensors allreduce(const Place& p, c10d::ReduceOp::RedOpType op) {
  Tensors t = {p.make(1)};
  p.group.allreduce(t, reducing(op))->wait();
  return t;
}

Tensors reduce_scatter(const Place& p, c10d::ReduceOp::RedOpType op) {
  at::Tensor out = p.zeros(), in = p.make(0, 2 * p.size());
  c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  p.group.reduce_scatter_single(out, in, options)->wait();
  return {out};
}

struct Case {
  const char* name;
  bool reduces;
  std::function<Tensors(const Place&)> run;
};

const std::vector<Case>& cases() {
  using Op = c10d::ReduceOp;
  static const std::vector<Case> all = [] {
    std::vector<Case> list;
    const auto add = [&](const char* name, bool reduces, const std::function<Tensors(const Place&)>& run) {
      list.push_back({name, reduces, run});
    };
    add("broadcast", false, [](const Place& p) {
      Tensors t = {p.make(0)};
      c10d::BroadcastOptions options;
      options.rootRank = p.size() - 1;
      p.group.broadcast(t, options)->wait();
      return t;
    });
    add("allreduce sum", true, [](const Place& p) { return allreduce(p, Op::SUM); });
    add("allreduce avg", true, [](const Place& p) { return allreduce(p, Op::AVG); });
    add("allreduce min", true, [](const Place& p) { return allreduce(p, Op::MIN); });
    add("allreduce max", true, [](const Place& p) { return allreduce(p, Op::MAX); });
    add("allreduce_coalesced", true, [](const Place& p) {
      Tensors t = {p.make(0), p.make(1, 5)};
      p.group.allreduce_coalesced(t)->wait();
      return t;
    });
    add("reduce", true, [](const Place& p) {
      Tensors t = {p.make(0)};
      p.group.reduce(t)->wait();
      return p.rank() == 0 ? t : Tensors();  // elsewhere Gloo leaves what it likes
    });
    add("allgather", false, [](const Place& p) {
      std::vector<Tensors> out = {p.many(p.size())};
      Tensors in = {p.make(0)};
      p.group.allgather(out, in)->wait();
      return out[0];
    });
    add("all_gather_single", false, [](const Place& p) {
      at::Tensor out = p.zeros(2 * p.size()), in = p.make(0);
      p.group.all_gather_single(out, in)->wait();
      return Tensors{out};
    });
    add("allgather_coalesced", false, [](const Place& p) {
      std::vector<Tensors> out;
      for (int r = 0; r < p.size(); ++r) out.push_back({p.zeros(), p.zeros(4)});
      Tensors in = {p.make(0), p.make(1, 4)}, flat;
      p.group.allgather_coalesced(out, in)->wait();
      for (const Tensors& list : out) flat.insert(flat.end(), list.begin(), list.end());
      return flat;
    });
    add("all_gather_single_coalesced", false, [](const Place& p) {
      Tensors out = {p.zeros(2 * p.size()), p.zeros(4 * p.size())}, in = {p.make(0), p.make(1, 4)};
      p.group.all_gather_single_coalesced(out, in)->wait();
      return out;
    });
    add("gather", false, [](const Place& p) {
      std::vector<Tensors> out;
      if (p.rank() == 0) out.push_back(p.many(p.size()));
      Tensors in = {p.make(0)};
      p.group.gather(out, in)->wait();
      return p.rank() == 0 ? out[0] : Tensors();
    });
    add("scatter", false, [](const Place& p) {
      Tensors out = {p.zeros()};
      std::vector<Tensors> in;
      if (p.rank() == 0) in.push_back(p.made(p.size()));
      p.group.scatter(out, in)->wait();
      return out;
    });
    add("reduce_scatter", true, [](const Place& p) {
      Tensors out = {p.zeros()};
      std::vector<Tensors> in = {p.made(p.size())};
      p.group.reduce_scatter(out, in)->wait();
      return out;
    });
    add("reduce_scatter_single", true, [](const Place& p) { return reduce_scatter(p, Op::SUM); });
    add("reduce_scatter_single avg", true, [](const Place& p) { return reduce_scatter(p, Op::AVG); });
    add("reduce_scatter_single min", true, [](const Place& p) { return reduce_scatter(p, Op::MIN); });
    add("reduce_scatter_single max", true, [](const Place& p) { return reduce_scatter(p, Op::MAX); });
    add("reduce_scatter_single_coalesced", true, [](const Place& p) {
      Tensors out = {p.zeros()}, in = {p.make(0, 2 * p.size())};
      p.group.reduce_scatter_single_coalesced(out, in)->wait();
      return out;
    });
    add("all_to_all_single", false, [](const Place& p) {
      at::Tensor out = p.zeros(p.size()), in = p.make(0, p.size());
      std::vector<std::int64_t> even;
      p.group.all_to_all_single(out, in, even, even)->wait();
      return Tensors{out};
    });
    add("alltoall", false, [](const Place& p) {
      Tensors out = p.many(p.size()), in = p.made(p.size());
      p.group.alltoall(out, in)->wait();
      return out;
    });
    add("send and recv", false, [](const Place& p) {
      Tensors out = {p.zeros()}, in = {p.make(0)};
      const auto sent = p.group.send(in, (p.rank() + 1) % p.size(), 3);
      p.group.recv(out, (p.rank() + p.size() - 1) % p.size(), 3)->wait();
      sent->wait();
      return out;
    });
    add("send and recv_any", false, [](const Place& p) {
      Tensors out = {p.zeros()}, in = {p.make(0)};
      if (p.rank() == 1) p.group.send(in, 0, 4)->wait();
      if (p.rank() == 0) {
        const auto work = p.group.recvAnysource(out, 4);
        work->wait();
        EXPECT_EQ(work->sourceRank(), 1);
      }
      return out;
    });
    add("barrier", false, [](const Place& p) {
      p.group.barrier()->wait();
      p.group.monitoredBarrier({});
      return Tensors();
    });
    return list;
  }();
  return all;
}

/// As many ranks as one likes, all of which bring what this one does: c10d's own FakeProcessGroup.hpp needs Python.
class EqualRanks final : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions&) override {
    for (const at::Tensor& t : outputs.at(0)) t.copy_(inputs.at(0));
    return done(outputs[0]);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions&) override {
    output.copy_(input.expand_as(output));
    return done({output});
  }

 private:
  static c10::intrusive_ptr<c10d::Work> done(const Tensors& results) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(results);
    return c10d::Work::create_from_future(future);
  }
};

/// Notes where the tensors lie that come to it.
class Addresses final : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return note(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return note(tensors);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions&) override {
    note(inputs);
    return note(outputs.at(0));
  }
  std::vector<const void*> found;

 private:
  c10::intrusive_ptr<c10d::Work> note(const Tensors& tensors) {
    for (const at::Tensor& t : tensors) {
      EXPECT_TRUE(t.is_cpu());
      found.push_back(t.const_data_ptr());
    }
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(tensors);
    return c10d::Work::create_from_future(future);
  }
};

/// The results, or what was said instead.
std::pair<Tensors, std::string> outcome(const Case& c, const Place& place) {
  try {
    return {c.run(place), ""};
  } catch (const c10::Error& error) {
    return {{}, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

// ---- what ranks run

FP8_TEST_RANKS(Collectives, AsOnTheCpuBitForBit, 2, 3) {
  const auto group = rank_c10d();
  for (const auto dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kChar, at::kByte, at::kBool})
    for (const Case& c : cases()) {
      if (c.reduces && dtype == at::kBool) continue;  // Gloo adds the bytes: 2 is no bool to compare
      SCOPED_TRACE(std::string(c.name) + " of " + c10::toString(dtype));
      const auto [cpu, refused] = outcome(c, {*group, at::kCPU, dtype});
      const auto [hpu, refused_too] = outcome(c, {*group, test::kHpu, dtype});
      EXPECT_EQ(refused_too, refused);
      ASSERT_EQ(hpu.size(), cpu.size());
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        EXPECT_TRUE(hpu[i].is_hpu());
        EXPECT_TRUE(same_bits(hpu[i], cpu[i]));
      }
    }
}

/// Of a size that ranks read from each other's memory (peer_memory.h): beside the same in pieces that are Gloo's, whose
/// sums of integers that a dtype holds have one value in any order.
FP8_TEST_RANKS(Collectives, OfPeersAsInSmallPieces, 2, 3) {
  using Op = c10d::ReduceOp;
  const auto group = rank_c10d();
  const int n = group->getSize(), rank = group->getRank();
  constexpr std::int64_t kCount = 150'001;  // no multiple of the ranks
  const auto values = [&](int r, std::int64_t count) {
    return (torch::arange(count) * 7 + 5 * r).remainder(31).sub(15);  // small enough for sums in any dtype
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const bool gaps : {false, true}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + (gaps ? " with gaps" : ""));
      const auto place = [&](const at::Tensor& t) {  // every second element of its memory
        const at::Tensor dense = t.to(dtype).to(test::kHpu);
        return gaps ? torch::stack({dense, dense}, 1).select(1, 0) : dense;
      };
      std::vector<at::Tensor> of_all;
      for (int r = 0; r < n; ++r) of_all.push_back(values(r, kCount * n).to(at::kFloat));
      const at::Tensor all = torch::stack(of_all);
      for (const auto op : {Op::SUM, Op::AVG, Op::MIN, Op::MAX}) {
        const at::Tensor sum = op == Op::MIN   ? std::get<0>(all.min(0))
                               : op == Op::MAX ? std::get<0>(all.max(0))
                                               : all.sum(0);
        const at::Tensor reduced = op == Op::AVG ? sum.to(dtype).div(n) : sum.to(dtype);
        c10d::ReduceScatterOptions options;
        options.reduceOp = op;
        at::Tensor out = place(torch::zeros({kCount})), in = place(values(rank, kCount * n));
        group->reduce_scatter_single(out, in, options)->wait();
        EXPECT_TRUE(same_bits(out.cpu().contiguous(), reduced.narrow(0, rank * kCount, kCount).contiguous()));
        if (gaps) continue;  // Gloo takes none with gaps
        Tensors whole = {place(values(rank, kCount * n))};
        group->allreduce(whole, reducing(op))->wait();
        EXPECT_TRUE(same_bits(whole[0].cpu(), reduced));
      }
      if (gaps) continue;
      at::Tensor out = place(torch::zeros({kCount * n})), in = place(values(rank, kCount));
      group->all_gather_single(out, in)->wait();
      for (int r = 0; r < n; ++r)
        EXPECT_TRUE(same_bits(out.narrow(0, r * kCount, kCount).cpu(), values(r, kCount).to(dtype)));
      // In place, as FSDP gathers and scatters.
      at::Tensor part = out.narrow(0, rank * kCount, kCount);
      out.add_(rank);
      group->all_gather_single(out, part)->wait();
      for (int r = 0; r < n; ++r)
        EXPECT_TRUE(same_bits(out.narrow(0, r * kCount, kCount).cpu(), values(r, kCount).add(r).to(dtype)));
      group->reduce_scatter_single(part, out)->wait();
      EXPECT_TRUE(same_bits(part.cpu(), values(rank, kCount).add(rank).mul(n).to(dtype)));
    }
}

FP8_TEST_RANKS(Collectives, OfPeersOfDifferentSizesAreAnError, 2) {
  const auto group = rank_c10d();
  Tensors t = {torch::ones({100'000 + group->getRank()}, on_hpu())};
  EXPECT_REFUSED(group->allreduce(t)->wait(), "rank 1 came with 400004 bytes, rank 0 with 400000");
}

TEST(PeerRanks, DISABLED_OneDies) {
  FP8_RANK_ONLY();
  const auto group = rank_c10d();
  Tensors t = {torch::ones({1 << 20}, on_hpu())};
  group->allreduce(t)->wait();
  if (group->getRank() == 1) raise(SIGKILL);
  EXPECT_REFUSED(group->allreduce(t)->wait(), "onnection");  // reset or closed, as in any collective
}
TEST(Collectives, APeerThatDiesIsAnErrorOnTheOther) {
  EXPECT_EQ(test::run_ranks("PeerRanks.DISABLED_OneDies", 2), (std::vector<int>{0, 128 + SIGKILL}));
}

FP8_TEST_RANKS(Collectives, CodesTravelAsBytesAndAreNotSummed, 2) {
  const auto group = rank_c10d();
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2})
    for (const Case& c : cases()) {
      SCOPED_TRACE(std::string(c.name) + " of " + c10::toString(dtype));
      if (c.reduces) {
        EXPECT_REFUSED(c.run({*group, test::kHpu, dtype}), "c10d::", c10::toString(dtype), "allowed: Float, BFloat16");
        continue;
      }
      const auto [bytes, refused] = outcome(c, {*group, at::kCPU, at::kByte});
      const auto [codes, refused_too] = outcome(c, {*group, test::kHpu, dtype});
      EXPECT_EQ(refused_too, refused);
      ASSERT_EQ(codes.size(), bytes.size());
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        EXPECT_EQ(codes[i].scalar_type(), dtype);
        const at::Tensor sent = codes[i].view(at::kByte).cpu(), base = bytes[i];
        EXPECT_TRUE(torch::equal(sent, torch::where(sent == 0, base, base + 16)));  // as Place::make() made them
      }
    }
  at::Tensor weight = torch::ones({2, 3}, on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  Tensors lone = {weight};
  EXPECT_REFUSED(group->broadcast(lone), "c10d::broadcast_", "module 'proj'");
  at::Tensor wide = torch::zeros({2 * group->getSize(), 3}, on_hpu(at::kFloat8_e5m2)),
             other = torch::zeros({2, 3}, on_hpu(at::kFloat8_e4m3fn));
  EXPECT_REFUSED(group->all_gather_single(wide, other), "e4m3", "e5m2", "codes of one format");
  wide = wide.view(at::kByte);
  EXPECT_REFUSED(group->all_gather_single(wide, other), "e4m3", "Byte", "codes of one format");
}

FP8_TEST_RANKS(Collectives, AsynchronousCallsHoldTheirTensors, 2, 4) {
  const auto group = rank_c10d();
  const int n = group->getSize();
  for (int i = 0; i < 200; ++i) {  // dropped, all of it, on its way
    Tensors t = {torch::full({1000 + i}, 1.0, on_hpu())};
    group->allreduce(t);
  }
  Tensors t = {torch::full({5}, 1.0, on_hpu())};
  const auto version = t[0]._version();
  const auto work = group->allreduce(t);
  const auto future = work->getFuture();
  future->wait();
  const at::Tensor value = future->value().toTensorVector().at(0);
  EXPECT_TRUE(value.is_same(t[0]));
  EXPECT_GT(t[0]._version(), version);
  EXPECT_TRUE(same_bits(t[0], torch::full({5}, static_cast<double>(n), on_hpu())));
  EXPECT_TRUE(work->wait());
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->result().at(0).is_same(t[0]));
  std::vector<Tensors> out = {{torch::zeros({2}, on_hpu())}};
  for (int r = 1; r < n; ++r) out[0].push_back(torch::zeros({2}, on_hpu()));
  Tensors in = {torch::ones({2}, on_hpu())};
  const auto gathered = group->allgather(out, in)->getFuture();
  gathered->wait();
  EXPECT_TRUE(gathered->value().toTensorVector().at(1).is_same(out[0][1]));
  {
    Tensors last = {torch::ones({1 << 16}, on_hpu())};
    group->allreduce(last);
  }  // the group goes with work in flight
}

/// A cast that was kept must not outlive the values that a message replaces.
FP8_TEST_RANKS(Collectives, EndKeptCasts, 2) {
  const auto group = rank_c10d();
  at::Tensor x = torch::full({4, 4}, group->getRank() == 0 ? 1.0 : 2.0, on_hpu());
  const CastSpec spec;
  cast_once(x, x, spec);
  Tensors t = {x};
  group->broadcast(t)->wait();
  const at::Tensor ones = torch::ones({4, 4}, on_hpu());
  EXPECT_TRUE(same_bits(cast_once(x, x, spec).codes, cast_once(ones, ones, spec).codes));
}

// ---- the cases

TEST(Collectives, OperatorsOfHcclOnly) {
  const auto group = make_group({});
  Tensors t = {torch::ones({2}, on_hpu())};
  for (const auto& [op, name] : {std::pair{c10d::ReduceOp::PRODUCT, "PRODUCT"},
                                 {c10d::ReduceOp::BAND, "BAND"},
                                 {c10d::ReduceOp::BOR, "BOR"},
                                 {c10d::ReduceOp::BXOR, "BXOR"}})
    EXPECT_REFUSED(group->allreduce(t, reducing(op)), std::string("Unsupported ReduceOp ") + name,
                   "Supported ops in HCCL are: sum, min, max");
}

TEST(Collectives, TheBackendGetsTheTensorsOwnMemory) {
  auto group = c10::make_intrusive<Group>(c10::intrusive_ptr<c10d::Store>(), 0, 2);
  const auto backend = c10::make_intrusive<Addresses>(0, 2);
  group->setDefaultBackend(Group::BackendType::CUSTOM);
  for (const auto device : {at::kCPU, at::kHPU}) group->setBackend(device, Group::BackendType::CUSTOM, backend);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn}) {
    const at::Tensor whole = torch::zeros({3, 8}, on_hpu(dtype));
    Tensors t = {whole[1]};  // not at the beginning of its storage
    std::vector<Tensors> out = {{whole[0], whole[2]}};
    backend->found.clear();
    group->broadcast(t)->wait();
    group->allgather(out, t)->wait();
    std::vector<const void*> expected;
    for (const at::Tensor& own : {t[0], t[0], out[0][0], out[0][1]})
      expected.push_back(cpu_alias(own).const_data_ptr());
    if (!c10::isFloat8Type(dtype)) {
      group->allreduce(t)->wait();
      expected.push_back(cpu_alias(t[0]).const_data_ptr());
    }
    EXPECT_EQ(backend->found, expected);
  }
}

TEST(Collectives, ShapesOfManyRanks) {
  constexpr int kRanks = 1024;
  const auto store = c10::intrusive_ptr<c10d::Store>();
  auto group = c10::make_intrusive<Group>(store, 3, kRanks);
  const auto fake = c10::make_intrusive<EqualRanks>(3, kRanks);
  group->setDefaultBackend(Group::BackendType::CUSTOM);
  for (const auto device : {at::kCPU, at::kHPU}) group->setBackend(device, Group::BackendType::CUSTOM, fake);
  std::vector<Tensors> out(1);
  for (int r = 0; r < kRanks; ++r) out[0].push_back(torch::zeros({3}, on_hpu(at::kBFloat16)));
  Tensors in = {torch::arange(3, on_hpu(at::kBFloat16))};
  group->allgather(out, in)->wait();
  EXPECT_TRUE(same_bits(out[0][kRanks - 1], in[0]));
  at::Tensor wide = torch::zeros({kRanks, 3}, on_hpu());
  at::Tensor row = torch::arange(3, on_hpu()).to(at::kFloat).view({1, 3});
  group->all_gather_single(wide, row)->wait();
  EXPECT_TRUE(same_bits(wide, row.expand({kRanks, 3}).contiguous()));
}

}  // namespace
}  // namespace fp8::runtime::distributed
