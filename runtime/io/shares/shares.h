// SPDX-License-Identifier: Apache-2.0
// Work in a number of shares, larger than that of the processes: each takes the next that is free, and what one that
// died had taken is taken by another. No torch here.
//
//   FOLDER/3.part-0     what taking 0 of share 3 made (leases.h), a file or a folder: its own, whatever else happens
//
//   Shares shares(folder, {{"command", ...}, {"files", ...}}, {.count = 16, .first = rank * 16 / world});
//   shares.work([&](std::int64_t share, const fs::path& place) { ... });
//   shares.join(stands, [&](const std::vector<fs::path>& places) { ... });
#pragma once

#include "fp8/runtime/io/shares/leases.h"

namespace fp8::io {

struct SharesOptions {
  std::int64_t count = 1;  ///< 1 to kMaxShares
  std::int64_t first = 0;  ///< looked at first, so that processes do not all begin with the same
  /// Seconds without news of the others until it is an error that they are not done; 0: no limit. none: does not wait
  /// for them.
  std::optional<double> wait = {};
  std::function<bool()> stop = {};  ///< asked while it waits; true: io::Error "interrupted". May be empty
  LeaseOptions lease = {};
};

inline constexpr std::int64_t kMaxShares = 65536;

class Shares {
 public:
  /// work: what all processes must mean; the number of shares goes into it. Throws io::Error naming what differs.
  Shares(std::filesystem::path folder, Json work, SharesOptions options);

  /// Calls body(share, place) for one share after the other, until all are finished or, without `wait`, held by others.
  /// Its result is on the disk when it returns. Where it throws, the share is given back.
  void work(const std::function<void(std::int64_t share, const std::filesystem::path& place)>& body);
  const std::vector<std::int64_t>& made() const { return made_; }  ///< by this process, in order
  std::vector<std::int64_t> missing() const;
  /// Another process has joined the shares and removed their folder.
  bool removed() const { return leases_.removed(); }

  /// Joins the shares unless stands() says that what comes of them is there: calls body with the place of each share.
  /// One process at a time; the others wait for it, or without `wait` throw. Returns whether body was called. Throws
  /// io::Error naming shares that are missing, and who holds them.
  bool join(const std::function<bool()>& stands,
            const std::function<void(const std::vector<std::filesystem::path>& places)>& body);
  /// Removes the folder with everything in it.
  void remove();

 private:
  class Patience;

  std::string text_of(const std::vector<std::int64_t>& missing) const;
  std::filesystem::path place_of(std::int64_t share, int taking) const;
  std::vector<std::filesystem::path> places() const;

  SharesOptions options_;
  LeaseFolder leases_;
  std::vector<std::string> order_;
  std::vector<std::int64_t> made_;
};

/// The number of shares that the folder's work has; none: there is no such folder. Throws io::Error.
std::optional<std::int64_t> count_of_shares(const std::filesystem::path& folder);

}  // namespace fp8::io
