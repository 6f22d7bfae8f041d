// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <optional>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/inputs/script_input.h"

namespace fp8::commands {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
constexpr std::uint32_t kMaxRate = 768000, kMaxChannels = 64;
constexpr std::uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

struct Format {
  std::uint16_t code = 0, channels = 0, frame_bytes = 0, bits = 0;
  std::uint32_t rate = 0;
};

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Wav read() {
    if (bytes_.size() < 12 || bytes_.substr(0, 4) != "RIFF" || bytes_.substr(8, 4) != "WAVE") {
      fail("found no RIFF/WAVE header, allowed: a .wav file of PCM or f32 samples");
    }
    std::optional<Format> format;
    std::size_t at = 12;
    while (at + 8 <= bytes_.size()) {
      const auto id = bytes_.substr(at, 4);
      const std::uint64_t size = number<std::uint32_t>(bytes_, at + 4);
      at += 8;
      if (size > bytes_.size() - at) {
        fail("chunk " + io::in_quotes(id) + ": found " + std::to_string(bytes_.size() - at) +
             " bytes, its header says " + std::to_string(size));
      }
      const auto chunk = bytes_.substr(at, size);
      if (id == "fmt ") format = parse_format(chunk);
      if (id == "data") {
        if (!format.has_value()) fail("found the chunk 'data' before 'fmt '");
        return decode(*format, chunk);
      }
      at += size + size % 2;
    }
    fail("found no chunk 'data'");
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw io::Error(name_ + ": " + what); }

  template <class T>
  static T number(std::string_view bytes, std::size_t at) {  // WAV is little-endian, as is every machine we build for
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  }

  Format parse_format(std::string_view chunk) const {
    if (chunk.size() < 16) fail("chunk 'fmt ': found " + std::to_string(chunk.size()) + " bytes, allowed: 16 or more");
    Format f;
    f.code = number<std::uint16_t>(chunk, 0);
    f.channels = number<std::uint16_t>(chunk, 2);
    f.rate = number<std::uint32_t>(chunk, 4);
    f.frame_bytes = number<std::uint16_t>(chunk, 12);
    f.bits = number<std::uint16_t>(chunk, 14);
    if (f.code == kExtensible) {
      if (chunk.size() < 40)
        fail("chunk 'fmt ': an extensible format of " + std::to_string(chunk.size()) + " bytes, allowed: 40");
      f.code = number<std::uint16_t>(chunk, 24);
    }
    const bool known = (f.code == kPcm && (f.bits == 8 || f.bits == 16 || f.bits == 24 || f.bits == 32)) ||
                       (f.code == kFloat && f.bits == 32);
    if (!known) {
      fail("found format " + std::to_string(f.code) + " of " + std::to_string(f.bits) +
           " bits, allowed: PCM (1) of 8, 16, 24 or 32 bits, float (3) of 32");
    }
    if (f.channels == 0 || f.channels > kMaxChannels)
      fail("found " + std::to_string(f.channels) + " channels, allowed: 1 to " + std::to_string(kMaxChannels));
    if (f.rate == 0 || f.rate > kMaxRate)
      fail("found a sampling rate of " + std::to_string(f.rate) + ", allowed: 1 to " + std::to_string(kMaxRate));
    if (f.frame_bytes != f.channels * (f.bits / 8)) {
      fail("found " + std::to_string(f.frame_bytes) +
           " bytes per frame, allowed: " + std::to_string(f.channels * (f.bits / 8)) + " (channels * bits / 8)");
    }
    return f;
  }

  static double sample(const Format& f, std::string_view data, std::size_t at) {
    switch (f.bits) {
      case 8:
        return (static_cast<double>(static_cast<std::uint8_t>(data[at])) - 128.0) / 128.0;
      case 16:
        return number<std::int16_t>(data, at) / 32768.0;
      case 24: {
        const std::uint32_t u = static_cast<std::uint8_t>(data[at]) |
                                static_cast<std::uint32_t>(static_cast<std::uint8_t>(data[at + 1])) << 8 |
                                static_cast<std::uint32_t>(static_cast<std::uint8_t>(data[at + 2])) << 16;
        return (static_cast<std::int32_t>(u << 8) >> 8) / 8388608.0;
      }
      default:
        return f.code == kFloat ? static_cast<double>(number<float>(data, at))
                                : number<std::int32_t>(data, at) / 2147483648.0;
    }
  }

  Wav decode(const Format& f, std::string_view data) const {
    if (data.empty()) fail("found no samples");
    if (data.size() % f.frame_bytes != 0) {
      fail("chunk 'data': found " + std::to_string(data.size()) + " bytes, allowed: a multiple of the frame's " +
           std::to_string(f.frame_bytes));
    }
    Wav wav{f.rate, f.channels, std::vector<float>(data.size() / f.frame_bytes)};
    const std::size_t width = f.bits / 8;
    for (std::size_t i = 0; i < wav.samples.size(); ++i) {
      double sum = 0;
      for (std::size_t c = 0; c < f.channels; ++c) sum += sample(f, data, i * f.frame_bytes + c * width);
      wav.samples[i] = static_cast<float>(sum / f.channels);
      if (!std::isfinite(wav.samples[i]))
        fail("frame " + std::to_string(i) + ": found NaN or infinity, allowed: finite samples");
    }
    return wav;
  }

  std::string_view bytes_;
  const std::string& name_;
};

}  // namespace

Wav parse_wav(std::string_view bytes, const std::string& name) { return Reader(bytes, name).read(); }

Wav read_wav(const std::filesystem::path& path) { return parse_wav(io::read_file(path, kMaxFile), path.string()); }

}  // namespace fp8::commands
