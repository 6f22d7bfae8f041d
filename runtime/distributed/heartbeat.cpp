// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <sstream>
#include <thread>

#include "fp8/runtime/distributed/meeting.h"

namespace fp8::runtime::distributed {
namespace {

constexpr char kLeft[] = "left";
constexpr std::chrono::milliseconds kSilence{1500}, kAnswer{500};
constexpr std::chrono::seconds kStuck{5};  ///< a beat takes no time where the store answers
using Clock = std::chrono::steady_clock;

std::string key_of(int rank) { return "beat/" + std::to_string(rank); }

std::string meeting_of(int rank) { return "meet/" + std::to_string(rank); }

/// Of a beat: 0 and "" where the rank waits in nothing.
struct Beat {
  explicit Beat(const std::string& beat) {
    std::istringstream words(beat);
    std::int64_t count = 0;
    if (words >> count >> number >> std::ws) std::getline(words, call);
  }
  std::int64_t number = 0;
  std::string call;
};

std::string status_of(const std::vector<int>& ranks, const char* one, const char* many) {
  return rank_names(ranks) + " " + (ranks.size() == 1 ? one : many);
}

}  // namespace

/// The thread beats, and reads all beats twice when it is asked to.
struct Heartbeat::State {
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<Door> door;  ///< null: another process serves
  int rank = 0, size = 1;
  std::string server;
  std::function<bool()> stop_asked;
  std::function<void(const std::string&)> give_up;

  std::mutex mutex;
  std::condition_variable changed;
  long count = 0;            ///< of the thread
  bool door_closed = false;  ///< of the thread
  bool leaving = false, asked = false, answered = false, ended = false, store_gone = false;
  std::string answer;
  Wait waiting;
  Wait reported;              ///< the call that this rank is known to wait in
  Clock::time_point beat_at;  ///< the last one that the store took

  double used_at = 0;  ///< seconds of CPU time, of watch()
  Clock::time_point measured_at;

  std::vector<std::string> looked;  ///< by the thread, at the beats of all, while this rank waits
  Clock::time_point looked_at;
  int looks = 0;  ///< in a row that found the others unable to come

  std::vector<std::string> beats(c10d::Store& of) const {
    std::vector<std::string> values;
    for (int r = 0; r < size; ++r) values.push_back(of.check({key_of(r)}) ? of.get_to_str(key_of(r)) : "");
    return values;
  }

  void run() {
    try {
      while (beats_on()) {
      }
      store->set(key_of(rank), kLeft);
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex);  // the store is gone
      answer = without_store();
      answered = store_gone = true;
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  std::string without_store() const {
    std::vector<int> unknown;
    for (int r = 0; r < size; ++r)
      if (r != rank && rank_names({r}) != server) unknown.push_back(r);
    return io::message("the store does not answer: {} serves it{}", server,
                       unknown.empty() ? "" : "; nothing is known of " + rank_names(unknown));
  }

  /// Returns true if the process used less than a tenth of a core's time since the last call.
  bool is_idle() {
    const auto time = Clock::now();
    const double used = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    const double passed = std::chrono::duration<double>(time - measured_at).count(), spent = used - used_at;
    measured_at = time;
    used_at = used;
    return spent < passed / 10;
  }

  void beat() {
    std::unique_lock lock(mutex);
    std::string text = std::to_string(count++);
    if (!reported.call.empty()) text += " " + std::to_string(reported.number) + " " + reported.call;
    lock.unlock();
    store->set(key_of(rank), text);
  }

  /// A thread of its own: that of the beats stands still with the store.
  void watch() {
    Clock::time_point since;  // it was asked to end while it waits
    std::unique_lock lock(mutex);
    for (; !changed.wait_for(lock, kEvery, [&] { return leaving; });) {
      const bool idle = is_idle();
      reported = waiting.computes && !idle ? Wait{} : waiting;
      if (reported.call.empty() || !give_up || !stop_asked()) since = Clock::now();
      if (Clock::now() - std::max(since, beat_at) < kStuck) continue;
      const std::string why = waits() + without_store();
      lock.unlock();
      return give_up(why);
    }
  }

  std::string waits() const { return "rank " + std::to_string(rank) + " waits in " + reported.call + ", and "; }

  void watch_door() {
    door->cut_off_floods(size);
    if (door_closed) return;
    std::vector<std::string> keys;
    for (int r = 0; r < size; ++r) keys.push_back(key_of(r));
    door_closed = store->check(keys);
    if (door_closed) door->close();
  }

  /// False: it is time to leave.
  bool beats_on() {
    beat();
    if (door != nullptr) watch_door();
    if (give_up) look_around();
    std::unique_lock lock(mutex);
    beat_at = Clock::now();
    changed.wait_for(lock, kEvery, [&] { return leaving || (asked && !answered); });
    if (asked && !answered) {
      lock.unlock();
      std::string found = compare();
      lock.lock();
      answer = std::move(found);
      answered = true;
      changed.notify_all();
    }
    return !leaving;
  }

  /// "rank 1 waits in broadcast of 8 elements": of two looks a second apart, who waits in another call than `own`,
  /// stands still or has left; "": none.
  std::string waits_elsewhere(const std::vector<std::string>& now, const std::string& own) const {
    for (int r = 0; r < size && !looked.empty(); ++r) {
      const std::string &before = looked[static_cast<std::size_t>(r)], &after = now[static_cast<std::size_t>(r)];
      if (r == rank || after.empty()) continue;
      const std::string name = rank_names({r}), call = Beat(after).call;
      if (after == kLeft) return name + " has left";
      if (after == before) return name + " does not answer";
      if (!call.empty() && call != own && call == Beat(before).call) return name + " waits in " + call;
    }
    return "";
  }

  void look_around() {
    constexpr int kSure = 4;
    std::unique_lock lock(mutex);
    const std::string own = reported.call, head = waits();
    lock.unlock();
    const auto time = Clock::now();
    if (own.empty() || !stop_asked()) {
      looked.clear();
      looks = 0;
      return;
    }
    if (!looked.empty() && time - looked_at < std::chrono::seconds(1)) return;
    looked_at = time;
    const std::vector<std::string> now = beats(*store);
    const std::string other = waits_elsewhere(now, own);
    looked = now;
    looks = other.empty() ? 0 : looks + 1;
    if (looks >= kSure) give_up(head + other);
  }

  std::string compare() {
    const std::vector<std::string> before = beats(*store);
    for (auto waited = std::chrono::milliseconds(0); waited < kSilence; waited += kEvery) {
      std::this_thread::sleep_for(kEvery);
      beat();  // others compare now, too
    }
    const std::vector<std::string> after = beats(*store);
    std::vector<int> silent, left;
    for (int r = 0; r < size; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (r == rank) continue;
      if (after[i] == kLeft)
        left.push_back(r);
      else if (after[i] == before[i])
        silent.push_back(r);
    }
    std::string text = silent.empty() ? "" : status_of(silent, "does not answer", "do not answer");
    if (!left.empty()) text += (text.empty() ? "" : ", ") + status_of(left, "has left", "have left");
    return text;
  }
};

Heartbeat::Heartbeat(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options, std::string server)
    : state_(std::make_shared<State>()) {
  if (const auto* meeting = dynamic_cast<const MeetingStore*>(store.get())) state_->door = meeting->door();
  state_->store = store->clone();
  state_->rank = options.rank;
  state_->size = options.size;
  state_->server = std::move(server);
  state_->stop_asked = options.stop_asked;
  if (options.stop_asked) state_->give_up = options.give_up;
  state_->store->set(key_of(options.rank), "");
  std::thread([state = state_] { state->run(); }).detach();
  std::thread([state = state_] { state->watch(); }).detach();
}

Heartbeat::~Heartbeat() {
  std::unique_lock lock(state_->mutex);
  state_->leaving = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kAnswer, [&] { return state_->ended; });
}

std::string Heartbeat::who_is_gone() {
  std::unique_lock lock(state_->mutex);
  if (!state_->answered) {
    state_->asked = true;
    state_->changed.notify_all();
    if (!state_->changed.wait_for(lock, kSilence + kAnswer, [&] { return state_->answered; }))
      return state_->without_store();
  }
  return state_->answer;
}

Wait Heartbeat::waits_in(Wait next) {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->waiting, std::move(next));
}

std::string Heartbeat::meet(c10d::Store& store, const std::string& what, std::int64_t calls) {
  const std::string own = std::to_string(++meetings_) + " " + what;
  store.set(meeting_of(state_->rank), own);
  auto pause = std::chrono::milliseconds(1);
  auto looked = Clock::now();
  std::string before;
  for (int r = 0, silent = 0, ahead = 0; r < state_->size;) {
    const std::string other = store.check({meeting_of(r)}) ? store.get_to_str(meeting_of(r)) : "0";
    const long meeting = std::stol(other);
    if (meeting == meetings_ && other != own) return rank_names({r}) + " comes to " + other.substr(other.find(' ') + 1);
    if (meeting >= meetings_) {
      ++r;
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
    if (Clock::now() - looked < std::chrono::seconds(1)) continue;
    looked = Clock::now();
    const std::string beat = store.get_to_str(key_of(r));
    if (beat == kLeft) return rank_names({r}) + " has left";
    const Beat last(beat);
    ahead = last.number > calls ? ahead + 1 : 0;  // twice: it may have come between two looks
    if (ahead == 2) return rank_names({r}) + " waits in " + last.call;
    silent = beat == before ? silent + 1 : 0;
    if (silent == 3) return "";
    before = beat;
  }
  return "";
}

bool Heartbeat::store_is_gone() const {
  const std::lock_guard lock(state_->mutex);
  return state_->store_gone;
}

void Heartbeat::see_others_off(c10d::Store& store) {
  const auto end = std::chrono::steady_clock::now() + kSilence + kAnswer * 2;
  try {
    for (bool some = true; some && std::chrono::steady_clock::now() < end;) {
      some = false;
      for (int rank = 0; rank < state_->size; ++rank) {
        if (rank == state_->rank || !store.check({key_of(rank)})) continue;
        some = some || store.get_to_str(key_of(rank)) != kLeft;
      }
      if (some) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  } catch (const std::exception&) {
  }  // no rank can ask
}

}  // namespace fp8::runtime::distributed
