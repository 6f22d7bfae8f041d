// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/text/data/documents.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace fp8::text {

Documents::Documents(DataFiles files, std::filesystem::path folder, RowUse use, std::function<void()> ask)
    : files_(std::move(files)), ask_(std::move(ask)), texts_(std::move(folder), use, ask_) {}

bool Documents::open() {
  if (text_ || rows_) return true;
  if (file_ >= files_.size()) return false;
  if (data_kind(files_[file_]) == DataKind::rows)
    rows_.emplace(files_[file_]);
  else
    text_.emplace(files_[file_]);
  return true;
}

bool Documents::read(std::uint64_t cap, Document& document) {
  if (ask_) ask_();
  for (; open(); ++file_, text_.reset(), rows_.reset()) {
    if (text_ && text_->read(cap, document)) return true;
    if (!rows_) continue;
    io::Json row;
    std::string where;
    if (!row_ && rows_->next(row, where)) row_ = texts_.text_of(row, where);
    if (!row_) continue;
    document = {row_->text, true, row_->special};
    return true;
  }
  return false;
}

void Documents::advance() {
  row_.reset();
  if (text_) text_->advance();
}

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

}  // namespace

TextFile::TextFile(std::filesystem::path path) : path_(std::move(path)), data_(open_data(path_)) {}

std::string TextFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  std::string result(std::min(count, data_.size - offset), '\0');
  io::read_at(data_.file.get(), data_name(path_), offset, result.data(), result.size());
  return result;
}

bool TextFile::separator_after(std::uint64_t offset) const {
  const std::uint64_t overlap = kSeparator.size() - 1;
  for (; offset < data_.size; offset += kBlock) {
    if (bytes(offset, kBlock + overlap).find(kSeparator) != std::string::npos) return true;
  }
  return false;
}

bool TextFile::read(std::uint64_t cap, Document& document) {
  if (offset_ >= data_.size) return false;
  std::string text;
  std::size_t end = std::string::npos;
  while (end == std::string::npos && text.size() < cap && offset_ + text.size() < data_.size) {
    const std::size_t searched = text.size() - std::min(text.size(), kSeparator.size() - 1);
    text += bytes(offset_ + text.size(), std::min(kBlock, cap + kSeparator.size() - text.size()));
    end = text.find(kSeparator, searched);
  }
  const bool separator = end != std::string::npos;
  document.complete = separator || offset_ + text.size() >= data_.size;
  next_offset_ = separator ? offset_ + end + kSeparator.size() : data_.size;
  if (separator) text.resize(end);
  require_text(path_, text, offset_, !document.complete);
  // The first document's newlines stay only if no separator follows; looking for one is needed only if it starts with
  // one.
  const bool starts_with_newline = !text.empty() && (text[0] == '\n' || text[0] == '\r');
  const bool several =
      separator || offset_ > 0 || (!document.complete && starts_with_newline && separator_after(offset_));
  document.text = unify_line_ends(std::move(text));
  if (several) strip_newlines(document.text, document.complete);
  return true;
}

}  // namespace fp8::text
