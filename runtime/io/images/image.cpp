// SPDX-License-Identifier: Apache-2.0
// libpng and libjpeg end a function with longjmp() where something is wrong (error_exit() of libjpeg must not return).
// The functions that call setjmp() have no object with a destructor, and what they leave is false and a message.
// clang-format off: each needs what stands above it
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
#include "fp8/runtime/io/images/image.h"

#include <png.h>

#include <cmath>
#include <csetjmp>
#include <cstring>

#include "fp8/runtime/io/base/text.h"

namespace fp8::io {
namespace {

/// An image of these sizes, to be filled. Throws io::Error: no pixels, more than `most`, or more than a file of
/// `file_bytes` can hold at `pixels_per_byte`, which would be memory for nothing. where: fit for a message.
Image empty_image(std::int64_t width, std::int64_t height, const std::string& where, std::int64_t most,
                  std::size_t file_bytes, std::int64_t pixels_per_byte) {
  const std::string size = message("{} x {} pixels", width, height);
  if (width < 1 || height < 1) fail_at(where, "an image of {}", size);
  if (width > most / height) fail_at(where, "{}, allowed are {} in all", size, most);
  if (width * height / pixels_per_byte > static_cast<std::int64_t>(file_bytes))
    fail_at(where, "{} bytes can't hold {}", file_bytes, size);
  return {width, height, std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
}

// PNG.

class PngReader {
 public:
  // Rows of zeros compress 1032:1, and a pixel takes a bit at least.
  static constexpr std::int64_t kPixelsPerByte = 8 * 1032;

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

// JPEG.

// Of a progressive file: cameras and encoders write ten or so; more is work without end for a few bytes.
constexpr int kMostScans = 200;

/// True for what libjpeg only warns of, though pixels are not those that were stored.
bool loses_data(int code) {
  return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC ||
         code == JWRN_ARITH_BAD_CODE;
}

class JpegReader {
 public:
  // A block of 8 x 8 takes a bit of its first scan, more where it was not made to look large.
  static constexpr std::int64_t kPixelsPerByte = 1024;

  explicit JpegReader(std::string_view bytes) : bytes_(bytes) {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    errors_.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = on_progress;
    jpeg_.client_data = this;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }  // of one that was not created: nothing
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Up to the pixels.
  bool read_header() {
    if (setjmp(jump_)) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  /// pixels: width * height * 3 bytes.
  bool read_pixels(std::uint8_t* pixels) {
    row_.resize(std::size_t{width()} * 4);
    if (setjmp(jump_)) return false;
    const bool cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      std::uint8_t* to = pixels + std::size_t{jpeg_.output_scanline} * width() * 3;
      JSAMPROW target = cmyk ? row_.data() : to;
      if (jpeg_read_scanlines(&jpeg_, &target, 1) == 1 && cmyk) rgb_of_cmyk(row_.data(), to);
    }
    return true;  // what may follow the last row is of no interest, not even the mark of the end
  }

  std::uint32_t width() const { return jpeg_.image_width; }
  std::uint32_t height() const { return jpeg_.image_height; }
  const char* message() const { return message_; }

 private:
  static JpegReader& self(j_common_ptr jpeg) { return *static_cast<JpegReader*>(jpeg->client_data); }

  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    (*jpeg->err->format_message)(jpeg, self(jpeg).message_);
    std::longjmp(self(jpeg).jump_, 1);
  }
  static void on_message(j_common_ptr jpeg, int level) {
    if (level < 0 && loses_data(jpeg->err->msg_code)) on_error(jpeg);
  }
  static void on_progress(j_common_ptr jpeg) {
    if (self(jpeg).jpeg_.input_scan_number <= kMostScans) return;
    std::snprintf(self(jpeg).message_, sizeof message_, "more than %d scans", kMostScans);
    std::longjmp(self(jpeg).jump_, 1);
  }

  /// Adobe stores 255 minus each of the four.
  void rgb_of_cmyk(const std::uint8_t* row, std::uint8_t* to) const {
    for (std::uint32_t x = 0; x < width(); ++x, row += 4)
      for (int channel = 0; channel < 3; ++channel) {
        const int product = (255 - row[channel]) * row[3] + 128;  // by 255, rounded
        *to++ = static_cast<std::uint8_t>(row[3] - ((product + (product >> 8)) >> 8));
      }
  }

  std::string_view bytes_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::vector<std::uint8_t> row_;  ///< of CMYK
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "";
};

/// form: of the file, for messages.
template <class Reader>
Image decoded(std::string_view bytes, const char* form, const std::string& where, std::int64_t most_pixels) {
  Reader reader(bytes);
  const auto complain = [&] { fail_at(where, "a damaged {} ({})", form, printable(reader.message())); };
  if (!reader.read_header()) complain();
  Image image = empty_image(reader.width(), reader.height(), where, most_pixels, bytes.size(), Reader::kPixelsPerByte);
  if (!reader.read_pixels(image.pixels.data())) complain();
  return image;
}

}  // namespace

Image decode_image(std::string_view bytes, const std::string& name, std::int64_t most_pixels) {
  const std::string where = printable(name, 4096);
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return decoded<PngReader>(bytes, "PNG", where, most_pixels);
  if (bytes.starts_with("\xff\xd8\xff")) return decoded<JpegReader>(bytes, "JPEG", where, most_pixels);
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
