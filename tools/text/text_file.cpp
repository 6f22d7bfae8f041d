// SPDX-License-Identifier: Apache-2.0
// See text_file.h.
#include "fp8/tools/text/text_file.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::text {
namespace {

constexpr std::string_view kSeparator = "<|endoftext|>";
constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;

std::string unify_line_ends(std::string text) {
  if (text.find('\r') == std::string::npos) return text;
  std::size_t size = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text[size++] = text[i] == '\r' ? '\n' : text[i];
  }
  text.resize(size);
  return text;
}

void strip_newlines(std::string& text, bool at_end) {
  if (at_end) text.erase(text.find_last_not_of('\n') + 1);
  text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
}

/// For a message: "'txt', 'id'".
std::string fields_of(const io::Json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(io::in_quotes(name));
  return names.empty() ? "none" : io::joined_first(names);
}

}  // namespace

TextFile::TextFile(std::filesystem::path path) : path_(std::move(path)), file_(io::open_regular(path_, &size_)) {}

std::string TextFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  std::string result(std::min(count, size_ - offset), '\0');
  io::read_at(file_.get(), path_, offset, result.data(), result.size());
  return result;
}

bool TextFile::separator_after(std::uint64_t offset) const {
  const std::uint64_t overlap = kSeparator.size() - 1;
  for (; offset < size_; offset += kBlock) {
    if (bytes(offset, kBlock + overlap).find(kSeparator) != std::string::npos) return true;
  }
  return false;
}

bool TextFile::read(std::uint64_t cap, Document& document) {
  if (offset_ >= size_) return false;
  std::string text;
  std::size_t end = std::string::npos;
  while (end == std::string::npos && text.size() < cap && offset_ + text.size() < size_) {
    const std::size_t searched = text.size() - std::min(text.size(), kSeparator.size() - 1);
    text += bytes(offset_ + text.size(), std::min(kBlock, cap + kSeparator.size() - text.size()));
    end = text.find(kSeparator, searched);
  }
  const bool separator = end != std::string::npos;
  document.complete = separator || offset_ + text.size() >= size_;
  next_offset_ = separator ? offset_ + end + kSeparator.size() : size_;
  if (separator) text.resize(end);
  // The first document's newlines stay only if no separator follows; looking for one is needed only if it starts with
  // one.
  const bool starts_with_newline = !text.empty() && (text[0] == '\n' || text[0] == '\r');
  const bool several =
      separator || offset_ > 0 || (!document.complete && starts_with_newline && separator_after(offset_));
  document.text = unify_line_ends(std::move(text));
  if (several) strip_newlines(document.text, document.complete);
  return true;
}

JsonLines::JsonLines(std::filesystem::path path) : path_(std::move(path)), file_(io::open_regular(path_, &size_)) {}

bool JsonLines::next_line(std::string& line) {
  line.clear();
  while (true) {
    const std::size_t end = buffer_.find('\n', position_);
    line.append(buffer_, position_, end == std::string::npos ? end : end - position_);
    position_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (line.size() > kMaxLine)
      io::fail(path_,
               "line " + std::to_string(line_number_ + 1) + " is longer than " + std::to_string(kMaxLine) + " bytes");
    if (end != std::string::npos) break;
    if (offset_ >= size_) {
      if (line.empty()) return false;
      break;
    }
    buffer_.assign(std::min(kBlock, size_ - offset_), '\0');
    position_ = 0;
    io::read_at(file_.get(), path_, offset_, buffer_.data(), buffer_.size());
    offset_ += buffer_.size();
  }
  ++line_number_;
  return true;
}

bool JsonLines::next(std::string& text) {
  std::vector<std::string> values;
  if (!next({"text"}, values)) return false;
  text = std::move(values[0]);
  return true;
}

bool JsonLines::next(const std::vector<std::string>& fields, std::vector<std::string>& values) {
  std::string line;
  do {
    if (!next_line(line)) return false;
  } while (line.find_first_not_of(" \t\r") == std::string::npos);
  const std::string where = path_.string() + ":" + std::to_string(line_number_);
  const io::Json json = io::parse_json(line, where);
  const std::string place = io::printable(where, 4096);
  if (!json.is_object())
    throw io::Error(place + ": is a JSON " + json.type_name() + ", expected an object with the field '" +
                    fields.front() + "'");
  values.clear();
  for (const auto& name : fields) {
    const auto field = json.find(name);
    if (field == json.end()) throw io::Error(place + ": has no field '" + name + "', found " + fields_of(json));
    if (!field->is_string())
      throw io::Error(place + ": field '" + name + "' is a JSON " + field->type_name() + ", expected a string");
    values.push_back(field->get<std::string>());
  }
  return true;
}

}  // namespace fp8::text
