// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/meeting.h"

#include <c10/util/Exception.h>
#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/text.h"

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

c10::intrusive_ptr<c10d::Store> open_store(const GroupOptions& options) {
  if (!options.file.empty()) return c10::make_intrusive<c10d::FileStore>(options.file, options.size);
  wait_for_name(options);
  c10d::TCPStoreOptions tcp;
  tcp.port = options.port;
  tcp.isServer = options.rank == 0 && !options.launcher_serves;
  tcp.waitWorkers = false;  // "here/<rank>" says who is missing too
  tcp.timeout = options.timeout;
  return c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
}

std::string here(int rank) { return "here/" + std::to_string(rank); }

std::vector<int> absent(c10d::Store& store, const GroupOptions& options) {
  std::vector<int> list;
  for (int rank = 0; rank < options.size; ++rank)
    if (!store.check({here(rank)})) list.push_back(rank);
  return list;
}

void wait_for_all(c10d::Store& store, const GroupOptions& options) {
  const auto end = Clock::now() + options.timeout;
  const auto left = [&] {
    // Rounded up: a wait that ends before `end` would be somebody else's error.
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()), std::chrono::milliseconds(1));
  };
  const std::string size = std::to_string(options.size);
  const auto check_size = [&](int rank, const std::string& key) {
    const std::string found = store.get_to_str(key);
    if (found == size) return;
    if (options.rank == 0) store.set("all_here", size);  // that one shall not wait
    TORCH_CHECK(false, "rank ", rank, " was told that there are ", found, " ranks, this one that there are ", size);
  };
  store.set(here(options.rank), size);
  try {
    if (options.rank != 0) {
      store.wait({"all_here"}, left());
      return check_size(0, "all_here");
    }
    for (int rank = 1; rank < options.size; ++rank) {
      store.wait({here(rank)}, left());
      check_size(rank, here(rank));
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
         (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

std::string place_of(const GroupOptions& options) {
  return options.file.empty() ? options.host + ":" + std::to_string(options.port) : options.file;
}

std::string text_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : e.what();
}

std::string first_line(const std::exception& e) {
  std::string text = text_of(e);
  if (!text.empty() && text.front() == '[' && text.find("] ") != std::string::npos)
    text = text.substr(text.find("] ") + 2);  // Gloo's source line
  for (const char* end : {"\n", ". This is typically"}) text = text.substr(0, text.find(end));
  return io::printable(text, 400);
}

c10::intrusive_ptr<c10d::Store> meet(const GroupOptions& options) {
  auto store = open_store(options);
  store->setTimeout(options.timeout);
  store = c10::make_intrusive<c10d::PrefixStore>("fp8/attempt_" + std::to_string(options.attempt), store);
  wait_for_all(*store, options);
  return store;
}

}  // namespace fp8::runtime::distributed
