// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/picture.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/ensure.h"
#include "fp8/runtime/io/base/error.h"
#include "fp8/tools/commands/inspect/dot_letters.h"
#include "fp8/tools/commands/inspect/loss_plot.h"

namespace fp8::commands {
namespace {

constexpr int kScale = 2;        // pixels of the PNG for one of the SVG
constexpr double kLetter = 7.2;  // of a text of 12 px: none is wider on average
constexpr double kDash = 4;

std::string hex(Rgb c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

const char* anchor_word(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

/// Code points: those that are not ASCII are one box each.
std::string letters_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xC0) != 0x80) out += byte >= 0x20 && byte < 0x7F ? c : '\x7F';
  }
  return out;
}

/// Rows of pixels, top to bottom.
class Canvas {
 public:
  explicit Canvas(const Picture& p)
      : width_(static_cast<int>(std::ceil(p.width * kScale))), height_(static_cast<int>(std::ceil(p.height * kScale))) {
    io::ensure(width_ > 0 && height_ > 0, "a picture of some size");
    row_bytes_ = 1 + 3 * static_cast<std::size_t>(width_);  // a filter's number before each row: 0, none
    bytes_.assign(row_bytes_ * static_cast<std::size_t>(height_), '\xFF');
    for (int y = 0; y < height_; ++y) bytes_[row_bytes_ * static_cast<std::size_t>(y)] = 0;
    for (const auto& r : p.rectangles) fill(r.x, r.y, r.width, r.height, r.color);
    for (const auto& l : p.lines) draw(l);
    for (const auto& t : p.texts) draw(t);
  }
  int width() const { return width_; }
  int height() const { return height_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void dot(int x, int y, Rgb c) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_) return;
    char* at = bytes_.data() + row_bytes_ * static_cast<std::size_t>(y) + 1 + 3 * static_cast<std::size_t>(x);
    at[0] = static_cast<char>(c.r), at[1] = static_cast<char>(c.g), at[2] = static_cast<char>(c.b);
  }
  void fill(double x, double y, double w, double h, Rgb c) {
    const auto pixel = [](double v) { return static_cast<int>(std::lround(v * kScale)); };
    const int right = std::max(pixel(x + w), pixel(x) + 1), bottom = std::max(pixel(y + h), pixel(y) + 1);
    for (int row = pixel(y); row < bottom; ++row)
      for (int col = pixel(x); col < right; ++col) dot(col, row, c);
  }
  void draw(const Picture::Line& l) {
    const double length = std::abs(l.x2 - l.x1) + std::abs(l.y2 - l.y1), step = l.dashed ? kDash : length;
    for (double at = 0; at < length; at += l.dashed ? 2 * step : step) {
      const double part = std::min(step, length - at);
      if (l.y1 == l.y2)
        fill(std::min(l.x1, l.x2) + at, l.y1, part, 0.5, {});
      else
        fill(l.x1, std::min(l.y1, l.y2) + at, 0.5, part, {});
    }
  }
  void draw(const Picture::Text& t) {
    const std::string letters = letters_of(t.text);
    const double wide = static_cast<double>(letters.size()) * (kDotColumns + 1);
    double x = t.anchor == Anchor::start ? t.x : t.anchor == Anchor::middle ? t.x - wide / 2 : t.x - wide;
    for (const char letter : letters) {
      const auto& columns = kDotLetters[static_cast<std::size_t>(letter - ' ')];
      for (int c = 0; c < kDotColumns; ++c)
        for (int r = 0; r < kDotRows; ++r)
          if ((columns[c] >> r & 1) != 0) fill(x + c, t.y - kDotRows + r, 1, 1, t.color);
      x += kDotColumns + 1;
    }
  }

  int width_, height_;
  std::size_t row_bytes_;
  std::string bytes_;
};

void add_be32(std::string& out, std::uint32_t v) {
  for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(v >> shift & 0xFF);
}

void add_chunk(std::string& out, const char* type, const std::string& data) {
  add_be32(out, static_cast<std::uint32_t>(data.size()));
  const std::string body = type + data;
  out += body;
  add_be32(out, static_cast<std::uint32_t>(
                    crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()))));
}

}  // namespace

double text_width(const std::string& text) { return kLetter * static_cast<double>(letters_of(text).size()); }

std::string svg_of(const Picture& p) {
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      p.width, p.height);
  for (const auto& r : p.rectangles)
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", r.x, r.y,
                       r.width, r.height, hex(r.color));
  for (const auto& l : p.lines)
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#000\"{}/>\n", l.x1,
                       l.y1, l.x2, l.y2, l.dashed ? " stroke-dasharray=\"4 4\"" : "");
  for (const auto& t : p.texts)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", t.x, t.y,
                       anchor_word(t.anchor), hex(t.color), xml_text(t.text));
  return svg + "</svg>\n";
}

std::string png_of(const Picture& picture) {
  const Canvas canvas(picture);
  uLongf size = compressBound(static_cast<uLong>(canvas.bytes().size()));
  std::string packed(size, '\0');
  const int status =
      compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(canvas.bytes().data()),
               static_cast<uLong>(canvas.bytes().size()));
  io::ensure(status == Z_OK, "room for what zlib makes");
  packed.resize(size);
  std::string header;
  add_be32(header, static_cast<std::uint32_t>(canvas.width()));
  add_be32(header, static_cast<std::uint32_t>(canvas.height()));
  header.append({8, 2, 0, 0, 0});  // bits, RGB, and the only compression, filters and interlace that there are
  std::string png("\x89PNG\r\n\x1A\n", 8);
  add_chunk(png, "IHDR", header);
  add_chunk(png, "IDAT", packed);
  add_chunk(png, "IEND", "");
  return png;
}

void write_picture(const std::filesystem::path& file, const Picture& picture) {
  const auto ending = file.extension().string();
  if (ending != ".svg" && ending != ".png")
    throw io::Error(file.string() + ": found a name ending in '" + ending + "', allowed: .svg, .png");
  io::AtomicFile out(file);
  out.append(ending == ".svg" ? svg_of(picture) : png_of(picture));
  out.commit();
}

}  // namespace fp8::commands
