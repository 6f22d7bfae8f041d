// SPDX-License-Identifier: Apache-2.0
// The launchers' variables, each with what is wrong with it.
#include <ifaddrs.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fp8/runtime/distributed/meeting.h"
#include "support/hpu_test.h"
#include "support/launchers.h"
#include "support/ports.h"
#include "support/ranks.h"

namespace fp8::runtime::distributed {
namespace {

using test::Variables;
using Texts = std::set<std::string>;

GroupOptions from(const std::map<std::string, std::string>& variables) {
  const test::LauncherEnvironment environment(variables);
  return group_options_from_environment();
}

TEST(GroupOptions, AloneWithoutVariables) {
  const GroupOptions options = from({});
  EXPECT_EQ(options.rank, 0);
  EXPECT_EQ(options.size, 1);
  EXPECT_EQ(from({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).size, 1);  // one process needs no address
}

TEST(GroupOptions, ReadsRankSizeAndAddress) {
  const GroupOptions options = from(
      {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "node-a"}, {"MASTER_PORT", "2345"}, {"LOCAL_RANK", "1"}});
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.host, "node-a");
  EXPECT_EQ(options.port, 2345);
}

TEST(GroupOptions, RankFromNodeAndLocalRank) {
  const std::map<std::string, std::string> two_nodes = {
      {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}, {"LOCAL_RANK", "1"}};
  auto with = [&](const char* name, const char* value) {
    auto v = two_nodes;
    v[name] = value;
    return from(v).rank;
  };
  EXPECT_EQ(from(two_nodes).rank, 1);
  EXPECT_EQ(with("NODE_RANK", "1"), 3);
  EXPECT_EQ(with("GROUP_RANK", "1"), 3);
  EXPECT_REFUSED(with("NODE_RANK", "2"), "'NODE_RANK': found '2'", "0 to 1");
  EXPECT_REFUSED(with("LOCAL_RANK", "2"), "'LOCAL_RANK': found '2'", "0 to 1");
}

/// mpirun and srun: no process takes itself for the only one.
TEST(GroupOptions, EveryLauncherGivesRankAndSize) {
  for (const auto& [name, variables] : test::launchers(2, 3)) {
    auto v = variables;
    v.erase("OMPI_COMM_WORLD_LOCAL_SIZE");  // several machines
    v.erase("MPI_LOCALNRANKS");
    if (name != "torchrun") {
      EXPECT_TRUE(throws_with({"MASTER_ADDR: found none", " is 3)", "mpirun -x MASTER_ADDR"}, [&] { from(v); }))
          << name;
      v["MASTER_ADDR"] = "node-a";
      EXPECT_REFUSED(from(v), "MASTER_PORT: found none") << name;
      v["MASTER_PORT"] = "29501";
    }
    const GroupOptions options = from(v);
    EXPECT_EQ(options.rank, 2) << name;
    EXPECT_EQ(options.size, 3) << name;
  }
  EXPECT_EQ(from({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);  // the shell of an sbatch script
}

TEST(GroupOptions, PlaceFromTheLauncher) {
  auto srun = test::launchers(1, 4).at("srun");
  srun["SLURM_JOB_ID"] = "1234567";
  srun["SLURM_JOB_NODELIST"] = "n[0-1]";
  GroupOptions options = from(srun);
  EXPECT_EQ(options.host, "n0");
  EXPECT_EQ(options.port, 15000 + 4567);
  EXPECT_EQ(options.said_by, "SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_JOB_NODELIST, SLURM_JOB_ID");
  srun["SLURM_STEP_NODELIST"] = "n1";
  EXPECT_EQ(from(srun).host, "n1");  // a step of some of the job's machines
  srun["MASTER_ADDR"] = "head";
  srun["MASTER_PORT"] = "29501";
  options = from(srun);
  EXPECT_EQ(options.host, "head");
  EXPECT_EQ(options.port, 29501);
  EXPECT_EQ(options.said_by, "SLURM_PROCID, SLURM_STEP_NUM_TASKS, MASTER_ADDR, MASTER_PORT");
  srun.erase("MASTER_ADDR");
  srun["SLURM_STEP_NODELIST"] = "n[0-";
  EXPECT_REFUSED(from(srun), "SLURM_STEP_NODELIST: found 'n[0-'", "n[1-3],m7");

  auto pmi2 = test::launchers(1, 4).at("srun");
  for (const auto& [name, value] : Variables{{"PMI_RANK", "1"},
                                             {"PMI_SIZE", "4"},
                                             {"PMI_FD", "9"},
                                             {"SLURM_JOB_ID", "1234567"},
                                             {"SLURM_STEP_NODELIST", "n[2-3]"}})
    pmi2[name] = value;
  options = from(pmi2);
  EXPECT_EQ(options.host, "n2");
  EXPECT_EQ(options.port, 15000 + 4567);
  EXPECT_EQ(options.said_by, "PMI_RANK, PMI_SIZE, SLURM_STEP_NODELIST, SLURM_JOB_ID");
  pmi2["PMI_SIZE"] = "8";  // mpiexec that srun has started once on each machine: who of the 8 is where, it does not say
  EXPECT_REFUSED(from(pmi2), "MASTER_ADDR: found none");

  auto mpirun = test::launchers(1, 2).at("mpirun");
  mpirun["PMIX_NAMESPACE"] = "2310733825";
  mpirun.erase("OMPI_COMM_WORLD_LOCAL_SIZE");
  EXPECT_REFUSED(from(mpirun), "MASTER_ADDR: found none");  // on which machine is rank 0?
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  options = from(mpirun);
  EXPECT_EQ(options.host, "127.0.0.1");
  EXPECT_EQ(options.port, 15000 + 3825);
  mpirun["PMIX_NAMESPACE"] = "prterun-host-77@1";
  EXPECT_NE(from(mpirun).port, options.port);
  EXPECT_GE(from(mpirun).port, 15000);
  mpirun["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_REFUSED(from(mpirun), "MASTER_ADDR: found none");
}

TEST(GroupOptions, TheAgentServesAndCountsRestarts) {
  auto torchrun = test::launchers(0, 2).at("torchrun");
  torchrun["TORCHELASTIC_RUN_ID"] = "none";
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_TRUE(from(torchrun).launcher_serves);
  EXPECT_EQ(from(torchrun).attempt, 2);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(from(torchrun).launcher_serves);
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "maybe";
  EXPECT_REFUSED(from(torchrun), "TORCHELASTIC_USE_AGENT_STORE", "maybe");
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "1";
  torchrun["TORCHELASTIC_RESTART_COUNT"] = "-1";
  EXPECT_REFUSED(from(torchrun), "TORCHELASTIC_RESTART_COUNT", "-1");
}

/// By scontrol show hostnames of Slurm 22.05.
TEST(GroupOptions, FirstHostOfASlurmList) {
  for (const auto& [list, host] : std::map<std::string, std::string>{{"n0", "n0"},
                                                                     {"n[0-1]", "n0"},
                                                                     {"n[001-004,7],m3", "n001"},
                                                                     {"m3,n[001-004]", "m3"},
                                                                     {"rack[2-3]-node[10-11,4]", "rack2-node10"},
                                                                     {"gpu-a.example.org", "gpu-a.example.org"}})
    EXPECT_EQ(first_host(list), host);
  for (const char* wrong : {"", ",", "n[", "n]", "n[]", "n[a-b]", "n[-1]", "n[1"})
    EXPECT_FALSE(first_host(wrong)) << wrong;
}

TEST(GroupOptions, NamesTheVariableThatIsWrong) {
  EXPECT_REFUSED(from({{"RANK", "1"}}), "[process group] environment variable 'WORLD_SIZE': found nothing",
                 "RANK is 1");
  EXPECT_REFUSED(from({{"WORLD_SIZE", "2"}, {"RANK", "2"}}), "'RANK': found '2'", "0 to 1");
  EXPECT_REFUSED(from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_PORT", "1"}}), "MASTER_ADDR: found none");
  EXPECT_TRUE(throws_with({"MASTER_PORT: found none", "65535"},
                          [] { from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}}); }));
  EXPECT_TRUE(throws_with({"MASTER_PORT: found '65536'", "65535"}, [] {
    from({{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "65536"}});
  }));
}

TEST(GroupOptions, RefusesOptionsOutOfRange) {
  const auto refused = [](const std::vector<std::string>& words, GroupOptions options) {
    return throws_with(words, [&] { check(options); });
  };
  EXPECT_TRUE(refused({"rank: found 2", "0 to 1"}, {.rank = 2, .size = 2}));
  EXPECT_TRUE(refused({"size: found 0"}, {.size = 0}));
  EXPECT_TRUE(refused({"timeout: found 0 ms"}, {.size = 2, .timeout = std::chrono::milliseconds(0)}));
  EXPECT_TRUE(refused({"port: found 0"}, {.size = 2, .port = 0}));
  EXPECT_TRUE(refused({"host"}, {.size = 2, .host = ""}));
  EXPECT_TRUE(refused({"secret: found one of 5 characters", "16 or more"}, {.size = 2, .secret = "short"}));
  EXPECT_TRUE(
      refused({"file: found '/no/such/folder/f'", "folder that exists"}, {.size = 2, .file = "/no/such/folder/f"}));
  check({.rank = 1, .size = 2});
}

// Where rank 0 listens, by what the kernel says of it, and who gets in.

const Texts kAllNetworks = {"00000000000000000000000000000000"};

int port_of(const Door& door) {
  sockaddr_in6 address{};
  socklen_t length = sizeof(address);
  getsockname(door.socket(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin6_port);
}

Texts listening(const std::string& host) {
  const Door door(host, 0);
  const Texts found = test::listening_at(port_of(door));
  close(door.socket());
  return found;
}

/// The first IPv4 address that is not the loopback's; "" where there is none.
std::string outer_address() {
  ifaddrs* all = nullptr;
  std::string found;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr && found.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const std::string text = inet_ntoa(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr);
    if (!text.starts_with("127.")) found = text;
  }
  freeifaddrs(all);
  return found;
}

TEST(Door, IsOpenToTheNetworkOfItsAddress) {
  EXPECT_EQ(listening("127.0.0.1"), (Texts{"0100007F"}));
  EXPECT_EQ(listening("127.0.1.1"), (Texts{"0101007F"}));
  EXPECT_EQ(listening("::1"), (Texts{"00000000000000000000000001000000"}));
  const Texts local = listening("localhost");
  EXPECT_TRUE(local == (Texts{"0100007F"}) || local == (Texts{"00000000000000000000000001000000"}));
  EXPECT_EQ(listening("192.0.2.7"), kAllNetworks);  // not this machine's: some router has it, and sends it on
  EXPECT_EQ(listening("no.such.host.invalid"), kAllNetworks);
  const std::string outer = outer_address();
  if (outer.empty()) GTEST_SKIP() << "this machine has no other network";
  const Door inside("127.0.0.1", 0), outside(outer, 0);
  EXPECT_TRUE(test::connects("127.0.0.1", port_of(inside)));
  EXPECT_FALSE(test::connects(outer, port_of(inside)));
  EXPECT_TRUE(test::connects(outer, port_of(outside)));
  EXPECT_FALSE(test::connects("127.0.0.1", port_of(outside)));
  for (const Door* door : {&inside, &outside}) close(door->socket());
}

TEST(Door, KnowsWhatIsThisMachineOnly) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"})
    EXPECT_TRUE(is_loopback(host)) << host;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);  // whatever /etc/hosts has for it
  for (const char* host : {"0.0.0.0", "::", "192.0.2.7", "2001:db8::1", static_cast<const char*>(name)})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(Door, LetsNobodyInOnceItIsClosed) {
  Door door("127.0.0.1", 0);
  const auto port = static_cast<std::uint16_t>(port_of(door));
  c10d::TCPStoreOptions served;
  served.port = port;
  served.isServer = true;
  served.waitWorkers = false;
  served.masterListenFd = door.socket();
  c10d::TCPStore store("127.0.0.1", served);
  EXPECT_REFUSED(const Door second("127.0.0.1", port),
                 "127.0.0.1:" + std::to_string(port) + ": Address already in use");
  EXPECT_TRUE(test::connects("127.0.0.1", port));
  door.close();
  EXPECT_FALSE(test::connects("127.0.0.1", port));
  EXPECT_EQ(test::listening_at(port), Texts{});
  store.c10d::Store::set("still", "here");
  EXPECT_EQ(store.get_to_str("still"), "here");
}

TEST(MeetingStore, TakesWhatARankHasSealedUnderThisKey) {
  const std::string secret = "0123456789abcdef";
  const auto raw = c10::make_intrusive<c10d::HashStore>();
  MeetingStore store("p", raw, secret), open("p", raw, ""), other("p", raw, "0123456789abcdeg");
  store.c10d::Store::set("a", "value");
  EXPECT_EQ(store.get_to_str("a"), "value");
  const std::string sealed = raw->get_to_str("p/a");
  EXPECT_TRUE(sealed.starts_with("value sealed by FP8_JOB_SECRET ")) << sealed;
  EXPECT_THAT(sealed, Not(HasSubstr(secret)));
  EXPECT_EQ(open.get_to_str("a"), sealed);
  const auto refused = [&](const char* key) { return throws_with({key, "not sealed"}, [&] { store.get(key); }); };
  EXPECT_REFUSED(other.get("a"), "not sealed");
  raw->c10d::Store::set("p/b", sealed);  // of another key
  raw->c10d::Store::set("p/c", "Value" + sealed.substr(5));
  raw->c10d::Store::set("p/d", "value");
  raw->c10d::Store::set("p/e", "");
  for (const char* key : {"b", "c", "d", "e"}) EXPECT_TRUE(refused(key)) << key;
  EXPECT_EQ(store.clone()->get_to_str("a"), "value");
  EXPECT_FALSE(store.hasExtendedApi());  // which nothing seals
  EXPECT_TRUE(open.hasExtendedApi());
  open.c10d::Store::set("a", "plain");
  EXPECT_EQ(raw->get_to_str("p/a"), "plain");
}

// A group by the name that c10d keeps of it: the calls of make_gloo_group()'s, bit for bit. And values of all ranks by
// the operation's name.

constexpr const char* kName = "by name";

// ---- what ranks run

FP8_TEST_RANKS(RegisteredGroup, CallsAreThoseOfTheGroup, 2) {
  const auto group = test::rank_group();
  c10d::register_process_group(kName, c10d_group(*group));
  const auto named = registered_group(kName);
  EXPECT_EQ(named->rank(), group->rank());
  EXPECT_EQ(named->size(), group->size());
  const int r = group->rank();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> v = r == 0 ? std::vector<float>{1, nan, -3, -0.0f} : std::vector<float>{2, 4, -2, 0};
  named->all_reduce_max(v.data(), v.size());
  EXPECT_EQ(v[0], 2);
  EXPECT_TRUE(std::isnan(v[1]));
  EXPECT_EQ(v[2], -2);
  EXPECT_FALSE(std::signbit(v[3]));
  named->barrier();
  for (const auto device : {at::Device(at::kCPU), at::Device(at::kHPU, 0)})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
        const at::Tensor mine = (torch::arange(12, at::kFloat).view({3, 4}) * (r + 1)).to(dtype).to(device).t();
        const at::Tensor a = mine.clone(), b = mine.clone();
        group->all_reduce(a, op);
        named->all_reduce(b, op);
        EXPECT_TRUE(same_bits(a.cpu(), b.cpu())) << dtype;
      }
      const at::Tensor sent = torch::full({2, 3}, 5 + r, dtype).to(device);
      named->broadcast(sent, 1);
      EXPECT_TRUE(at::equal(sent.cpu(), torch::full({2, 3}, 6, dtype)));
    }
  EXPECT_REFUSED(named->broadcast(torch::ones({1}), 2), "root", "found 2", "0 to 1");
  EXPECT_REFUSED(named->all_reduce(torch::ones({1}, at::kDouble), ReduceOp::sum), "found dtype Double",
                 "allowed: Float, BFloat16, Half, Long");
  at::Tensor weight = torch::ones({2, 3}, test::on_hpu());
  test::convert_to_codes(weight, "proj", std::make_shared<test::CodesHandler>(0.5), 0.5);
  EXPECT_REFUSED(named->broadcast(weight, 0), "broadcast", "module 'proj'");
  c10d::unregister_process_group(kName);
}

// 42, 43, 44 on ranks 0, 1, 2.
FP8_TEST_RANKS(Reduce, ValuesOfAllRanks, 3) {
  const auto group = test::rank_group();
  for (const auto device : {at::Device(at::kCPU), at::Device(at::kHPU, 0)})
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
      const at::Tensor mine = torch::full({2}, 42 + group->rank(), at::TensorOptions(dtype)).to(device);
      for (const auto& [op, expected] : {std::pair("sum", 129), std::pair("min", 42), std::pair("max", 44),
                                         std::pair("mean", 43), std::pair("avg", 43)}) {
        const at::Tensor all = reduce(mine, op, *group);
        const bool mean = std::string_view(op) == "mean" || std::string_view(op) == "avg";
        EXPECT_EQ(all.scalar_type(), mean && dtype == at::kLong ? at::kFloat : dtype) << op;
        EXPECT_EQ(all.device(), mine.device());
        EXPECT_TRUE(
            at::equal(all.cpu().to(at::kFloat), torch::full({2}, expected, at::kFloat).to(dtype).to(at::kFloat)))
            << op << all;
      }
      EXPECT_TRUE(at::equal(mine.cpu(), torch::full({2}, 42 + group->rank(), at::TensorOptions(dtype))));
    }
  const at::Tensor odd = torch::full({1}, std::int64_t{group->rank() == 0 ? 1 : 0}, at::kLong);
  EXPECT_NEAR(reduce(odd, "mean", *group).item<float>(), 1.0f / 3, 1e-7);
  const at::Tensor lowest = torch::full({1}, std::numeric_limits<std::int64_t>::min() + group->rank(), at::kLong);
  EXPECT_EQ(reduce(lowest, "min", *group).item<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
}

// ---- the tests

TEST(RegisteredGroup, ANameThatNobodyHas) {
  EXPECT_REFUSED(registered_group("nobody"), "[registered_group] found 'nobody'",
                 "group_name of a group of torch.distributed");
}

TEST(Reduce, OtherOperationsAreRefusedInTheVendorsWords) {
  const auto alone = make_gloo_group({.rank = 0, .size = 1});
  EXPECT_REFUSED(reduce(torch::ones({1}), "product", *alone),
                 "Unsupported ReduceOp product. Supported ops in HCCL are: sum, min, max");
  EXPECT_EQ(reduce(torch::full({1}, 3, at::kLong), "mean", *alone).item<float>(), 3);
}

}  // namespace
}  // namespace fp8::runtime::distributed
