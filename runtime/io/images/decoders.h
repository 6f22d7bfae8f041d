// SPDX-License-Identifier: Apache-2.0
// The two decoders behind image.h, and what they check alike. Internal to runtime/io/images; no torch here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "fp8/runtime/io/images/image.h"

namespace fp8::io {

/// where: fit for a message.
Image decode_png(std::string_view bytes, const std::string& where, std::int64_t most_pixels);
Image decode_jpeg(std::string_view bytes, const std::string& where, std::int64_t most_pixels);

/// An image of these sizes, to be filled. Throws io::Error: no pixels, more than `most`, or more than a file of
/// `file_bytes` can hold at `pixels_per_byte`, which would be memory for nothing.
Image empty_image(std::int64_t width, std::int64_t height, const std::string& where, std::int64_t most,
                  std::size_t file_bytes, std::int64_t pixels_per_byte);

}  // namespace fp8::io
