// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/meeting.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/tcp.h>  // tcpi_bytes_received, which the C library's does not have
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/environment.h"

namespace fp8::runtime::distributed {
namespace {

using Clock = std::chrono::steady_clock;

/// c10d would try until the timeout, and say that it could not connect. A name that is new may take a moment.
void wait_for_name(const GroupOptions& options) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::seconds(20), kAgain(500);
  const auto end = Clock::now() + std::min(options.timeout, kLongest);
  for (;;) {
    addrinfo* found = nullptr;
    const int error = getaddrinfo(options.host.c_str(), nullptr, nullptr, &found);
    if (error == 0) return freeaddrinfo(found);
    const char* interface = io::environment_value("GLOO_SOCKET_IFNAME");
    TORCH_CHECK(Clock::now() + kAgain < end, "host: found ", io::in_quotes(options.host), ", which does not resolve (",
                gai_strerror(error), "), allowed: a name that does on all ranks, or an address; GLOO_SOCKET_IFNAME (",
                interface != nullptr ? interface : "not set", ") says which network of this machine is used");
    std::this_thread::sleep_for(kAgain);
  }
}

c10::intrusive_ptr<MeetingStore> open_store(const GroupOptions& options) {
  const std::string prefix = "fp8/attempt_" + std::to_string(options.attempt);
  if (!options.file.empty()) {
    auto file = c10::make_intrusive<c10d::FileStore>(options.file, options.size);
    return c10::make_intrusive<MeetingStore>(prefix, file, options.secret);
  }
  wait_for_name(options);
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = options.rank == 0 && !options.launcher_serves;
  tcp.waitWorkers = false;  // "here/<rank>" says who is missing too
  tcp.timeout = options.timeout;
  const auto door = tcp.isServer ? std::make_shared<Door>(options.host, options.port) : nullptr;
  if (door != nullptr) tcp.masterListenFd = door->socket();
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
  return c10::make_intrusive<MeetingStore>(prefix, store, options.secret, door);
}

std::string here(int rank) { return "here/" + std::to_string(rank); }

std::vector<int> absent(c10d::Store& store, const GroupOptions& options) {
  std::vector<int> list;
  for (int rank = 0; rank < options.size; ++rank)
    if (!store.check({here(rank)})) list.push_back(rank);
  return list;
}

/// Of what has come in so far, where this process serves it. A flood would only come back by another connection.
void check_flood(MeetingStore& store, int size) {
  const std::int64_t most = 1000 + std::int64_t{64} * size, keys = store.getNumKeys();
  TORCH_CHECK(keys <= most && !store.door()->cut_off_floods(size), "more has come in than ranks send (", keys,
              " keys), somebody else sends it; allowed: a network of machines that are trusted");
}

/// "" where rank has said under `key` what this rank knows.
std::string difference(MeetingStore& store, int rank, const std::string& key, const std::string& size) {
  const std::string name = "rank " + std::to_string(rank);
  const auto found = store.get_if_sealed(key);
  if (!found.has_value()) return name + " has another FP8_JOB_SECRET than this one, or none";
  if (found->find(kSeal) != std::string::npos) return name + " has FP8_JOB_SECRET, which this one has not";
  if (*found == size) return "";
  return name + " was told that there are " + io::printable(*found, 40) + " ranks, this one that there are " + size;
}

void wait_for_all(MeetingStore& store, const GroupOptions& options) {
  constexpr std::chrono::milliseconds kLook(500);
  const auto end = Clock::now() + options.timeout;
  const auto left = [&] {
    // Rounded up: a wait that ends before `end` would be another rank's error.
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()), std::chrono::milliseconds(1));
  };
  const std::string size = std::to_string(options.size);
  const auto check_said = [&](int rank, const std::string& key) {
    const std::string different = difference(store, rank, key, size);
    if (different.empty()) return;
    if (options.rank == 0) store.set("all_here", size);               // that one shall not wait
    if (store.door() != nullptr) std::this_thread::sleep_for(kLook);  // and reads it before the server ends
    TORCH_CHECK(false, different);
  };
  const auto wait_for = [&](const std::string& key) {
    if (store.door() == nullptr) return store.wait({key}, left());
    while (!store.check({key})) {
      try {
        store.wait({key}, std::min(left(), kLook));
      } catch (const std::exception&) {
        if (Clock::now() >= end) throw;
        check_flood(store, options.size);
      }
    }
  };
  store.set(here(options.rank), size);
  try {
    if (options.rank != 0) {
      wait_for("all_here");
      return check_said(0, "all_here");
    }
    for (int rank = 1; rank < options.size; ++rank) {
      wait_for(here(rank));
      check_said(rank, here(rank));
    }
  } catch (const std::exception& error) {
    if (Clock::now() < end) throw;
    TORCH_CHECK(false, rank_names(absent(store, options)), " did not come within ", options.timeout.count(), " ms");
  }
  store.set("all_here", size);
}

}  // namespace

std::string rank_names(const std::vector<int>& ranks) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t named = std::min(ranks.size(), kMostNamed), more = ranks.size() - named;
  return (ranks.size() == 1 ? "rank " : "ranks ") + io::joined(std::span(ranks).first(named)) +
         (more > 0 ? io::message(" and {} more", more) : "");
}

std::string place_of(const GroupOptions& options) {
  return options.file.empty() ? options.host + ":" + std::to_string(options.port) : options.file;
}

std::string text_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : io::raw_message(e);
}

std::string first_line(const std::exception& e) {
  std::string text = io::spelled(text_of(e));
  if (!text.empty() && text.front() == '[' && text.find("] ") != std::string::npos)
    text = text.substr(text.find("] ") + 2);  // Gloo's source line
  for (const char* end : {"\n", ". This is typically"}) text = text.substr(0, text.find(end));
  return io::printable(text, 400);
}

c10::intrusive_ptr<c10d::Store> meet(const GroupOptions& options) {
  auto store = open_store(options);
  store->setTimeout(options.timeout);
  wait_for_all(*store, options);
  return store;
}

std::string MeetingStore::seal(const std::string& key, const std::string& value) {
  if (secret_.empty()) return "";
  return kSeal + io::hmac_sha256(secret_, joinKey(key) + '\0' + value);
}

void MeetingStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  const std::string sealed = seal(key, {value.begin(), value.end()});
  std::vector<std::uint8_t> bytes = value;
  bytes.insert(bytes.end(), sealed.begin(), sealed.end());
  PrefixStore::set(key, bytes);
}

std::optional<std::string> MeetingStore::get_if_sealed(const std::string& key) {
  const std::vector<std::uint8_t> bytes = PrefixStore::get(key);
  const std::string found(bytes.begin(), bytes.end());
  const std::size_t size = found.size() - std::min(found.size(), seal(key, "").size());
  std::string value = found.substr(0, size);
  if (found.substr(size) != seal(key, value)) return std::nullopt;
  return value;
}

std::vector<std::uint8_t> MeetingStore::get(const std::string& key) {
  const auto value = get_if_sealed(key);
  TORCH_CHECK(value.has_value(), io::in_quotes(key), " is not sealed by this rank's FP8_JOB_SECRET");
  return {value->begin(), value->end()};
}

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
  // c10d's server keeps the descriptor's number, so another socket takes it, which accepts no connections.
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
    const linger at_once{1, 0};  // a peer that waits to send more gets an error
    setsockopt(sent[i].second, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    some = shutdown(sent[i].second, SHUT_RDWR) == 0 || some;
  }
  return some;
}

}  // namespace fp8::runtime::distributed
