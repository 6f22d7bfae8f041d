// SPDX-License-Identifier: Apache-2.0
// A share of a checkpoint on disk: whole files, and share.json with how they stood and the checksums of their bytes, by
// which it is checked before it is joined. Internal to checkpoint_stream. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "fp8/quant/checkpoint/stream/files.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant::stream {

/// What share.json says beside "checksums": {unit: {tensor: [[begin, end, "checksum"], ...]}}, of the bytes as they
/// were given to be written.
io::Json share_json(const std::vector<Unit>& units, const std::vector<File>& files, std::int64_t rank,
                    const StreamOptions& options);
inline constexpr char kChecksums[] = "checksums";

/// Throws io::Error if a file is not as long as it should be, or has another header.
void check_head(const std::filesystem::path& path, int fd, std::uint64_t size, const io::SafetensorsLayout& layout);

/// Throws io::Error if the files of `rank` are not in `folder` in full, to the byte. What this machine wrote and nobody
/// touched since (as_written.h) is not read again.
void check_share(const std::filesystem::path& folder, const std::vector<Unit>& units, const std::vector<File>& files,
                 std::int64_t rank, const StreamOptions& options);

/// Puts the files into `folder`. shares: where those of each rank are, in files that are laid out as `parts`. Linked
/// where a file is the same in both, else copied tensor by tensor.
void assemble(OutputFolder& folder, const std::vector<Unit>& units, const std::vector<File>& files,
              const std::vector<File>& parts, const std::vector<std::filesystem::path>& shares,
              const StreamOptions& options);

}  // namespace fp8::quant::stream
