// SPDX-License-Identifier: Apache-2.0
// Sizes against Pillow's (fixtures/make_images.py); parts and mirror images by hand.
#include "fp8/runtime/io/images/image.h"
#include "fp8/runtime/io/json/json.h"
#include "runtime/io/images/images_test.h"

namespace fp8::io {
namespace {

TEST(Resized, HasPillowsBits) {
  const Image image = read_image(image_folder() / "rgb.png");
  const Json all = parse_json(image_bytes("expected.json"), "expected.json").at("resized rgb.png");
  EXPECT_EQ(all.size(), 7u);
  for (const auto& [size, rgb] : all.items()) {
    const std::size_t x = size.find('x');
    const std::int64_t width = std::stoll(size), height = std::stoll(size.substr(x + 1));
    const Image found = resized(image, width, height);
    EXPECT_EQ(found.width, width);
    EXPECT_EQ(found.height, height);
    EXPECT_EQ(hex_of(found.pixels), rgb.get<std::string>()) << size;
  }
}

/// Pixel (x, y) is [x, y, 7].
Image grid(std::int64_t width, std::int64_t height) {
  Image image{width, height, {}};
  for (std::uint8_t y = 0; y < height; ++y)
    for (std::uint8_t x = 0; x < width; ++x) image.pixels.insert(image.pixels.end(), {x, y, 7});
  return image;
}

TEST(Cropped, TakesTheBoxAndBlackAround) {
  EXPECT_EQ(hex_of(cropped(grid(4, 3), {1, 2, 2, 1}).pixels), "010207020207");
  EXPECT_EQ(hex_of(cropped(grid(2, 2), {-1, 1, 2, 2}).pixels), "000000000107000000000000");
  EXPECT_EQ(hex_of(cropped(grid(2, 2), {5, 0, 1, 1}).pixels), "000000");
}

TEST(Mirrored, ExchangesLeftAndRight) { EXPECT_EQ(hex_of(mirrored(grid(3, 1)).pixels), "020007010007000007"); }

}  // namespace
}  // namespace fp8::io
