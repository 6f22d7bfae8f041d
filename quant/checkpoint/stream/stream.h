// SPDX-License-Identifier: Apache-2.0
// An output checkpoint made piece by piece: units of work run on all threads, each streams its tensors from the source
// through a few megabytes into place. What is finished is noted with its checksum, so that a run that was cut short can
// go on. No torch here.
//
//   .OUT.partial/      tensors at their final places in files of their final size;
//                      journal.jsonl: one line per finished unit
//   OUT/               appears whole, by rename, when every unit is finished
//   OUT.rank-R-of-N/   instead, where N processes share the work: whole files of it, and share.json with the checksums
//                      of their bytes; joined into OUT
//   .OUT.shares/       instead, where processes take one share after the other (io/shares): the same of each share
#pragma once

#include "fp8/quant/checkpoint/stream/stream_options.h"
#include "fp8/quant/forms/folder.h"

namespace fp8::quant {

/// The buffers and the output of a running unit. One per thread, so nothing in it is shared but the files behind it.
class UnitContext : public TensorSink {
 public:
  /// Buffers that keep their memory from unit to unit.
  std::vector<std::uint8_t> in, out, scratch;
  /// Tells the progress bar and looks whether the user wants to stop (io::Error "interrupted"). Once per chunk read.
  virtual void advance(std::uint64_t source_bytes) = 0;
  /// Copies bytes [offset, offset + size) of a tensor as they are, in the kernel where it can, and advances. A tensor
  /// with NaN or Inf is an io::Error with their number, unless StreamOptions::nonfinite names it. offset: a multiple of
  /// 8.
  virtual void copy(const io::Checkpoint& source, const std::string& from, const std::string& to, std::uint64_t offset,
                    std::uint64_t size) = 0;
  void copy(const io::Checkpoint& source, const std::string& from, const std::string& to) {
    copy(source, from, to, 0, source.info(from).bytes());
  }
};

/// Some tensors of the output that are made together. Runs on any thread, at any time, alone or beside others; its
/// bytes depend on nothing but the source and the options.
struct Unit {
  std::string name;                                   ///< unique: of the module or tensor
  std::vector<io::SafetensorsWriter::Entry> entries;  ///< all tensors that it writes
  std::uint64_t source_bytes = 0;                     ///< that it reads, for progress and for sharing work out
  std::function<void(UnitContext&)> run;              ///< may be empty where there are parts
  /// Pieces that may run side by side, before run(): for a tensor so large that a thread would be left alone with it.
  std::vector<std::function<void(UnitContext&)>> parts;
};

/// Bytes of a part of a unit, of which only what reads at least twice as much has any.
inline constexpr std::uint64_t kPartBytes = std::uint64_t{32} << 20;

/// Runs body(context, first, last) over [0, n), by parts of `part` where there are two or more.
template <class Body>
void run_in_parts(Unit& unit, std::int64_t n, std::int64_t part, const Body& body) {
  std::int64_t at = 0;
  do {
    const std::int64_t end = n <= 2 * part ? n : std::min(at + part, n);
    unit.parts.push_back([=](UnitContext& context) { body(context, at, end); });
    at = end;
  } while (at < n);
}

/// A tensor that stays as it is, as UnitContext::copy() does it.
Unit copy_unit(const io::Checkpoint& source, const std::string& from, const std::string& to);

struct StreamResult {
  std::size_t kept = 0;          ///< units that an earlier run had finished
  bool finished_before = false;  ///< options.resume, and `out` is what a run like this one left: nothing was written
  std::vector<std::string> warnings;
  ShareResult shares = {};
};

/// Runs the units, then finish() (config.json, sidecar, carried files), then puts `out` in place. Throws io::Error:
/// nothing stands under `out` then. A finished output is known by "run" in its fp8.json, which finish() writes:
/// run_mark().
StreamResult write_checkpoint(const std::filesystem::path& out, const std::vector<Unit>& units,
                              const StreamOptions& options, const std::function<void(OutputFolder&)>& finish);

/// After every rank has written its share: checks them to the byte, by the checksums in them, writes the index and what
/// finish() adds, puts `out` in place.
StreamResult join_checkpoint(const std::filesystem::path& out, const std::vector<Unit>& units,
                             const StreamOptions& options, const std::function<void(OutputFolder&)>& finish);

/// The one of the two that `join` asks for; or with options.shares: takes those (not a rank's), and puts them together.
/// join without options.shares->wait does the latter alone, without join the former alone. The files are those that one
/// process would write, to the byte. Killed processes lose their shares to others. What stands already, made by a run
/// like this one, is left as it is.
StreamResult make_checkpoint(const std::filesystem::path& out, const std::vector<Unit>& units,
                             const StreamOptions& options, bool join, const std::function<void(OutputFolder&)>& finish);

/// True if `out` is what options.resume would leave as it is. Throws io::Error if it is in the way of this work:
/// another checkpoint, or a folder that is not empty.
bool stands(const std::filesystem::path& out, const std::vector<Unit>& units, const StreamOptions& options);

/// Returns the folder of options.shares: ".OUT.shares" beside `out`.
std::filesystem::path shares_folder(const std::filesystem::path& out);

/// World sizes, ascending, of the shares that stand beside `out`.
std::vector<std::int64_t> shares_of(const std::filesystem::path& out);

/// The part of an identity that tells the source: names, sizes and modification times of its files.
io::Json identity_of(const std::filesystem::path& model);

/// The mark that runs of the same work have in common, whatever the number of processes: 16 hexadecimal digits.
std::string run_mark(const std::vector<Unit>& units, const StreamOptions& options);

}  // namespace fp8::quant
