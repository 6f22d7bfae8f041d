// SPDX-License-Identifier: Apache-2.0
// Where everything in a safetensors file to be written will stand: decided before the first byte of it. No torch here.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::io {

/// Of the JSON that describes a file: what the format's own library allows.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct SafetensorsLayout {
  struct Slot {
    std::uint64_t begin = 0, size = 0;  ///< begin: in the file
  };

  /// Throws io::Error naming `shown` (and the tensor): duplicate or bad names, sizes that overflow, a header over 100
  /// MB.
  SafetensorsLayout(const std::vector<SafetensorsWriter::Entry>& entries, const std::filesystem::path& shown,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  std::string head;  ///< the file's first bytes: length and header
  std::uint64_t file_bytes = 0;
  std::unordered_map<std::string, Slot> slots;
};

/// Throws io::Error "SHOWN: tensor 'NAME': ..." unless [offset, offset + size) lies within the tensor.
void check_within(const SafetensorsLayout::Slot& slot, const std::string& name, std::uint64_t offset,
                  std::uint64_t size, const std::filesystem::path& shown);

}  // namespace fp8::io
