// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/shares/shares.h"

#include <chrono>
#include <system_error>

namespace fp8::io {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

constexpr char kCount[] = "shares", kJoin[] = "join";

double now() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Json with_count(Json work, std::int64_t count) {
  ensure(count >= 1 && count <= kMaxShares, "1 to kMaxShares shares");
  work[kCount] = static_cast<std::uint64_t>(count);
  return work;
}

}  // namespace

/// Waits for other processes a little longer each time, until there has been no news for too long.
class Shares::Patience {
 public:
  explicit Patience(const SharesOptions& options) : options_(options) {}
  void news() {
    since_ = now();
    pause_ = 0.02;
  }
  bool is_over() const { return *options_.wait > 0 && now() - since_ >= *options_.wait; }
  void pause() {
    const double end = now() + pause_;
    while (now() < end) {
      if (options_.stop && options_.stop()) throw Error("interrupted");
      std::this_thread::sleep_for(Seconds(std::min(0.1, pause_)));
    }
    pause_ = std::min({1.5 * pause_, 1.0, options_.lease.expiry / 4});
  }

 private:
  const SharesOptions& options_;
  double since_ = now(), pause_ = 0.02;
};

Shares::Shares(fs::path folder, Json work, SharesOptions options)
    : options_(std::move(options)),
      leases_(std::move(folder), with_count(std::move(work), options_.count), options_.lease) {
  for (std::int64_t i = 0; i < options_.count; ++i)
    order_.push_back(std::to_string((options_.first + i) % options_.count));
}

fs::path Shares::place_of(std::int64_t share, int taking) const {
  return leases_.path() / message("{}.part-{}", share, taking);
}

std::vector<std::int64_t> Shares::missing() const {
  std::vector<std::int64_t> shares;
  for (std::int64_t i = 0; i < options_.count; ++i)
    if (!leases_.finished(std::to_string(i)).has_value()) shares.push_back(i);
  return shares;
}

std::string Shares::text_of(const std::vector<std::int64_t>& missing) const {
  std::vector<std::string> words;
  for (const std::int64_t share : missing) {
    const std::string holder = leases_.holder_of(std::to_string(share));
    words.push_back(std::to_string(share) + (holder.empty() ? "" : " (" + holder + ")"));
  }
  return joined_first(words);
}

void Shares::work(const std::function<void(std::int64_t, const fs::path&)>& body) {
  Patience patience(options_);
  for (std::size_t left = 0;;) {
    if (options_.stop && options_.stop()) throw Error("interrupted");
    // A folder that is being removed looks unmade: of "work", which goes first, the answer is right once there is a
    // lease.
    if (const auto lease = leases_.take(order_); lease && !removed()) {
      try {
        const std::int64_t share = std::stoll(lease->piece());
        body(share, place_of(share, lease->taking()));
        if (lease->finish()) made_.push_back(share);
      } catch (...) {
        if (!removed()) throw;  // else others thought that we were gone, and have done all of it
      }
      continue;
    }
    const auto shares = missing();
    if (removed()) return remove();  // what was late may have written into it since
    if (shares.empty() || !options_.wait.has_value()) return;
    if (shares.size() != left) patience.news();
    left = shares.size();
    if (patience.is_over())
      fail(leases_.path(), "no news for {} s of shares {}", static_cast<std::int64_t>(*options_.wait), text_of(shares));
    patience.pause();
  }
}

std::vector<fs::path> Shares::places() const {
  std::vector<fs::path> all;
  for (std::int64_t i = 0; i < options_.count; ++i) {
    if (const auto taking = leases_.finished(std::to_string(i))) all.push_back(place_of(i, *taking));
  }
  return all;
}

bool Shares::join(const std::function<bool()>& stands, const std::function<void(const std::vector<fs::path>&)>& body) {
  for (Patience patience(options_);; patience.pause()) {
    if (stands()) return false;
    if (const auto shares = missing(); !shares.empty() && !removed())
      fail(leases_.path(), "can't join {} shares, missing: {}", options_.count, text_of(shares));
    if (const auto lease = leases_.take({kJoin})) {
      if (stands()) return false;  // joined since we looked
      const auto all = places();
      if (std::ssize(all) < options_.count) continue;
      body(all);
      return true;
    }
    if (removed()) return false;
    const std::string holder = leases_.holder_of(kJoin);
    const std::string who = holder.empty() ? "another process" : holder;
    if (!options_.wait.has_value()) fail(leases_.path(), "{} joins the shares now", who);
    if (patience.is_over())
      fail(leases_.path(), "no news for {} s of {}, who joins the shares", static_cast<std::int64_t>(*options_.wait),
           who);
  }
}

void Shares::remove() {
  std::error_code error;
  fs::remove(leases_.path() / "work", error);  // first: without it the folder is not looked at
  fs::remove_all(leases_.path(), error);
}

std::optional<std::int64_t> count_of_shares(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "work", error)) return std::nullopt;
  const Json work = read_json(folder / "work");
  const auto count = work.is_object() ? work.find(kCount) : work.end();
  if (!work.is_object() || count == work.end() || !count->is_number_unsigned() || count->get<std::uint64_t>() < 1 ||
      count->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxShares))
    fail(folder / "work", "says no number of shares, expected '{}' from 1 to {}", kCount, kMaxShares);
  return count->get<std::int64_t>();
}

}  // namespace fp8::io
