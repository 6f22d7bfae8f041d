// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/distributed/meeting.h"

#include <c10/util/Exception.h>
#include <netdb.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "fp8/runtime/distributed/door.h"
#include "fp8/runtime/distributed/meeting_store.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"
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
void check_unspoilt(MeetingStore& store, int size) {
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
    // Rounded up: a wait that ends before `end` would be somebody else's error.
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
        check_unspoilt(store, options.size);
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
  wait_for_all(*store, options);
  return store;
}

}  // namespace fp8::runtime::distributed
