// SPDX-License-Identifier: Apache-2.0
// Runs units on all threads into files that stand in a partial folder, and notes in a journal what is finished.
// Internal to checkpoint_stream. No torch here.
//
//   journal.jsonl    {"identity": {...}}                                                         once, first
//                    {"unit": NAME, "pieces": {TENSOR: "SUM SUM ..."}}    per finished unit
//
// The sums are PieceSums (forms/checksums.h), made while the bytes are written; of a piece that was written in several
// runs of bytes (transposed codes) when it is read back at the end of its unit.
#pragma once
#include <exception>

#include "fp8/quant/checkpoint/stream/files.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/json/resumable_file.h"

namespace fp8::quant::stream {

/// The bytes of a tensor that were written.
struct Written {
  PieceSums sums;
  std::uint64_t bytes = 0;
};

class Run {
 public:
  /// Opens the files that this rank has a share in; finds in the journal what an earlier run finished.
  /// Throws io::Error naming what differs if that run was about something else.
  Run(OutputFolder& folder, const std::vector<Unit>& units, const std::vector<File>& files,
      const StreamOptions& options);
  ~Run();

  /// Verifies what was finished and does the rest. Throws the first error.
  void work();
  std::size_t kept() const { return kept_; }
  /// Of all units of this rank, when work() is done.
  const Finished& finished() const { return finished_; }
  /// Closes the journal and removes it.
  void remove_journal();

 private:
  class Worker;
  struct State;
  struct Place {
    std::size_t unit = 0;
    io::PlacedFile* file = nullptr;
    io::SafetensorsLayout::Slot slot;
  };
  struct Task {
    std::size_t unit = 0, part = 0;  ///< part: of unit.parts; their number means unit.run
    std::uint64_t cost = 0;
  };

  void open_files(const std::vector<File>& files);
  void read_journal();
  void clean_folder(const std::vector<File>& files) const;
  void on_all_threads(std::size_t count, const std::function<void(Worker&, std::size_t)>& body);
  std::vector<Task> tasks() const;
  void run_task(Worker& worker, const Task& task);
  void finish_unit(Worker& worker, std::size_t unit);
  void note_finished(std::size_t unit, const io::Json& pieces);
  bool verify(Worker& worker, std::size_t unit, const io::Json& pieces);
  void advance(std::uint64_t bytes);

  OutputFolder& folder_;
  const std::vector<Unit>& units_;
  const StreamOptions& options_;
  std::vector<std::unique_ptr<io::PlacedFile>> files_;
  std::unordered_map<std::string, Place> places_;  // by tensor
  std::vector<std::size_t> mine_;                  // units of this rank
  std::vector<std::unique_ptr<State>> states_;     // of all units; null: another rank's
  std::unique_ptr<io::Journal> journal_;
  std::map<std::size_t, io::Json> left_;  // by unit: the pieces that the journal tells
  Finished finished_;                     // guarded by mutex_

  std::atomic<std::size_t> kept_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards what follows, and the caller's functions
  std::exception_ptr error_;
  std::uint64_t done_ = 0, total_ = 0, shown_ = 0;
};

}  // namespace fp8::quant::stream
