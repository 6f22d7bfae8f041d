// SPDX-License-Identifier: Apache-2.0
// libpng ends a function with longjmp() where something is wrong. The functions below that call setjmp() have no object
// with a destructor, and what they leave is false and a message; everything else happens in their caller.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::io {
namespace {

// Rows of zeros compress 1032:1, and a pixel takes a bit at least.
constexpr std::int64_t kPngPixelsPerByte = 8 * 1032;

class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, [](png_structp, png_const_charp) {});
    ensure(png_ != nullptr, "libpng to begin");
    info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Up to the pixels.
  bool read_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    if (info_ == nullptr) png_error(png_, "out of memory");
    png_set_read_fn(png_, this, read);
    png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // the caller has its own
    png_read_info(png_, info_);
    return true;
  }

  /// pixels: width * height * 3 bytes.
  bool read_pixels(std::uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_))) return false;
    const int color = png_get_color_type(png_, info_);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    if (!(color & PNG_COLOR_MASK_COLOR)) png_set_gray_to_rgb(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    const int passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    const std::size_t row = png_get_rowbytes(png_, info_);
    if (row != std::size_t{3} * width()) png_error(png_, "rows are not RGB");
    for (int pass = 0; pass < passes; ++pass)
      for (std::size_t y = 0; y < height(); ++y) png_read_row(png_, pixels + y * row, nullptr);
    png_read_end(png_, nullptr);
    return true;
  }

  std::uint32_t width() const { return png_get_image_width(png_, info_); }
  std::uint32_t height() const { return png_get_image_height(png_, info_); }
  const char* message() const { return message_; }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto& self = *static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(self.message_, sizeof self.message_, "%s", message);
    png_longjmp(png, 1);
  }
  static void read(png_structp png, png_bytep to, std::size_t count) {
    auto& self = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self.left_.size()) png_error(png, "cut short");
    std::memcpy(to, self.left_.data(), count);
    self.left_.remove_prefix(count);
  }

  std::string_view left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[160] = "";
};

}  // namespace

Image decode_png(std::string_view bytes, const std::string& where, std::int64_t most_pixels) {
  PngReader reader(bytes);
  const auto complain = [&] { fail_at(where, "a damaged PNG ({})", printable(reader.message())); };
  if (!reader.read_header()) complain();
  Image image = empty_image(reader.width(), reader.height(), where, most_pixels, bytes.size(), kPngPixelsPerByte);
  if (!reader.read_pixels(image.pixels.data())) complain();
  return image;
}

}  // namespace fp8::io
