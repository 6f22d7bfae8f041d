// SPDX-License-Identifier: Apache-2.0
// The files of a checkpoint in the making: which unit stands in which file, which file is which process' share, and
// whether two runs are about the same work. Internal to checkpoint_stream. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/stream/stream.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant::stream {

inline constexpr char kJournalName[] = "journal.jsonl";

struct File {
  std::string name;                ///< "model-00001-of-00002.safetensors"
  std::vector<std::size_t> units;  ///< those that stand in it, whole
  std::uint64_t bytes = 0;         ///< of tensor data
  std::int64_t rank = 0;           ///< whose share it is
};

/// Units in their order, as many per file as fit: at most options.shard_bytes, and with N processes at most an Nth of
/// all, so that each has work. Ranks get whole files, the largest first, each to who has least.
std::vector<File> lay_out(const std::vector<Unit>& units, const StreamOptions& options);

/// Throws io::Error naming `shown`.
io::SafetensorsLayout layout_of(const File& file, const std::vector<Unit>& units, const std::filesystem::path& shown);

/// Writes model.safetensors.index.json if there is more than one file.
void write_index(OutputFolder& folder, const std::vector<File>& files, const std::vector<Unit>& units);

/// Where a rank's share is put.
std::filesystem::path share_folder(const std::filesystem::path& out, std::int64_t rank, std::int64_t world_size);

/// options.identity, and what the layout depends on.
io::Json whole_identity(const std::vector<Unit>& units, const StreamOptions& options);

/// Throws io::Error if the source's files are no longer those of the identity, or a carried one has changed or gone.
void require_unchanged(const StreamOptions& options);

}  // namespace fp8::quant::stream
