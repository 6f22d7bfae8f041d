// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/images/image.h"

#include <algorithm>
#include <cmath>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {

Image empty_image(std::int64_t width, std::int64_t height, const std::string& where, std::int64_t most,
                  std::size_t file_bytes, std::int64_t pixels_per_byte) {
  const std::string size = message("{} x {} pixels", width, height);
  if (width < 1 || height < 1) fail_at(where, "an image of {}", size);
  if (width > most / height) fail_at(where, "{}, allowed are {} in all", size, most);
  if (width * height / pixels_per_byte > static_cast<std::int64_t>(file_bytes))
    fail_at(where, "{} bytes can't hold {}", file_bytes, size);
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

namespace {

constexpr int kWeightBits = 32 - 8 - 2;  // of fractions: a sum of 255 times weights fits 32 bits

/// Which pixels make one of the result: `weights.size() / count` weights for each, from pixel first[i] on.
struct Weights {
  std::vector<std::int64_t> first, size;
  std::vector<std::int32_t> weights;
  std::int64_t most = 0;

  Weights(std::int64_t from, std::int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to), support = std::max(scale, 1.0);
    most = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
    weights.assign(static_cast<std::size_t>(to * most), 0);
    std::vector<double> exact(static_cast<std::size_t>(most));
    for (std::int64_t i = 0; i < to; ++i) {
      const double center = (static_cast<double>(i) + 0.5) * scale;
      const auto begin = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
      const auto end = std::min(from, static_cast<std::int64_t>(center + support + 0.5));
      double sum = 0;
      for (std::int64_t j = begin; j < end; ++j) {
        const double distance = std::abs((static_cast<double>(j) - center + 0.5) * (1.0 / support));
        sum += exact[static_cast<std::size_t>(j - begin)] = distance < 1.0 ? 1.0 - distance : 0.0;
      }
      for (std::int64_t j = 0; j < end - begin; ++j) {
        const double weight = sum != 0.0 ? exact[static_cast<std::size_t>(j)] / sum : 0.0;
        weights[static_cast<std::size_t>(i * most + j)] =
            static_cast<std::int32_t>(0.5 + weight * (std::int64_t{1} << kWeightBits));
      }
      first.push_back(begin);
      size.push_back(end - begin);
    }
  }
};

/// Sums of `count` elements that lie `stride` apart, with the weights, to 8 bits.
std::uint8_t weighted(const std::uint8_t* from, std::int64_t stride, const std::int32_t* weights, std::int64_t count) {
  std::int32_t sum = 1 << (kWeightBits - 1);
  for (std::int64_t j = 0; j < count; ++j) sum += from[j * stride] * weights[j];
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

Image sized(std::int64_t width, std::int64_t height) {
  return {width, height, std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
}

Image across(const Image& image, std::int64_t width) {
  const Weights w(image.width, width);
  Image out = sized(width, image.height);
  auto* to = out.pixels.data();
  for (std::int64_t y = 0; y < image.height; ++y) {
    const auto* row = image.pixels.data() + y * image.width * 3;
    for (std::size_t x = 0; x < static_cast<std::size_t>(width); ++x)
      for (int channel = 0; channel < 3; ++channel)
        *to++ =
            weighted(row + w.first[x] * 3 + channel, 3, &w.weights[x * static_cast<std::size_t>(w.most)], w.size[x]);
  }
  return out;
}

Image down(const Image& image, std::int64_t height) {
  const Weights w(image.height, height);
  Image out = sized(image.width, height);
  auto* to = out.pixels.data();
  const std::int64_t row = image.width * 3;
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    const auto* from = image.pixels.data() + w.first[y] * row;
    for (std::int64_t x = 0; x < row; ++x)
      *to++ = weighted(from + x, row, &w.weights[y * static_cast<std::size_t>(w.most)], w.size[y]);
  }
  return out;
}

}  // namespace

Image cropped(const Image& image, const Box& box) {
  ensure(box.width > 0 && box.height > 0, "a box with pixels");
  Image out = sized(box.width, box.height);
  const std::int64_t left = std::max<std::int64_t>(box.left, 0), right = std::min(box.left + box.width, image.width);
  for (std::int64_t y = std::max<std::int64_t>(box.top, 0); y < std::min(box.top + box.height, image.height); ++y) {
    if (left >= right) break;
    const auto* from = image.pixels.data() + (y * image.width + left) * 3;
    std::copy(from, from + (right - left) * 3, out.pixels.data() + ((y - box.top) * box.width + left - box.left) * 3);
  }
  return out;
}

Image mirrored(const Image& image) {
  Image out = sized(image.width, image.height);
  auto* to = out.pixels.data();
  for (std::int64_t y = 0; y < image.height; ++y)
    for (std::int64_t x = image.width; x-- > 0;) {
      const auto* from = image.pixels.data() + (y * image.width + x) * 3;
      to = std::copy(from, from + 3, to);
    }
  return out;
}

Image resized(const Image& image, std::int64_t width, std::int64_t height) {
  ensure(width > 0 && height > 0, "a size of 1 or more");
  if (width == image.width && height == image.height) return image;
  if (width == image.width) return down(image, height);
  Image out = across(image, width);
  return height == image.height ? out : down(out, height);
}

}  // namespace fp8::io
