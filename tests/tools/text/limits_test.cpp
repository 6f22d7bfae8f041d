// SPDX-License-Identifier: Apache-2.0
// The limits that tools/SECURITY.md promises, each from both sides: its number is taken, and one more is refused.
#include <zlib.h>

#include "fp8/configs/name_patterns.h"
#include "fp8/runtime/io/images/image.h"
#include "fp8/runtime/io/pickle/pickle.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/yaml/yaml.h"
#include "fp8/tools/text/jinja/machine.h"
#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using testing::Folder;

std::string lists(std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

std::string values(std::size_t count) {  // the list is one
  std::string text = "[0";
  for (std::size_t i = 2; i < count; ++i) text += ",0";
  return text + "]";
}

std::string safetensors(const std::string& entry, std::size_t header) {
  std::string text = entry;
  text.resize(header, ' ');
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header >> 8 * i & 0xff);
  return bytes + text;
}

void read_dimensions(std::size_t count) {
  std::string shape = "1";
  for (std::size_t i = 1; i < count; ++i) shape += ",1";
  const std::string entry = R"({"w":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})";
  const io::SafetensorsFile file("t", safetensors(entry, entry.size()) + "x");
}

/// Gray and black, 8192 pixels wide.
std::string png(std::size_t pixels) {
  constexpr std::size_t kWidth = 8192;
  const auto big_endian = [](std::size_t value) {
    std::string out;
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(value >> shift & 0xff);
    return out;
  };
  const auto chunk = [&](const std::string& type, const std::string& data) {
    const std::string body = type + data;
    const auto crc = ::crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
    return big_endian(data.size()) + body + big_endian(crc);
  };
  const std::size_t height = (pixels + kWidth - 1) / kWidth;
  const std::string rows(height * (kWidth + 1), '\0');
  uLongf size = ::compressBound(rows.size());
  std::string packed(size, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(size);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", big_endian(kWidth) + big_endian(height) + '\x08' + std::string(4, '\0')) +
         chunk("IDAT", packed) + chunk("IEND", "");
}

void read_added_token(std::size_t bytes) {
  const Folder folder;
  folder.write("tokenizer.json", R"({"added_tokens":[{"id":1,"content":")" + std::string(bytes, 'x') +
                                     R"(","special":true}],"normalizer":null,"pre_tokenizer":null,"decoder":null,)"
                                     R"("model":{"type":"BPE","vocab":{"a":0},"merges":[]}})");
  const Tokenizer tokenizer(folder.path());
}

void read_yaml_file(std::size_t bytes) {
  const Folder folder;
  io::read_yaml(folder.write("a.yaml", "a: 1\n" + std::string(bytes - 5, '#')));
}

/// A reader by the row of the table, given so many.
const std::map<std::string, void (*)(std::size_t)> kReaders = {
    {"header of a safetensors file", [](std::size_t n) { const io::SafetensorsFile file("t", safetensors("{}", n)); }},
    {"dimensions of a tensor", read_dimensions},
    {"nesting of JSON", [](std::size_t n) { io::parse_json(lists(n), "t"); }},
    {"values of a JSON file", [](std::size_t n) { io::parse_json(values(n), "t"); }},
    {"nesting of YAML", [](std::size_t n) { io::parse_yaml(lists(n), "t"); }},
    {"values of a YAML file", [](std::size_t n) { io::parse_yaml(values(n), "t"); }},
    {"length of a YAML file", read_yaml_file},
    {"nesting of a pickle",
     [](std::size_t n) { io::read_pickle(std::string(n, ']') + std::string(n - 1, 'a') + ".", "t"); }},
    {"size of an image", [](std::size_t n) { io::decode_image(png(n), "t"); }},
    {"regular expression", [](std::size_t n) { const configs::PythonRegex regex(std::string(n, 'x'), "t"); }},
    {"chat template", [](std::size_t n) { const jinja::Template made(std::string(n, 'x'), "t"); }},
    {"added token", read_added_token},
};

/// "| nesting of JSON | 64 levels |" of the section Limits.
std::map<std::string, std::size_t> promised() {
  std::map<std::string, std::size_t> limits;
  std::ifstream page(std::filesystem::path(FP8_SOURCE_DIR) / "tools/SECURITY.md");
  std::string line;
  while (std::getline(page, line) && line != "## Limits") continue;
  while (std::getline(page, line) && !line.starts_with("## ")) {
    const auto end = line.find(" | ");
    if (!line.starts_with("| ") || end == std::string::npos || line.starts_with("| of ")) continue;
    std::string digits;
    for (const char c : line.substr(end))
      if (c >= '0' && c <= '9') digits += c;
    limits[line.substr(2, end - 2)] = std::stoul(digits);
  }
  return limits;
}

TEST(Limits, EachIsAsThePageSaysFromBothSides) {
  const auto limits = promised();
  EXPECT_EQ(limits.size(), kReaders.size());
  for (const auto& [name, most] : limits) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(kReaders.contains(name));
    EXPECT_NO_THROW(kReaders.at(name)(most));
    EXPECT_NE(test::one_line_error<io::Error>([&] { kReaders.at(name)(most + 1); }), "");
  }
}

}  // namespace
}  // namespace fp8::text
