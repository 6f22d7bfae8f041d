// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group find each other: a store of keys that all of them reach.
//
//   file            FileStore
//   host:port       TCPStore; rank 0 serves it, or the launcher does (torchrun: TORCHELASTIC_USE_AGENT_STORE)
//   every key       "fp8/attempt_<n>/...": a launcher's store still holds what a dead attempt wrote
//   every value     sealed by the job's secret, where it has one
//
//   "here/<rank>"   who has come            "all_here"   rank 0 has seen them all; both hold the size of the group
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "fp8/runtime/distributed/process_group.h"

namespace c10d {
class Store;
}

namespace fp8::runtime::distributed {

/// Waits until all ranks have called it; a MeetingStore. Throws std::exception: an address in use, a host that cannot
/// be reached, a rank with another secret, the ranks that did not come within the timeout, by number.
c10::intrusive_ptr<c10d::Store> meet(const GroupOptions& options);

/// "rank 1", "ranks 1, 5, 6"; at most eight of them: "ranks 0, .., 7 and 3 more".
std::string rank_names(const std::vector<int>& ranks);

/// "127.0.0.1:29500" or the file.
std::string place_of(const GroupOptions& options);

/// What it says, without LibTorch's backtrace.
std::string text_of(const std::exception& error);
/// Of an error of c10d, the line that says what happened, without Gloo's source line and its advice.
std::string first_line(const std::exception& error);

// Where rank 0 listens for the others. c10d's own socket is open to all networks of the machine, for as long as it
// runs, and its server stores whatever anybody sends. This one is open
//
//   to        this machine, where the host is its loopback; else the network of the host's address, where the name has
//             only one, of this machine; else all networks: as the others find it, the name may have another address
//   until     all ranks have connected
//   for       as many bytes as ranks send

/// It is an address of the loopback interface, or a name for it with "localhost" in it. A machine's own name is none,
/// whatever this machine takes it for (127.0.1.1): others find it elsewhere.
bool is_loopback(const std::string& host);

class Door {
 public:
  /// Listens. Throws c10::Error, "... address already in use".
  Door(const std::string& host, std::uint16_t port);

  int socket() const { return socket_; }  ///< c10d's server takes it over, and closes it
  /// Nobody can connect any more; connections stay.
  void close();
  /// The server is about to end: its socket is not ours to close.
  void forget();
  /// Called every half a second. Whoever has sent more than `size` ranks send together is cut off; whether there was
  /// somebody.
  bool cut_off_floods(int size);

 private:
  std::mutex mutex_;
  int socket_;
  std::uint16_t port_;
  std::int64_t calls_ = 0;
};

// The store of a meeting: a prefix before every key, and a seal behind every value where the ranks have a secret.
//
//   VALUE " sealed by FP8_JOB_SECRET " HMAC-SHA256(secret, key, a zero, VALUE)
//
// Whoever can connect to c10d's server can list all keys, and read, write and delete them: no prefix hides them. What
// get() returns, though, was set by a rank, under this key. Of the rest of a store, add() and compareSet() among it,
// nothing is sealed; groups need none of it.

constexpr char kSeal[] = " sealed by FP8_JOB_SECRET ";

class MeetingStore final : public c10d::PrefixStore {
 public:
  /// door: by which the others come, where this process serves them; null elsewhere.
  MeetingStore(std::string prefix, c10::intrusive_ptr<c10d::Store> store, std::string secret,
               std::shared_ptr<Door> door = nullptr)
      : PrefixStore(std::move(prefix), std::move(store)), secret_(std::move(secret)), door_(std::move(door)) {}
  ~MeetingStore() override {
    if (door_ != nullptr) door_->forget();  // the server ends with this
  }

  const std::shared_ptr<Door>& door() const { return door_; }

  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<MeetingStore>(prefix_, store_->clone(), secret_);
  }
  using PrefixStore::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  /// Throws c10::Error "'here/1' is not sealed by this rank's FP8_JOB_SECRET".
  std::vector<std::uint8_t> get(const std::string& key) override;
  /// The same; none where it is not sealed so.
  std::optional<std::string> get_if_sealed(const std::string& key);
  bool hasExtendedApi() const override { return secret_.empty() && PrefixStore::hasExtendedApi(); }

 private:
  std::string seal(const std::string& key, const std::string& value);

  const std::string secret_;
  const std::shared_ptr<Door> door_;
};

}  // namespace fp8::runtime::distributed
