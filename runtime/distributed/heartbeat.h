// SPDX-License-Identifier: Apache-2.0
// Which ranks are gone. Gloo says of a call that failed what the socket said, and to whom it was connected is not who
// died: each rank writes a key twice a second, and whose key stands still is gone.
//
//   "beat/<rank>"   a counter, number and name of the call that the rank waits in; "left" where it went in order
//                   (one thread, one connection of its own)
//   "meet/<rank>"   number and name of its last meet()
//
// Where the store is served the thread sees to its door: it closes it when all ranks have beaten, and cuts off whoever
// floods it.
//
// Who is gone is only asked after a failure. That the store is, is known without: of a launcher's store it means that
// nobody will end, restart or wait for these processes. A rank that was told to end looks each second whether the
// others can come to the call that it waits in, and ends the process where four looks in a row say that they cannot, or
// the store says nothing for five seconds.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

class Heartbeat {
 public:
  static constexpr std::chrono::milliseconds kEvery{500};

  /// server: who serves the store, as the message names it.
  Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options, std::string server);
  ~Heartbeat();  ///< this rank has left
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// "rank 1 does not answer", "rank 2 has left"; "" where all are there. "the store does not answer: rank 0 serves it;
  /// nothing is known of rank 2": none of the others is heard of without it. Takes up to 2 seconds.
  std::string who_is_gone();
  /// What this rank waits in from now on, told with each beat; gives back what it was before.
  Wait waits_in(Wait next);
  /// Waits until all have come to their meet() of this number. Returns why that can't be: "rank 1 waits in ..." (a call
  /// after the `calls` that this rank has made), "rank 1 comes to ...", "rank 1 has left"; "": they have, or the next
  /// call will say why one does not answer.
  std::string meet(c10d::Store& store, const std::string& what, std::int64_t calls);
  /// Whether the store was found not to answer; a second or so after whoever served it was gone. Takes no time.
  bool store_is_gone() const;
  /// Whoever serves the store stays until the others have left or are gone too, at most 2.5 seconds: they ask now.
  void see_others_off(c10d::Store& store);

 private:
  std::int64_t meetings_ = 0;
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: one that hangs on a link that is cut is left behind
};

}  // namespace fp8::runtime::distributed
