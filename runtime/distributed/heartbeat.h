// SPDX-License-Identifier: Apache-2.0
// Which ranks are gone. Gloo says of a call that failed what the socket said, and to whom it was connected is not who
// died: each rank writes a key twice a second, and whose key stands still is gone.
//
//   "beat/<rank>"   a counter, and the call that the rank has waited in for a while; "left" where it went in order
//                   (one thread, one connection of its own)
//
// Where the store is served the thread sees to its door: it closes it when all ranks have beaten, and cuts off whoever
// floods it.
//
// Who is gone is only asked after a failure. That the store is, is known without: of a launcher's store it means that
// nobody will end, restart or wait for these processes.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace fp8::runtime::distributed {

class Heartbeat {
 public:
  static constexpr std::chrono::milliseconds kEvery{500};

  /// server: who serves the store, as the message names it.
  Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::string server);
  ~Heartbeat();  ///< this rank has left
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// "rank 1 does not answer", "rank 2 has left"; "" where all are there. "the store does not answer: rank 0 serves it;
  /// nothing is known of rank 2": none of the others is heard of without it. Takes up to 2 seconds.
  std::string who_is_gone();
  /// This rank has waited a while in a call, as `call` describes it; "": it goes on. Told with each beat.
  void waits_in(std::string call);
  /// What the others tell now, by rank. Throws for a store that is gone.
  std::vector<std::string> beats(c10d::Store& store) const;
  /// "rank 1 waits in broadcast of 8 elements": of two beats() a second or more apart, who waits in another call than
  /// `own` or stands still; "": nobody.
  std::string waits_elsewhere(const std::vector<std::string>& before, const std::vector<std::string>& now,
                              const std::string& own) const;
  /// Whether the store was found not to answer; a second or so after whoever served it was gone. Takes no time.
  bool store_is_gone() const;
  /// Whoever serves the store stays until the others have left or are gone too, at most 2.5 seconds: they ask now.
  void see_others_off(c10d::Store& store);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: one that hangs on a link that is cut is left behind
};

}  // namespace fp8::runtime::distributed
