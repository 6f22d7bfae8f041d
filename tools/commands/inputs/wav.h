// SPDX-License-Identifier: Apache-2.0
// Sound from a WAV file: RIFF, PCM of 8, 16, 24 or 32 bits or f32, mixed to one channel. No torch here.
//
//   "RIFF" u32 size "WAVE" | chunks: id[4] u32 size, data, one pad byte if size is odd
//   "fmt "  u16 format (1 PCM, 3 float, 0xFFFE: the first 16 bits of the GUID at byte 24)  u16 channels  u32 rate
//           u32 bytes per second  u16 bytes per frame  u16 bits
//   "data"  frames; every other chunk is passed over
//
// A sample of n bits is its integer / 2^(n-1), exactly (8 bits are unsigned: (u - 128) / 128); channels are averaged.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::commands {

struct Wav {
  std::int64_t sample_rate = 0;
  std::int64_t channels = 0;  ///< of the file; `samples` is mono
  std::vector<float> samples;
};

/// Reads a file of at most 1 GiB. Throws io::Error naming the file, what was found and what is allowed.
Wav read_wav(const std::filesystem::path& path);

/// The same of a file's bytes; `name` stands in messages. Takes memory in proportion to `bytes`, whatever the header
/// says.
Wav parse_wav(std::string_view bytes, const std::string& name);

}  // namespace fp8::commands
