// SPDX-License-Identifier: Apache-2.0
// Two and three processes: what they exchange, and that one that dies, differs or does not come is an error on the
// others.
#include "fp8/runtime/distributed/gloo_group.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/hpu_test.h"
#include "support/ports.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::all_pass;
using test::free_port;
using test::run_ranks;
using testing::ContainsRegex;

constexpr char kSecret[] = "0123456789abcdef", kWho[] = "FP8_TEST_WHO";

GroupOptions by_address() {
  GroupOptions options = test::rank_options();
  options.file.clear();
  return options;
}

// ---- what ranks run

FP8_TEST_RANKS(GlooGroup, LargestFloatOrNaN, 2) {
  const auto group = test::rank_group();
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN(),
              tiny = std::numeric_limits<float>::denorm_min();
  const bool first = group->rank() == 0;
  std::vector<float> v = first ? std::vector<float>{1, 5, nan, inf, 0, -3, tiny, -0.0f, inf}
                               : std::vector<float>{2, 4, inf, nan, -0.0f, -2, 0, -tiny, 3};
  group->all_reduce_max(v.data(), v.size());
  EXPECT_EQ(v[0], 2);
  EXPECT_EQ(v[1], 5);
  EXPECT_TRUE(std::isnan(v[2]));
  EXPECT_TRUE(std::isnan(v[3]));
  EXPECT_EQ(v[4], 0);
  EXPECT_EQ(v[5], -2);
  EXPECT_EQ(v[6], tiny);
  EXPECT_EQ(v[7], 0);
  EXPECT_EQ(v[8], inf);
  group->all_reduce_max(v.data(), 0);
  group->barrier();
}

FP8_TEST_RANKS(GlooGroup, ReducesAndBroadcastsTensors, 2, 3) {
  const auto group = test::rank_group();
  const int n = group->size(), r = group->rank();
  for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kHPU, 0)}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
      const at::Tensor ramp = torch::arange(12, at::kFloat).view({3, 4});
      const auto of_rank = [&](int rank) { return (ramp * (rank + 1)).to(dtype).to(device); };
      at::Tensor sum = of_rank(r), most = -of_rank(r), strided = of_rank(r).t();
      group->all_reduce(sum, ReduceOp::sum);
      group->all_reduce(most, ReduceOp::max);
      group->all_reduce(strided, ReduceOp::sum);
      const at::Tensor total = (ramp * (n * (n + 1) / 2)).to(dtype).to(device);  // exact in every dtype
      EXPECT_TRUE(same_bits(sum, total));
      EXPECT_TRUE(torch::equal(most, -of_rank(0)));
      EXPECT_TRUE(same_bits(strided.contiguous(), total.t().contiguous()));
      at::Tensor sent = of_rank(r), part = of_rank(r);
      group->broadcast(sent, n - 1);
      group->broadcast(part.narrow(1, 1, 2), 0);
      EXPECT_TRUE(same_bits(sent, of_rank(n - 1)));
      EXPECT_TRUE(same_bits(part.narrow(1, 1, 2).contiguous(), of_rank(0).narrow(1, 1, 2).contiguous()));
      EXPECT_TRUE(same_bits(part.narrow(1, 0, 1).contiguous(), of_rank(r).narrow(1, 0, 1).contiguous()));
    }
    at::Tensor codes = (torch::arange(8, at::kFloat) + r).to(at::kFloat8_e4m3fn).to(device),
               none = torch::empty({0}, at::device(device));
    group->broadcast(codes, 1);
    EXPECT_TRUE(same_bits(codes.cpu().view(at::kByte),
                          (torch::arange(8, at::kFloat) + 1).to(at::kFloat8_e4m3fn).view(at::kByte)));
    group->all_reduce(none, ReduceOp::sum);
    group->broadcast(none, 0);
  }
  EXPECT_REFUSED(group->all_reduce(torch::zeros({2}, at::kBool), ReduceOp::sum), "all_reduce", "Bool");
  EXPECT_REFUSED(group->broadcast(torch::zeros({2}), 7), "root: found 7");
  at::Tensor weight = torch::ones({2, 2}, test::on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(group->broadcast(weight, 0), "broadcast", "module 'proj'");  // codes without their scale
  group->barrier();  // what was refused before it was sent has not spoilt the group
}

// bf16: 256 + 1 + 1 + ... is 256 when every sum is rounded, exact in f32 and rounded once.
FP8_TEST_RANKS(GlooGroup, SumsOfBf16AreRoundedOnce, 3) {
  const auto group = test::rank_group();
  at::Tensor t = torch::full({100}, group->rank() == 0 ? 256.0 : 1.0, on_hpu(at::kBFloat16));
  group->all_reduce(t, ReduceOp::sum);
  EXPECT_TRUE(same_bits(t, torch::full({100}, 258.0, on_hpu(at::kBFloat16))));  // 256 + 1 + 1
}

using GlooRanks = test::OnlyRanks;

TEST_F(GlooRanks, DISABLED_DifferentCalls) {
  const auto group = test::rank_group();
  const at::Tensor t = torch::zeros({group->rank() == 0 ? 3 : 4});
  EXPECT_REFUSED(group->all_reduce(t, ReduceOp::sum), "rank " + std::to_string(group->rank()) + " of 2",
                 "the ranks make different calls", "of 3 elements", "of 4 elements");
  EXPECT_REFUSED(group->barrier(), "the group failed before", "different calls");
}

TEST_F(GlooRanks, DISABLED_DifferentKindsOfCalls) {
  const auto group = test::rank_group();
  EXPECT_REFUSED(group->rank() == 0 ? group->barrier() : group->broadcast(torch::zeros({1 << 20}), 0),
                 "different calls", "barrier", "broadcast");
}

/// Ranks that were told to end, and wait for each other in different calls, or for one that stands still.
FP8_TEST_RANKS(GlooGroup, RanksThatWaitForEachOtherEndWhenTheyAreTold, 2) {
  auto options = test::rank_options();
  options.agree = false;
  options.stop_asked = [] { return true; };
  const auto start = std::chrono::steady_clock::now();
  options.give_up = [&](const std::string& why) {
    const std::string other = std::to_string(1 - options.rank);
    EXPECT_THAT(
        why,
        AllOf(StartsWith("rank " + std::to_string(options.rank) + " waits in "), HasSubstr(", call 1 of 2 "),
              ContainsRegex(", and rank " + other + " (waits in (all_reduce|broadcast)|has left|does not answer)")));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    _exit(testing::Test::HasFailure() ? 1 : 0);
  };
  const auto group = make_gloo_group(options);
  const at::Tensor values = torch::ones({4});
  try {
    group->rank() == 0 ? group->all_reduce(values, ReduceOp::sum) : group->broadcast(values, 0);
    ADD_FAILURE() << "this call can have no end";
  } catch (const std::exception& error) {  // the other has given up before
    EXPECT_THAT(error.what(), HasSubstr("rank "));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(13));
  }
}

TEST_F(GlooRanks, DISABLED_OneDies) {
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) _exit(3);
  EXPECT_REFUSED(group->all_reduce(torch::zeros({5}), ReduceOp::sum), "rank 0 of 2", "all_reduce sum of 5 elements");
}

TEST_F(GlooRanks, DISABLED_OneIsLate) {
  const auto group = test::rank_group();
  group->barrier();
  if (group->rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    _exit(0);
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_REFUSED(group->barrier(), "rank 0 of 2", "barrier", "imed out");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4));
}

TEST_F(GlooRanks, DISABLED_OneDoesNotCome) {
  GroupOptions options = test::rank_options();
  if (options.rank == 1) return;
  const std::string place = options.file;
  EXPECT_REFUSED(make_gloo_group(options), "[make_group] rank 0 of 2 at " + place);
}

/// Both listen on the loopback alone, Gloo too; rank 0's door closes behind them.
TEST_F(GlooRanks, DISABLED_MeetsByAddress) {
  GroupOptions options = by_address();
  EXPECT_EQ(options.secret, kSecret);
  const auto group = make_gloo_group(options);
  float v = static_cast<float>(group->rank() + 1);
  group->all_reduce_max(&v, 1);
  EXPECT_EQ(v, 2.0f);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!test::listening_at(options.port).empty() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(test::listening_at(options.port).empty());
  group->barrier();
}

TEST_F(GlooRanks, DISABLED_SecretsDiffer) {
  GroupOptions options = by_address();
  const std::string who = std::getenv(kWho);
  const bool first = options.rank == 0;
  if (first ? who != "second" : who != "first") options.secret = kSecret + std::string(first ? "" : "!");
  const std::string other = "rank " + std::to_string(1 - options.rank);
  EXPECT_REFUSED(make_gloo_group(options), options.secret.empty()
                                               ? other + " has FP8_JOB_SECRET, which this one has not"
                                               : other + " has another FP8_JOB_SECRET than this one, or none");
}

/// Until the store takes no more; whether that came.
bool flood(c10d::Store& store, bool many_keys) {
  const std::vector<std::uint8_t> much(many_keys ? 1 : 1 << 20);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  try {
    for (int i = 0; std::chrono::steady_clock::now() < end; ++i) store.set(many_keys ? std::to_string(i) : "x", much);
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

c10::intrusive_ptr<c10d::TCPStore> stranger(const GroupOptions& options) {
  c10d::TCPStoreOptions client;
  client.port = options.port;
  return c10::make_intrusive<c10d::TCPStore>(options.host, client);
}

/// Another program connects instead of rank 1.
TEST_F(GlooRanks, DISABLED_FloodBefore) {
  GroupOptions options = by_address();
  if (options.rank == 1) {
    const NoBrokenPipes for_the_stranger;
    EXPECT_TRUE(flood(*stranger(options), std::string(std::getenv(kWho)) == "keys"));
    return;
  }
  EXPECT_REFUSED(make_gloo_group(options), "rank 0 of 2 at 127.0.0.1:" + std::to_string(options.port),
                 "more has come in than ranks");
}

/// Another program connects before all ranks do; the ranks continue without it.
TEST_F(GlooRanks, DISABLED_FloodAfter) {
  GroupOptions options = by_address();
  const NoBrokenPipes for_the_stranger;
  const auto early = options.rank == 1 ? stranger(options) : nullptr;
  const auto group = make_gloo_group(options);
  EXPECT_TRUE(early == nullptr || flood(*early, false));
  group->barrier();
}

/// Rank 0 stands for a launcher whose store is gone, and continues as a rank.
TEST_F(GlooRanks, DISABLED_LauncherGoes) {
  GroupOptions options = by_address();
  options.launcher_serves = true;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (options.rank == 0) {
    c10d::TCPStoreOptions served;
    served.port = options.port;
    served.isServer = true;
    served.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>(options.host, served);
  }
  const auto group = make_gloo_group(options);
  group->barrier();
  store.reset();
  const auto go_on = [&] {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
         std::chrono::steady_clock::now() < end;)
      group->barrier();
  };
  EXPECT_REFUSED(go_on(), "rank " + std::to_string(options.rank) + " of 2", "the launcher serves it");
}

TEST_F(GlooRanks, DISABLED_AddressInUse) {
  GroupOptions options = by_address();
  if (options.rank == 1) return;
  EXPECT_REFUSED(make_gloo_group(options), "rank 0 of 2 at 127.0.0.1:" + std::to_string(options.port), "in use");
}

// ---- the cases

TEST(GlooGroup, AloneNeedsNoNetwork) {
  const auto group = make_gloo_group({.host = "no.such.host.invalid"});
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  std::vector<float> v = {1, NAN, -2};
  group->all_reduce_max(v.data(), v.size());
  EXPECT_EQ(v[0], 1);
  EXPECT_TRUE(std::isnan(v[1]));
  at::Tensor t = torch::arange(4, on_hpu(at::kFloat)), before = t.clone();
  group->all_reduce(t, ReduceOp::sum);
  group->broadcast(t, 0);
  group->barrier();
  EXPECT_TRUE(same_bits(t, before));
  EXPECT_REFUSED(group->all_reduce(torch::zeros({2}, at::kBool), ReduceOp::sum), "Bool");
  EXPECT_REFUSED(group->broadcast(t, 1), "root: found 1");
}

TEST(GlooGroup, DifferentCallsAreAnErrorOnEveryRank) {
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_DifferentCalls", 2), all_pass(2));
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_DifferentKindsOfCalls", 2), all_pass(2));
}
TEST(GlooGroup, ARankThatDiesIsAnErrorOnTheOther) {
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_OneDies", 2), (std::vector<int>{0, 3}));
}
TEST(GlooGroup, ARankThatIsLateIsAnErrorOnTheOther) {
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_OneIsLate", 2, {{test::kRanksTimeout, "1500"}}), all_pass(2));
}
TEST(GlooGroup, ARankThatDoesNotComeIsAnError) {
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_OneDoesNotCome", 2, {{test::kRanksTimeout, "1000"}}), all_pass(2));
}
TEST(GlooGroup, MeetsByAddress) {
  for (const char* host : {"127.0.0.1", "::1", "localhost"})
    EXPECT_EQ(run_ranks("GlooRanks.DISABLED_MeetsByAddress", 2,
                        {{"MASTER_ADDR", host}, {"MASTER_PORT", free_port()}, {"FP8_JOB_SECRET", kSecret}}),
              all_pass(2))
        << host;
}
TEST(GlooGroup, ALauncherThatIsGoneIsAnErrorOnEveryRank) {
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_LauncherGoes", 2, {{"MASTER_PORT", free_port()}}), all_pass(2));
}
TEST(GlooGroup, ASecretThatSomeHaveIsAnErrorOnEveryRank) {
  for (const char* who : {"first", "second", "other"})
    EXPECT_EQ(run_ranks("GlooRanks.DISABLED_SecretsDiffer", 2, {{"MASTER_PORT", free_port()}, {kWho, who}}),
              all_pass(2))
        << who;
}
TEST(GlooGroup, AFloodIsNamedOrCutOff) {
  for (const char* much : {"bytes", "keys"})
    EXPECT_EQ(run_ranks("GlooRanks.DISABLED_FloodBefore", 2, {{"MASTER_PORT", free_port()}, {kWho, much}}),
              all_pass(2));
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_FloodAfter", 2, {{"MASTER_PORT", free_port()}}), all_pass(2));
}
TEST(GlooGroup, AnAddressInUseIsAnError) {
  const test::Listener listener;
  ASSERT_GT(listener.port, 0);
  EXPECT_EQ(run_ranks("GlooRanks.DISABLED_AddressInUse", 2,
                      {{"MASTER_PORT", std::to_string(listener.port)}, {test::kRanksTimeout, "5000"}}),
            all_pass(2));
}

}  // namespace
}  // namespace fp8::runtime::distributed
