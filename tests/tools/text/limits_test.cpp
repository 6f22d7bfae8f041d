// SPDX-License-Identifier: Apache-2.0
// The limits of tools/SECURITY.md, from both sides: as much as the page says is read, and one more is refused by name.
// The numbers come from the page, so that neither it nor a reader can change alone.
#include <charconv>

#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/images/image.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/tensors/zip.h"
#include "fp8/runtime/io/yaml/yaml.h"
#include "fp8/tools/text/data/data_file.h"
#include "fp8/tools/text/jinja/machine.h"
#include "fp8/tools/text/tokenizer.h"
#include "tools/text/fixture.h"

namespace fp8::text {
namespace {

using Number = std::uint64_t;

/// What a reader says of an input with so many; "" where it takes it.
using Attempt = std::function<std::string(Number)>;

template <class Read>
std::string said(Read&& read) {
  return test::error_of<io::Error>([&] { read(); });
}

/// A file of zeros, which takes no room on the disk, read by its size alone.
template <class Read>
Attempt of_file(const char* name, Read read) {
  return [=](Number size) {
    const Folder folder;
    fs::resize_file(folder.write(name, ""), size);
    return said([&] { read(folder.path() / name); });
  };
}

std::string copies_of(std::string_view text, Number count) {
  std::string all;
  all.reserve(text.size() * count);
  for (Number i = 0; i < count; ++i) all += text;
  return all;
}

Attempt of_json(std::string open, std::string close) {
  return [=](Number levels) {
    return said([&] { io::parse_json(copies_of(open, levels) + copies_of(close, levels), "f"); });
  };
}

std::string pickle_error(const std::string& opcodes) {
  return said([&] { io::read_pickle("\x80\x04" + opcodes + ".", "f"); });
}

std::string little(Number value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string big(Number value) {
  const std::string turned = little(value, 4);
  return {turned.rbegin(), turned.rend()};
}

std::string header_of_size(Number size) {
  const Folder folder;
  fs::resize_file(folder.write("w.safetensors", little(size, 8)), 8 + size);
  return said([&] { io::SafetensorsFile file(folder.path() / "w.safetensors"); });
}

std::string tensor_of_dimensions(Number dimensions) {
  const Folder folder;
  const io::Json header = {
      {"w", {{"dtype", "F32"}, {"shape", std::vector<int>(dimensions, 1)}, {"data_offsets", {0, 4}}}}};
  const std::string text = header.dump();
  folder.write("w.safetensors", little(text.size(), 8) + text + std::string(4, '\0'));
  return said([&] { io::SafetensorsFile file(folder.path() / "w.safetensors"); });
}

/// The end of a zip, which says how many bytes of zeros before it are the directory.
std::string directory_of_size(Number size) {
  const Folder folder;
  const auto file = folder.write("a.zip", "");
  fs::resize_file(file, size);
  std::ofstream(file, std::ios::binary | std::ios::app)
      << "PK\5\6" << little(0, 4) << little(1, 2) << little(1, 2) << little(size, 4) << little(0, 6);
  return said([&] { io::ZipFile zip(file); });
}

/// A PNG that is cut short where its pixels begin.
std::string picture_of_pixels(Number pixels) {
  const Number width = Number{1} << 13;
  const std::string head = "IHDR" + big(width) + big((pixels + width - 1) / width) + std::string("\x8\x2\0\0\0", 5);
  std::uint32_t sum = ~0U;
  for (const char byte : head) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? 0xedb88320U : 0);
  }
  return said([&] { io::decode_image("\x89PNG\r\n\x1a\n" + big(13) + head + big(~sum) + big(1) + "IDATx", "f"); });
}

std::string idx_of_bytes(Number bytes) {
  const Number width = Number{1} << 16;
  return said([&] { io::parse_idx(std::string("\0\0\x8\2", 4) + big(width) + big((bytes + width - 1) / width), "f"); });
}

std::string row_of_bytes(Number size) {
  const Folder folder;
  JsonRows rows(folder.write("a.jsonl", "\"" + std::string(size - 2, 'x') + "\"\n"));
  io::Json row;
  std::string where;
  return said([&] { rows.next(row, where); });
}

/// A tokenizer.json of one token, with other parts.
std::string tokenizer_with(const io::Json& parts, const io::Json& vocabulary = {{"a", 0}}) {
  const Folder folder;
  io::Json json = {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", io::Json::array()}}}};
  json.update(parts);
  folder.write("tokenizer.json", json.dump());
  return said([&] { Tokenizer tokenizer(folder.path()); });
}

std::string tokenizer_with_ids(Number count) {
  const io::Json ids = std::vector<int>(count, 0), part = {{"SpecialToken", {{"id", "s"}}}};
  return tokenizer_with({{"post_processor",
                          {{"type", "TemplateProcessing"},
                           {"single", io::Json::array({part, {{"Sequence", {{"id", "A"}}}}})},
                           {"special_tokens", {{"s", {{"id", "s"}, {"ids", ids}, {"tokens", {"s"}}}}}}}}});
}

std::string vocabulary_of_lines(Number lines) {
  const Folder folder;
  std::string text = "[UNK]\n";
  for (Number i = 1; i < lines; ++i) text += std::to_string(i) + "\n";
  folder.write("vocab.txt", text);
  return said([&] { Tokenizer tokenizer(folder.path()); });
}

std::string template_error(const std::string& source) {
  return said([&] { jinja::Template(source, "t").render(io::Json::object()); });
}

Attempt of_template(std::string open, std::string inside, std::string close, Number around = 0) {
  return [=](Number count) {
    return template_error(copies_of(open, count - around) + inside + copies_of(close, count - around));
  };
}

Attempt of_expression(std::string before, std::string open, std::string inside, std::string close, std::string after,
                      Number around = 0) {
  return [=](Number count) {
    return template_error(before + copies_of(open, count - around) + inside + copies_of(close, count - around) + after);
  };
}

struct Limit {
  std::string refusal;  ///< what the message of one more has in it
  Attempt attempt;
  bool over_only = false;  ///< as much as is allowed takes too long
};

std::map<std::string, Limit> limits_of_files() {
  const auto rows = [](Number values) {
    return said([&] { io::parse_json("[" + copies_of("0,", values - 2) + "0]", "f"); });
  };
  const auto member = [](Number values) {
    return said([&] {
      io::parse_json_members("{\"a\":[" + copies_of("0,", values - 2) + "0]}", "f", "",
                             [](std::string&&, io::Json&&) {});
    });
  };
  const auto yaml = [](Number values) {  // most of them by aliases of a list that is 1024 with its items
    const std::string first = "- &a [" + copies_of("0,", 1022) + "0]\n";
    const Number lists = (values - 1) / 1024, rest = (values - 1) % 1024;
    return said([&] { io::parse_yaml(first + copies_of("- *a\n", lists - 1) + copies_of("- 0\n", rest), "f"); });
  };
  return {
      {"JSON: levels", {"nested deeper than", of_json("[", "]")}},
      {"JSON: bytes of a file", {"allowed at most", of_file("a.json", io::read_json), true}},
      {"JSON: values", {"values", rows, true}},
      {"JSON: values of a member of a header or an index", {"values in one member", member}},
      {"YAML: levels",
       {"nested deeper than",
        [](Number levels) {
          return said([&] { io::parse_yaml(copies_of("[", levels) + copies_of("]", levels), "f"); });
        }}},
      {"YAML: bytes of a file", {"allowed at most", of_file("a.yaml", io::read_yaml)}},
      {"YAML: values, aliases followed", {"values, aliases followed", yaml}},
      {"safetensors: bytes of the header", {"allowed at most", header_of_size, true}},
      {"safetensors: dimensions of a tensor", {"dimensions, allowed at most", tensor_of_dimensions}},
      {"checkpoint: bytes of the index",
       {"allowed at most",
        of_file(io::kIndexFile, [](const fs::path& file) { io::Checkpoint checkpoint(file.parent_path()); }), true}},
      {"npz: bytes of a file", {"allowed at most", of_file("a.npz", io::read_npz), true}},
      {"zip: bytes of the directory", {"allowed at most", directory_of_size, true}},
      {"pickle: levels",
       {"nested deeper than",
        [](Number levels) { return pickle_error(copies_of("]", levels) + copies_of("a", levels - 1)); }}},
      {"pickle: opcodes",
       {"opcodes", [](Number count) { return pickle_error("N\x94(" + copies_of({"h\0", 2}, count - 6) + "l"); }, true}},
      {"pickle: objects",
       {"objects", [](Number count) { return pickle_error("(" + copies_of("N", count) + "l"); }, true}},
      {"picture: bytes of a file", {"allowed at most", of_file("a.png", io::read_image), true}},
      {"picture: pixels", {"pixels, allowed", picture_of_pixels}},
      {"IDX: bytes of the elements", {"allowed are 4 GiB", idx_of_bytes}},
  };
}

std::map<std::string, Limit> limits_of_texts() {
  const auto tokenizer = [](const fs::path& file) { Tokenizer tokenizer(file.parent_path()); };
  const auto steps = [](Number count) {
    const io::Json list = std::vector<io::Json>(count, io::Json{{"type", "NFC"}});
    return tokenizer_with({{"normalizer", {{"type", "Sequence"}, {"normalizers", list}}}});
  };
  const auto added = [](Number size) {
    return tokenizer_with({{"added_tokens", {{{"id", 1}, {"content", std::string(size, 'x')}}}}});
  };
  return {
      {"data: bytes of a row of JSON", {"is longer than", row_of_bytes}},
      {"tokenizer: bytes of a file other than tokenizer.json",
       {"allowed at most", of_file("tokenizer.model", tokenizer)}},
      {"tokenizer: lines of a vocabulary", {"has more than", vocabulary_of_lines, true}},
      {"tokenizer: largest id",
       {"expected an integer from 0 to", [](Number id) { return tokenizer_with(io::Json::object(), {{"a", id}}); }}},
      {"tokenizer: bytes of a token",
       {"bytes, allowed",
        [](Number size) { return tokenizer_with(io::Json::object(), {{std::string(size, 'x'), 0}}); }}},
      {"tokenizer: bytes of an added token", {"bytes, allowed", added}},
      {"tokenizer: steps of a part", {"steps, allowed", steps}},
      {"tokenizer: ids around a text", {"ids, allowed", tokenizer_with_ids}},
      {"chat template: bytes of a file", {"has more than", of_template("x", "", "")}},
      {"chat template: letters of a name", {"letters, allowed", of_expression("{{ ", "x", "", "", " }}")}},
      {"chat template: tags within each other",
       {"tags are nested too deeply", of_template("{% if 1 %}", "x", "{% endif %}")}},
      {"chat template: brackets within each other",
       {"the expression is nested too deeply", of_expression("{{ ", "(", "1", ")", " }}")}},
      {"chat template: lists within each other",
       {"lists and mappings are nested too deeply",
        of_expression("{% set x = [] %}", "{% set x = [x] %}", "", "", "{{ x }}", 1)}},
      {"chat template: arguments of a call",
       {"a call has more than", of_expression("{{ range(", "1,", "1", "", ") }}", 1)}},
      {"chat template: numbers of a range",
       {"range: more than",
        [](Number count) { return template_error("{% set x = range(" + std::to_string(count) + ") %}"); }}},
      {"chat template: operations",
       {"operations",
        [](Number) {
          return template_error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
        },
        true}},
      {"chat template: bytes of a text",
       {"a text or list of more than",
        [](Number size) { return template_error("{% set x = 'x' * " + std::to_string(size) + " %}"); }}},
  };
}

/// "100 000 000", "2^24", "64 MiB".
Number number_of(std::string text) {
  const auto value = [](const std::string& digits) {
    Number number = 0;
    const auto end = digits.data() + digits.size();
    EXPECT_EQ(std::from_chars(digits.data(), end, number).ptr, end) << digits;
    return number;
  };
  std::erase(text, ' ');
  for (const auto& [unit, shift] : {std::pair{"MiB", 20}, {"GiB", 30}})
    if (text.ends_with(unit)) return value(text.substr(0, text.size() - 3)) << shift;
  return text.starts_with("2^") ? Number{1} << value(text.substr(2)) : value(text);
}

/// The rows of the page: reader and what there is a limit of, and the number.
std::map<std::string, Number> page() {
  std::map<std::string, Number> rows;
  std::istringstream text(read_file(fs::path(FP8_SOURCE_DIR) / "tools/SECURITY.md"));
  std::string line;
  while (std::getline(text, line) && line != "| reader | of | most |") continue;
  std::getline(text, line);  // the rule
  while (std::getline(text, line) && line.starts_with("| ")) {
    const auto first = line.find(" | "), second = line.find(" | ", first + 3);
    rows[line.substr(2, first - 2) + ": " + line.substr(first + 3, second - first - 3)] =
        number_of(line.substr(second + 3, line.size() - second - 5));
  }
  return rows;
}

TEST(Limits, EachIsOnThePageAndHoldsFromBothSides) {
  auto limits = limits_of_files();
  limits.merge(limits_of_texts());
  const auto rows = page();
  for (const auto& [name, limit] : limits) EXPECT_TRUE(rows.contains(name)) << name << " is not on the page";
  for (const auto& [name, most] : rows) {
    ASSERT_TRUE(limits.contains(name)) << name << " has no test";
    const Limit& limit = limits.at(name);
    if (!limit.over_only) {
      EXPECT_THAT(limit.attempt(most), Not(HasSubstr(limit.refusal))) << name;
    }
    EXPECT_THAT(limit.attempt(most + 1), HasSubstr(limit.refusal)) << name;
  }
}

TEST(Limits, ThePickleWriterHasTheReaders) {
  io::PyValue value = io::PyList{};
  for (int i = 1; i < 64; ++i) value = io::PyList{{value}};
  EXPECT_EQ(io::read_pickle(io::write_pickle(value, "f"), "f"), value);
  const io::PyValue deeper = io::PyTuple{{value}};
  EXPECT_THAT(said([&] { io::write_pickle(deeper, "f"); }), HasSubstr("nested deeper than 64 levels"));
}

}  // namespace
}  // namespace fp8::text
