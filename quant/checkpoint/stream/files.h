// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint in the making: which unit stands in which file, which file is which process' share, and
// whether two runs are about the same work. Internal to checkpoint_stream. No torch here.
#pragma once

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/quant/forms/checksums.h"

namespace fp8::quant::stream {

struct File {
  std::string name;                ///< "model-00001-of-00002.safetensors"
  std::vector<std::size_t> units;  ///< those that stand in it, whole
  std::uint64_t bytes = 0;         ///< of tensor data
  std::int64_t rank = 0;           ///< whose share it is
};

/// Units in their order, as many per file as fit: at most options.shard_bytes, and with N processes at most an Nth of
/// all, so that each has work. Ranks get whole files, the largest first, each to who has least.
std::vector<File> lay_out(const std::vector<Unit>& units, const StreamOptions& options);

/// Throws io::Error naming `final_path`.
io::SafetensorsLayout layout_of(const File& file, const std::vector<Unit>& units,
                                const std::filesystem::path& final_path);

/// Writes model.safetensors.index.json if there is more than one file.
void write_index(OutputFolder& folder, const std::vector<File>& files, const std::vector<Unit>& units);

/// By unit, {TENSOR: "SUM SUM ..."}: PieceSums of the bytes as they were given to be written.
using Finished = std::map<std::string, io::Json>;

/// Notes the checksums of the files' headers and tensors for fp8.json. finished: of all units.
void note_sums(OutputFolder& folder, const std::vector<File>& files, const std::vector<Unit>& units,
               const Finished& finished);

/// PREFIX + the name of `out` + SUFFIX, in the folder where that is.
std::filesystem::path beside(const std::filesystem::path& out, const std::string& prefix, const std::string& suffix);

/// Returns the folder of a rank's share.
std::filesystem::path share_folder(const std::filesystem::path& out, std::int64_t rank, std::int64_t world_size);

/// options.identity, and what the layout depends on.
io::Json whole_identity(const std::vector<Unit>& units, const StreamOptions& options);

/// Throws io::Error if the source's files are no longer those of the identity, or a carried one has changed or gone.
void require_unchanged(const StreamOptions& options);

// How files stood on disk when they had been written: by that another process of the same machine knows, without
// reading a byte, that they were not touched since. share.json holds it:
//
//   "as_written": {"boot": "3f2a...", "at": ns, "files": {"model.safetensors": [size, device, inode, ns]}}
//
// The time is that of the inode's last change, which no program can put back. It moves in ticks of some milliseconds,
// so a file is known by it only where it lies well before `at`, for which as_written() waits: a later write would show.
// After another boot, on another machine or file system nothing is known, and every byte is read.

inline constexpr char kAsWritten[] = "as_written";

/// Of `names` in `folder`, whose bytes are on the disk. Waits 25 ms after the last write at most. Throws io::Error for
/// one that is not there.
io::Json as_written(const std::filesystem::path& folder, const std::vector<std::string>& names);

/// True if `record`, of as_written(), says that the open file `fd` is as it was. False for any other JSON.
bool is_as_written(const io::Json& record, const std::string& name, int fd);

// A share of a checkpoint on disk: whole files, and share.json with how they stood and the checksums of their bytes, by
// which it is checked before it is joined. Internal to checkpoint_stream. No torch here.

/// The members of share.json beside "checksums", which are Finished.
io::Json share_json(const std::vector<Unit>& units, const std::vector<File>& files, std::int64_t rank,
                    const StreamOptions& options);
inline constexpr char kChecksums[] = "checksums";

/// Throws io::Error if a file is not as long as it should be, or has another header.
void check_head(const std::filesystem::path& path, int fd, std::uint64_t size, const io::SafetensorsLayout& layout);

/// Throws io::Error if the files of `rank` are not in `folder` in full, to the byte. Files that this machine wrote and
/// that were not touched since (as_written()) are not read. Returns the checksums.
Finished check_share(const std::filesystem::path& folder, const std::vector<Unit>& units,
                     const std::vector<File>& files, std::int64_t rank, const StreamOptions& options);

/// Puts the files into `folder`. shares: where those of each rank are, in files that are laid out as `parts`. Linked
/// where a file is the same in both, else copied tensor by tensor.
void assemble(OutputFolder& folder, const std::vector<Unit>& units, const std::vector<File>& files,
              const std::vector<File>& parts, const std::vector<std::filesystem::path>& shares,
              const StreamOptions& options);

}  // namespace fp8::quant::stream
