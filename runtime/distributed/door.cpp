// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/door.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/tcp.h>  // tcpi_bytes_received, which the C library's does not have
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime::distributed {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

/// None where it does not resolve.
Addresses addresses_of(const std::string& host, int flags = 0, const std::string& port = "0") {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = flags | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

bool are_loopback(const addrinfo* address) {
  for (; address != nullptr; address = address->ai_next) {
    char text[NI_MAXHOST] = "";
    getnameinfo(address->ai_addr, address->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    const std::string_view one = text;
    if (one != "::1" && !one.starts_with("127.") && !one.starts_with("::ffff:127.")) return false;
  }
  return true;
}

/// The socket, or the error's number, negative.
int listen_at(const addrinfo& address) {
  const int made = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, no = 0;
  if (made < 0) return -errno;
  setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));  // connections of a run that has ended do not count
  if (address.ai_family == AF_INET6) setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (bind(made, address.ai_addr, address.ai_addrlen) == 0 && listen(made, SOMAXCONN) == 0) return made;
  const int error = errno;
  ::close(made);
  return -error;
}

/// At the first address that can be had, unless one is taken: ranks would find who has it.
int listen_at_one(const addrinfo* address) {
  int made = -EADDRNOTAVAIL;
  for (; address != nullptr && made < 0 && made != -EADDRINUSE; address = address->ai_next) made = listen_at(*address);
  return made;
}

/// 0 of what is no socket of the network.
std::uint16_t port_of(int socket) {
  sockaddr_in6 address{};  // the port lies where that of IPv4 does
  socklen_t length = sizeof(address);
  const bool known = getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  const bool of_network = address.sin6_family == AF_INET || address.sin6_family == AF_INET6;
  return known && of_network ? ntohs(address.sin6_port) : 0;
}

}  // namespace

bool is_loopback(const std::string& host) {
  const bool says_so = host.find("localhost") != std::string::npos;
  const Addresses found = addresses_of(host, says_so ? 0 : AI_NUMERICHOST);
  return found == nullptr ? says_so : are_loopback(found.get());
}

Door::Door(const std::string& host, std::uint16_t port) : socket_(-EADDRNOTAVAIL), port_(port) {
  const std::string text = std::to_string(port);
  const Addresses found = addresses_of(host, 0, text);
  const bool one = found != nullptr && found->ai_next == nullptr && !are_loopback(found.get());
  if (one || is_loopback(host)) socket_ = listen_at_one(found.get());
  for (const char* all : {"::", "0.0.0.0"})
    if (socket_ < 0 && socket_ != -EADDRINUSE) socket_ = listen_at_one(addresses_of(all, 0, text).get());
  TORCH_CHECK(socket_ >= 0, "The server socket has failed to listen at ", host, ":", port, ": ",
              std::generic_category().message(-socket_));
}

void Door::close() {
  const std::lock_guard lock(mutex_);
  // c10d's server goes on with the number, so that another socket takes it, to which nobody can connect.
  const int other = socket_ < 0 ? -1 : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (other < 0) return;
  dup3(other, std::exchange(socket_, -1), O_CLOEXEC);
  ::close(other);
}

void Door::forget() {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
}

bool Door::cut_off_floods(int size) {
  // Gloo's addresses, of each rank for each; what ranks beat.
  const std::int64_t most = (std::int64_t{64} << 20) + std::int64_t{size} * (size * 256L + ++calls_ * 512);
  std::vector<std::pair<std::int64_t, int>> sent;
  std::int64_t total = 0;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", unreadable)) {
    const int socket = io::parse_integer(entry.path().filename().string(), 0, INT_MAX).value_or(-1);
    tcp_info info{};
    socklen_t length = sizeof(info);
    if (port_of(socket) != port_ || getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) continue;
    total += sent.emplace_back(info.tcpi_bytes_received, socket).first;
  }
  std::ranges::sort(sent, std::greater());
  bool some = false;
  for (std::size_t i = 0; i < sent.size() && total > most; total -= sent[i++].first) {
    const linger at_once{1, 0};  // who waits to send more is told
    setsockopt(sent[i].second, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    some = shutdown(sent[i].second, SHUT_RDWR) == 0 || some;
  }
  return some;
}

}  // namespace fp8::runtime::distributed
