// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/tools/commands/inspect/loss_plot.h"

namespace fp8::commands {
namespace {

constexpr double kLetter = 7.2;  // of a text of 12 px: none is wider on average

std::string hex(Rgb c) { return fmt::format("#{:02x}{:02x}{:02x}", c.r, c.g, c.b); }

const char* anchor_word(Anchor anchor) {
  return anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
}

}  // namespace

double text_width(const std::string& text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };  // a code point
  return kLetter * static_cast<double>(std::count_if(text.begin(), text.end(), begins));
}

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

void write_picture(const std::filesystem::path& file, const Picture& picture) {
  io::AtomicFile out(file);
  out.append(svg_of(picture));
  out.commit();
}

}  // namespace fp8::commands
