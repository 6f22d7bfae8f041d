// SPDX-License-Identifier: Apache-2.0
// Where rank 0 listens, by what the kernel says of it, and who gets in.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <set>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fp8/runtime/distributed/meeting.h"
#include "support/hpu_test.h"
#include "support/ports.h"

namespace fp8::runtime::distributed {
namespace {

using test::throws_with;
using Texts = std::set<std::string>;

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
  EXPECT_EQ(sealed.find(secret), std::string::npos);
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

}  // namespace
}  // namespace fp8::runtime::distributed
