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

/// Decodes an image, whose first bytes decide the form; `name` stands in messages. Throws io::Error: neither form,
/// damaged or cut short, more than `most_pixels`. Gray areas, which decoders make of lost data, are an error too.
Image decode_image(std::string_view bytes, const std::string& name, std::int64_t most_pixels = kMostPixels);

/// Decodes a file of at most 512 MiB.
Image read_image(const std::filesystem::path& path);

/// True if decode_image() knows the form that the name's ending says: .png, .jpg, .jpeg in any case.
bool has_image_name(const std::filesystem::path& path);

// Parts of images, mirrored and of other sizes. No torch here.

struct Box {
  std::int64_t left = 0, top = 0, width = 0, height = 0;
};

/// The part in the box. Pixels outside of the image are black.
Image cropped(const Image& image, const Box& box);

/// Left and right exchanged.
Image mirrored(const Image& image);

/// By a triangle over as many pixels as one of the result covers (and one on each side at least), across and then down,
/// each rounded to 8 bits: the bits of Pillow's resize((width, height), BILINEAR), where that goes across first, as
/// earlier versions always do. Sizes: 1 or more.
///
///   result[i] = sum_j w(j - center) image[j] / sum_j w,   center = (i + 0.5) s - 0.5, s = size / new size
///   w(d) = max(0, 1 - |d| / max(s, 1))
Image resized(const Image& image, std::int64_t width, std::int64_t height);

}  // namespace fp8::io
