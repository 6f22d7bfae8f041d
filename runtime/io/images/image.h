// SPDX-License-Identifier: Apache-2.0
// Pictures of files: PNG (libpng) and JPEG (libjpeg) as RGB of 8 bits, whatever the file has. No torch here.
//
//   gray, palette       the same RGB                    16 bits    the upper 8 of them
//   alpha               left out, not blended           CMYK       (1 - C)(1 - K), stored inverted as Adobe has it
// as Pillow's Image.open(file).convert("RGB") does. Orientation tags and color profiles have no effect.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::io {

struct Image {
  std::int64_t width = 0, height = 0;
  std::vector<std::uint8_t> pixels;  ///< height x width x 3, the first row at the top
};

/// The largest image that is decoded without being asked to: 268 MB of pixels.
inline constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;

/// The form is told by the first bytes; `name` stands in messages. Throws io::Error: neither form, damaged or cut
/// short, more than `most_pixels`. What a decoder makes of lost data (gray areas) is an error too.
Image decode_image(std::string_view bytes, const std::string& name, std::int64_t most_pixels = kMostPixels);

/// The same of a file of at most 512 MiB.
Image read_image(const std::filesystem::path& path);

/// Whether decode_image() knows the form that the name's ending says: .png, .jpg, .jpeg in any case.
bool has_image_name(const std::filesystem::path& path);

}  // namespace fp8::io
