// SPDX-License-Identifier: Apache-2.0
// libjpeg calls error_exit() where something is wrong, which must not return: here it is longjmp(). The functions that
// call setjmp() have no object with a destructor, and what they leave is false and a message.
// clang-format off: each needs what stands above it
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::io {
namespace {

// A block of 8 x 8 takes a bit of its first scan, more where it was not made to look large.
constexpr std::int64_t kJpegPixelsPerByte = 1024;
// Of a progressive file: cameras and encoders write ten or so; more is work without end for a few bytes.
constexpr int kMostScans = 200;

/// True for what libjpeg only warns of, though pixels are not those that were stored.
bool loses_data(int code) {
  return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC ||
         code == JWRN_ARITH_BAD_CODE;
}

class JpegReader {
 public:
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

  /// pixels: width * height * 3 bytes. row: width * 4.
  bool read_pixels(std::uint8_t* pixels, std::uint8_t* row) {
    if (setjmp(jump_)) return false;
    const bool cmyk = jpeg_.jpeg_color_space == JCS_CMYK || jpeg_.jpeg_color_space == JCS_YCCK;
    jpeg_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      std::uint8_t* to = pixels + std::size_t{jpeg_.output_scanline} * width() * 3;
      JSAMPROW target = cmyk ? row : to;
      if (jpeg_read_scanlines(&jpeg_, &target, 1) == 1 && cmyk) rgb_of_cmyk(row, to);
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
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace

Image decode_jpeg(std::string_view bytes, const std::string& where, std::int64_t most_pixels) {
  JpegReader reader(bytes);
  const auto complain = [&] { fail_at(where, "a damaged JPEG ({})", printable(reader.message())); };
  if (!reader.read_header()) complain();
  Image image = empty_image(reader.width(), reader.height(), where, most_pixels, bytes.size(), kJpegPixelsPerByte);
  std::vector<std::uint8_t> row(static_cast<std::size_t>(image.width) * 4);
  if (!reader.read_pixels(image.pixels.data(), row.data())) complain();
  return image;
}

}  // namespace fp8::io
