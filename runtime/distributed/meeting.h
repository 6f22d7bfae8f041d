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

#include <exception>
#include <mutex>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

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

/// The message, without LibTorch's backtrace.
std::string text_of(const std::exception& error);
/// Of an error of c10d, the line that says what happened, without Gloo's source line and its advice.
std::string first_line(const std::exception& error);

// The socket at which rank 0 listens for the other ranks. c10d's own is open to all networks of the machine, for as
// long as it runs, and its server stores all that any peer sends. This one is open
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
  /// Ends the accepting of connections; those that exist stay.
  void close();
  /// The server is about to end: its socket is not ours to close.
  void forget();
  /// Called every half a second. Cuts off each peer that has sent more than `size` ranks send together; returns true if
  /// there was one.
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
// Any process that can connect to c10d's server can list all keys, and read, write and delete them: no prefix hides
// them. The values that get() returns, though, were set by a rank, under this key. The rest of a store, add() and
// compareSet() among it, is not sealed; groups need none of it.

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
  /// As get(); none where it is not sealed so.
  std::optional<std::string> get_if_sealed(const std::string& key);
  bool hasExtendedApi() const override { return secret_.empty() && PrefixStore::hasExtendedApi(); }

 private:
  std::string seal(const std::string& key, const std::string& value);

  const std::string secret_;
  const std::shared_ptr<Door> door_;
};

// Which ranks are gone. Gloo says of a call that failed what the socket said, and to whom it was connected is not who
// died: each rank writes a key twice a second, and whose key stands still is gone.
//
//   "beat/<rank>"   a counter, number and name of the call that the rank waits in; "left" where it went in order
//                   (one thread, one connection of its own)
//   "meet/<rank>"   number and name of its last meet()
//
// On the rank that serves the store, the thread also closes the store's door when all ranks have beaten, and cuts off a
// peer that floods it.
//
// The ranks that are gone are looked for only after a failure. A store that is gone is noticed without one: of a
// launcher's store it means that no launcher will end, restart or wait for these processes. A rank that is asked to end
// looks each second whether the others can come to the call that it waits in, and ends the process where four looks in
// a row say that they cannot, or the store says nothing for five seconds.

class Heartbeat {
 public:
  static constexpr std::chrono::milliseconds kEvery{500};

  /// server: the server of the store, as the message names it.
  Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options, std::string server);
  ~Heartbeat();  ///< this rank has left
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// "rank 1 does not answer", "rank 2 has left"; "" where all are there. "the store does not answer: rank 0 serves it;
  /// nothing is known of rank 2": none of the others is heard of without it. Takes up to 2 seconds.
  std::string who_is_gone();
  /// Sets the call that this rank waits in, which each beat reports; returns the one before.
  Wait waits_in(Wait next);
  /// Waits until all have come to their meet() of this number. Returns why that can't be: "rank 1 waits in ..." (a call
  /// after the `calls` that this rank has made), "rank 1 comes to ...", "rank 1 has left"; "": they have, or the next
  /// call will say why one does not answer.
  std::string meet(c10d::Store& store, const std::string& what, std::int64_t calls);
  /// Returns true if the store was found not to answer: about a second after its server was gone. Takes no time.
  bool store_is_gone() const;
  /// The rank that serves the store stays until the others have left or are gone too, at most 2.5 seconds: they ask
  /// now.
  void see_others_off(c10d::Store& store);

 private:
  std::int64_t meetings_ = 0;
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: one that hangs on a link that is cut is left behind
};

}  // namespace fp8::runtime::distributed
