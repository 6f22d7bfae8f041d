// SPDX-License-Identifier: Apache-2.0
// Pieces of work that processes take from a folder which all of them see, over NFS too: no locks, and no clock that two
// machines would have to agree on. No torch here.
//
//   FOLDER/work         what the work is: the first process writes it, and all others must mean the same
//   FOLDER/3.lease-0    piece 3 is taken; .lease-1: taken over from a holder that is gone. The highest counts
//   FOLDER/3.done       it is finished, and by which taking
//
// A file appears with all of its text, or not at all, under a name that no other process has given (link(2)). The
// holder touches its lease again and again; who finds it untouched for as long as `expiry` takes the piece over, at
// once where the holder is known to be gone or has given it back (a time of change of 0). To be wrong about a holder
// does no harm: each taking writes into a place of its own, and the first to finish counts.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"

// Which process holds something, in words that another machine understands too, and whether it is known to be gone. No
// torch here.

namespace fp8::io {

/// A pid means something in its namespace of its machine's boot alone, and until it is given to another process: hence
/// the time at which the process began.
struct Holder {
  std::string host;   ///< for messages
  std::string boot;   ///< /proc/sys/kernel/random/boot_id; "" where there is none
  std::string space;  ///< "pid:[4026531836]"
  std::int64_t pid = 0;
  std::uint64_t began = 0;  ///< clock ticks after the boot; 0: not known

  /// "n1, process 4711".
  std::string text() const;
  bool operator==(const Holder&) const = default;
};

Holder this_process();

/// True where that is certain: a process of this machine, seen from here, that has ended (a zombie has, too). Of
/// another machine's nothing is known.
bool is_gone(const Holder& holder);

Json to_json(const Holder& holder);
/// None for anything that to_json() would not make.
std::optional<Holder> holder_from_json(const Json& json);

struct LeaseOptions {
  double expiry = 60;  ///< seconds without a sign of life
  bool beats = true;   ///< a thread touches the leases that are held, four times per expiry
  std::function<void(const std::string&)> warn = {};  ///< told of files that are no leases, once each; may be empty
  std::function<double()> clock = {};                 ///< seconds that never go back; empty: this machine's
  std::function<bool(const Holder&)> gone = is_gone;  ///< true if a holder is known to have ended
};

class LeaseFolder;

/// A piece that this process has taken. Given back when it goes.
class Lease {
 public:
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const std::string& piece() const { return piece_; }
  int taking() const { return taking_; }
  /// A sign of life. The folder's thread does it, too.
  void touch() const;
  /// Marks the piece, whose result is on the disk, as finished. False: another taking was first, and counts.
  bool finish();

 private:
  friend class LeaseFolder;
  Lease(LeaseFolder& folder, std::string piece, int taking);

  LeaseFolder& folder_;
  std::string piece_;
  int taking_;
  ListedTemporary listed_;
  bool finished_ = false;
};

class LeaseFolder {
 public:
  /// Makes the folder where it isn't there. Throws io::Error naming it if its work is another one.
  LeaseFolder(std::filesystem::path folder, const Json& work, LeaseOptions options);
  ~LeaseFolder();
  LeaseFolder(const LeaseFolder&) = delete;
  LeaseFolder& operator=(const LeaseFolder&) = delete;

  const std::filesystem::path& path() const { return folder_; }
  /// The first of `pieces` (a to z, 0 to 9) that is not taken, else the first that can be taken over; null: all are
  /// finished or held.
  std::unique_ptr<Lease> take(const std::vector<std::string>& pieces);
  /// By which taking it was finished; none: it is not. Throws io::Error for a mark that is none.
  std::optional<int> finished(const std::string& piece) const;
  /// Its holder, "n1, process 4711"; "" where it has none, as far as this process knows.
  std::string holder_of(const std::string& piece) const;
  /// Another process has removed the folder: everything in it was done.
  bool removed() const;

 private:
  friend class Lease;

  /// The state of a lease of another process.
  struct Watched {
    int taking = -1;
    std::uint64_t inode = 0;
    std::int64_t touched = 0;      ///< ns
    double since = 0;              ///< when it was first seen like this, by clock
    std::optional<Holder> holder;  ///< none: it can't be read
  };

  void settle_work(const Json& work) const;
  std::map<std::string, int> takings() const;
  std::unique_ptr<Lease> try_to_take(const std::string& piece, int taking);
  bool is_over(const std::string& piece, int taking);
  void read_lease(const std::filesystem::path& path, Watched& watched);
  std::filesystem::path lease_path(const std::string& piece, int taking) const;
  std::filesystem::path done_path(const std::string& piece) const;
  void beat();
  void warn_once(const std::filesystem::path& path, const std::string& what);

  std::filesystem::path folder_;
  LeaseOptions options_;
  std::string work_;  ///< its checksum
  std::map<std::string, Watched> watched_;
  std::set<std::string> warned_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable ends_;
  std::set<const Lease*> held_;
  bool end_ = false;
  std::thread beats_;
};

/// Writes `text` under a name that must be new: whole or not at all, on the disk when it returns. False: the name is
/// taken. Throws io::Error.
bool write_new_file(const std::filesystem::path& path, std::string_view text);

}  // namespace fp8::io
