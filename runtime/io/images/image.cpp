// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/images/image.h"

#include "fp8/runtime/io/base/error.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/images/decoders.h"

namespace fp8::io {

Image empty_image(std::int64_t width, std::int64_t height, const std::string& where, std::int64_t most,
                  std::size_t file_bytes, std::int64_t pixels_per_byte) {
  const std::string size = std::to_string(width) + " x " + std::to_string(height) + " pixels";
  if (width < 1 || height < 1) fail_at(where, "an image of " + size);
  if (width > most / height) fail_at(where, size + ", allowed are " + std::to_string(most) + " in all");
  if (width * height / pixels_per_byte > static_cast<std::int64_t>(file_bytes))
    fail_at(where, std::to_string(file_bytes) + " bytes can't hold " + size);
  return {width, height, std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
}

Image decode_image(std::string_view bytes, const std::string& name, std::int64_t most_pixels) {
  const std::string where = printable(name, 4096);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decode_png(bytes, where, most_pixels);
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, where, most_pixels);
  fail_at(where, "is neither PNG nor JPEG");
}

Image read_image(const std::filesystem::path& path) {
  return decode_image(read_file(path, std::uint64_t{1} << 29), path.string());
}

bool has_image_name(const std::filesystem::path& path) {
  const std::string ending = lower(path.extension().string());
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

}  // namespace fp8::io
