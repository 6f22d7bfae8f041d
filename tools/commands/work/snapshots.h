// SPDX-License-Identifier: Apache-2.0
// Progress that survives kill -9: a hidden folder beside the output, removed when the run succeeds. No torch here.
//
//   FOLDER/lock    held (flock) by the run that writes here
//   FOLDER/state   a line with the checksum of the rest, then {"identity", "progress"};
//                  replaced whole (temporary name, fsync, rename)
//   FOLDER/...     the file that progress["hidden"]["file"] names (hidden_states.h)
//
// identity: the options and files of the run, key by key; a snapshot is resumed only by a run with the same identity.
#pragma once
#include <chrono>
#include <memory>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::commands {

class Snapshots {
 public:
  /// seconds: between two snapshots; more where one takes so long that they would cost over 2 % of the time.
  Snapshots(std::filesystem::path folder, double seconds);
  /// Removes the folder unless it holds a snapshot in force.
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  /// Sets the identity that snapshots get, and that a snapshot must have to be resumed.
  void identify(io::Json identity) { identity_ = std::move(identity); }
  /// resume: the progress of the snapshot in the folder, null if there is none; else removes what is there and returns
  /// null. Throws io::Error if another run holds the folder, if the snapshot is damaged, and naming the first key of
  /// the identity that differs.
  io::Json begin(bool resume);
  /// The identity in the folder's snapshot; null if there is none. For what a resumed run takes from it.
  io::Json stored_identity() const;

  const std::filesystem::path& path() const { return folder_; }  ///< absolute; may not be there
  /// Makes the folder, if it isn't there, and returns it.
  const std::filesystem::path& folder();
  bool due() const;
  bool saved() const { return saved_; }
  /// Writes a snapshot. make() returns the progress (its time counts as the snapshot's); null: nothing is written.
  template <class Make>
  bool save(const Make& make) {
    const auto start = Clock::now();
    const io::Json progress = make();
    if (!progress.is_null()) write(progress);
    last_ = Clock::now();
    cost_ = std::chrono::duration<double>(last_ - start).count();
    return !progress.is_null();
  }
  /// The run succeeded: removes the folder.
  void remove();

 private:
  using Clock = std::chrono::steady_clock;
  void write(const io::Json& progress);
  void lock();

  std::filesystem::path folder_;
  double seconds_, cost_ = 0;  ///< cost: of the last snapshot, seconds
  Clock::time_point last_ = Clock::now();
  io::Json identity_;
  io::Descriptor lock_;
  std::unique_ptr<io::ListedTemporary> listed_;  ///< the folder, until it holds a snapshot
  bool saved_ = false, made_ = false;
};

// The files that a run reads, as they were when it began: a file that is replaced, cut short or written to during
// the run is detected. No torch here.

class SourceFiles {
 public:
  SourceFiles() = default;
  /// The files that make up a model (a folder's configuration, tokenizer and *.safetensors files, or the one file) and
  /// `more`. A missing file is left out: its reader reports it.
  SourceFiles(const std::filesystem::path& model, const std::vector<std::filesystem::path>& more);

  /// Throws io::Error naming the first file that is not as it was.
  void check_unchanged() const;
  /// {path: [bytes, modified ns]}: the same for another process that reads the same files.
  io::Json to_json() const;
  /// {name: [bytes, checksum of the first and the last 64 KiB]}: the same for a copy of them on another machine. Throws
  /// io::Error for a file that can't be read.
  io::Json ends() const;

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0, device = 0, inode = 0;
    std::int64_t modified = 0;  ///< ns
    bool exists = false;
    bool operator==(const File&) const = default;
  };
  static File look_at(const std::filesystem::path& path);
  std::vector<File> files_;
};

// The facts that processes compare before they exchange messages: those of the command, and these. No torch here.

/// `facts` and what a program brings by itself: "version" and "instruction set". The same numbers need both.
io::Json with_program(io::Json facts);

// OUT/log.jsonl: one object a line for each optimizer step.
//
//   {"step": 1, "epoch": 0, "loss": 5.54, "lr": 1e-05, "grad_norm": 3.2, "tokens": 4096, "seconds": 0.31,
//    "tokens_per_second": 13213.1, "memory": {"in_use": 21000000, "max": 91000000}}
//    and, where there is something to say: "eval_loss", "loss_scale" (16-mixed), "skipped": true (loss or grad_norm is
//    null then), "fp8": {...}
//    every --logging-steps on hpu: "memory_allocated (GB)", "max_memory_allocated (GB)", "total_memory_available (GB)"
//
// tokens, seconds: of this step. memory: bytes of the device's tensors; with --device cpu {"resident_max"} of the
// process. A line is one write(2): a killed run leaves whole lines, or one cut short, which a resumed run drops.

/// In the folder of a run: this log, and what the run was asked for.
inline constexpr char kTrainLogFile[] = "log.jsonl", kTrainSettingsFile[] = "train.json";

/// The lines of a log; a last line cut short is left out. Throws io::Error naming file and line for anything else that
/// is no such log.
std::vector<io::Json> read_log(const std::filesystem::path& path);

/// Calls found(entry, offset behind its line) for each whole line until it returns false. Throws as read_log().
void for_each_step(const std::filesystem::path& path, const std::function<bool(io::Json, std::size_t)>& found);

}  // namespace fp8::commands
