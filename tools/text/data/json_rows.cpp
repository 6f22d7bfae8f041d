// SPDX-License-Identifier: Apache-2.0
// See json_rows.h.
#include "fp8/tools/text/data/json_rows.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace fp8::text {
namespace {

constexpr std::uint64_t kRowBlock = std::uint64_t{1} << 20;
constexpr std::string_view kSpaces = " \t\r\n";

}  // namespace

JsonRows::JsonRows(std::filesystem::path path)
    : path_(std::move(path)), name_(io::printable(data_name(path_), 4096)), data_(open_data(path_)) {
  if (peek_past_spaces() == '[') {
    array_ = true;
    ++position_;
  } else {  // lines are counted from the first
    offset_ = 0;
    position_ = 0;
    buffer_.clear();
  }
}

void JsonRows::too_long(const std::string& place) const {
  throw io::Error(place + ": is longer than " + std::to_string(kMaxRow) + " bytes");
}

bool JsonRows::fill() {
  if (offset_ >= data_.size) return false;
  buffer_.assign(std::min(kRowBlock, data_.size - offset_), '\0');
  position_ = 0;
  io::read_at(data_.file.get(), name_, offset_, buffer_.data(), buffer_.size());
  offset_ += buffer_.size();
  return true;
}

/// The byte at position_, after white space; -1 at the end.
int JsonRows::peek_past_spaces() {
  while (true) {
    position_ = std::min(buffer_.find_first_not_of(kSpaces, position_), buffer_.size());
    if (position_ < buffer_.size()) return static_cast<unsigned char>(buffer_[position_]);
    if (!fill()) return -1;
  }
}

bool JsonRows::next_line(std::string& line) {
  line.clear();
  while (true) {
    const std::size_t end = buffer_.find('\n', position_);
    line.append(buffer_, position_, end == std::string::npos ? end : end - position_);
    position_ = end == std::string::npos ? buffer_.size() : end + 1;
    if (line.size() > kMaxRow) too_long(name_ + ":" + std::to_string(count_ + 1));
    if (end != std::string::npos) break;
    if (!fill()) {
      if (line.empty()) return false;
      break;
    }
  }
  ++count_;
  return true;
}

/// An element up to the comma or bracket behind it, which is passed.
bool JsonRows::next_element(std::string& element) {
  const std::string place = name_ + "[" + std::to_string(count_) + "]";
  if (ended_) return false;
  if (peek_past_spaces() == ']' && count_ == 0) {
    ++position_;
    ended_ = true;
  }
  element.clear();
  int depth = 0;
  bool in_string = false, escaped = false;
  while (!ended_) {
    if (position_ >= buffer_.size() && !fill()) throw io::Error(place + ": the array has no end, expected ']'");
    const char c = buffer_[position_++];
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == ']')) {
      ended_ = c == ']';
      ++count_;
      if (ended_ && peek_past_spaces() != -1) throw io::Error(name_ + ": found more behind the array");
      return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    element += c;
    if (element.size() > kMaxRow) too_long(place);
  }
  if (peek_past_spaces() != -1) throw io::Error(name_ + ": found more behind the array");
  return false;
}

bool JsonRows::next(io::Json& row, std::string& where) {
  std::string text;
  if (array_) {
    if (!next_element(text)) return false;
    where = name_ + "[" + std::to_string(count_ - 1) + "]";
  } else {
    do {
      if (!next_line(text)) return false;
    } while (text.find_first_not_of(" \t\r") == std::string::npos);
    where = name_ + ":" + std::to_string(count_);
  }
  row = io::parse_json(text, where);
  return true;
}

}  // namespace fp8::text
