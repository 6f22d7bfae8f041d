// SPDX-License-Identifier: Apache-2.0
// Piped input is kept in a file without a name, since it is read more than once.
#include "fp8/tools/text/data/data_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "fp8/runtime/io/base/reach.h"
#include "fp8/tools/text/unicode/characters.h"
#include "kjv_calib_txt.h"

namespace fp8::text {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLook = 64 << 10;  // bytes

struct Packed {
  std::string_view magic;
  const char* name;
  const char* way;  ///< to make text of it; %: the file
};
constexpr Packed kPacked[] = {{"\x1f\x8b", "gzip", "zcat % | fp8 ... --data -"},
                              {"\x28\xb5\x2f\xfd", "zstd", "zstdcat % | fp8 ... --data -"},
                              {"\xfd\x37zXZ", "xz", "xzcat % | fp8 ... --data -"},
                              {"BZh", "bzip2", "bzcat % | fp8 ... --data -"},
                              {"PK\x03\x04", "zip", "unzip -p % | fp8 ... --data -"},
                              {"PAR1", "Parquet",
                               "python3 -c \"import pandas; pandas.read_parquet(%).to_json('data.jsonl', "
                               "orient='records', lines=True)\", or duckdb "
                               "-c \"copy (from %) to 'data.jsonl' (format json)\""},
                              {"GGUF", "GGUF", "it is a model"},
                              {"%PDF", "PDF", "pdftotext % - | fp8 ... --data -"},
                              {"\x7f"
                               "ELF",
                               "a program", "text or rows of JSON"},
                              {"\x89PNG", "PNG", "text or rows of JSON"}};

[[noreturn]] void refuse_packed(const fs::path& file, const Packed& packed) {
  std::string way = packed.way;
  const std::string name = io::shell_word(file.string());
  if (file != kStandardInput)
    for (auto at = way.find('%'); at != std::string::npos; at = way.find('%', at + name.size()))
      way.replace(at, 1, name);
  io::fail(data_name(file),
           io::message("is {}, expected text{}", packed.name, file == kStandardInput ? "" : ": " + way));
}

/// Standard input as a file, read once.
int standard_input(std::uint64_t& size) {
  static std::uint64_t bytes = 0;
  static const int kept = [] {
    struct stat status = {};
    if (::fstat(STDIN_FILENO, &status) != 0) io::fail_errno(data_name(kStandardInput), "read", errno);
    if (S_ISREG(status.st_mode) && ::lseek(STDIN_FILENO, 0, SEEK_CUR) == 0) {
      bytes = static_cast<std::uint64_t>(status.st_size);
      return STDIN_FILENO;
    }
    const int fd = io::unnamed_file();
    const fs::path name = fs::temp_directory_path() / "fp8-input";
    if (fd < 0) io::fail_errno(name, "create", errno);
    std::vector<char> block(std::size_t{1} << 20);
    while (true) {
      const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) io::fail_errno(data_name(kStandardInput), "read", errno);
      if (count == 0) return fd;
      for (ssize_t done = 0; done < count;) {
        const ssize_t written = ::write(fd, block.data() + done, static_cast<std::size_t>(count - done));
        if (written < 0 && errno != EINTR)
          io::fail_errno(name, "write", errno, static_cast<std::uint64_t>(count - done));
        done += std::max<ssize_t>(written, 0);
      }
      bytes += static_cast<std::uint64_t>(count);
    }
  }();
  size = bytes;
  return kept;
}

int built_in_file() {
  static const int kept = [] {
    const auto text = kCalibrationText;
    const int fd = ::memfd_create("fp8-text", MFD_CLOEXEC);
    if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      io::fail_errno(data_name(kBuiltInText), "keep", errno);
    return fd;
  }();
  return kept;
}

OpenData opened(const fs::path& file) {
  OpenData data;
  if (file != kStandardInput && file != kBuiltInText) {
    data.file = io::open_regular(file, &data.size);
    return data;
  }
  const int fd = file == kStandardInput ? standard_input(data.size) : built_in_file();
  if (file == kBuiltInText) data.size = kCalibrationText.size();
  data.file = io::Descriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (data.file.get() < 0) io::fail_errno(data_name(file), "open", errno);
  return data;
}

std::string head_of(const fs::path& file, const OpenData& data) {
  std::string head(std::min<std::uint64_t>(kLook, data.size), '\0');
  io::read_at(data.file.get(), data_name(file), 0, head.data(), head.size());
  return head;
}

bool begins_rows(std::string_view head) {
  const auto first = head.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  if (head[first] == '{') return true;
  const auto second = head.find_first_not_of(" \t\r\n", first + 1);
  return head[first] == '[' && second != std::string_view::npos && (head[second] == '{' || head[second] == '"');
}

constexpr std::uint64_t kRowBlock = std::uint64_t{1} << 20;
constexpr std::string_view kSpaces = " \t\r\n";

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

std::string data_name(const DataFiles& files) {
  if (files.empty()) return "no file";
  return data_name(files[0]) + (files.size() > 1 ? " and " + std::to_string(files.size() - 1) + " more" : "");
}

DataKind data_kind(const fs::path& file) {
  if (file == kBuiltInText) return DataKind::text;
  if (file == kStandardInput) return begins_rows(head_of(file, opened(file))) ? DataKind::rows : DataKind::text;
  const io::Descriptor there = io::open_regular(file);  // a folder or a missing file is the better complaint
  const std::string suffix = io::lower(file.extension().string());
  if (suffix == ".txt" || suffix == ".md") return DataKind::text;
  if (suffix == ".jsonl" || suffix == ".json") return DataKind::rows;
  if (suffix == ".safetensors") return DataKind::tensors;
  if (suffix == ".parquet") refuse_packed(file, *std::ranges::find(kPacked, std::string_view("PAR1"), &Packed::magic));
  open_data(file);
  io::fail(file, "has the suffix {}, allowed: .txt, .md, .jsonl, .json, .safetensors, and - for standard input",
           io::in_quotes(file.extension().string()));
}

DataKind data_kind(const DataFiles& files) {
  DataKind all = DataKind::text;
  for (const auto& file : files) {
    const DataKind kind = data_kind(file);
    if (kind == DataKind::tensors && files.size() > 1)
      io::fail(data_name(file), "stands beside other files, allowed: .safetensors alone");
    all = std::max(all, kind);
  }
  return all;
}

OpenData open_data(const fs::path& file) {
  OpenData data = opened(file);
  const std::string head = head_of(file, data);
  for (const auto& packed : kPacked)
    if (std::string_view(head).starts_with(packed.magic)) refuse_packed(file, packed);
  if (const auto nul = head.find('\0'); nul != std::string::npos)
    io::fail(
        data_name(file),
        io::message("holds a NUL byte at {}, so that it is no UTF-8 text (binary, or UTF-16: iconv -f utf-16 -t utf-8)",
                    nul));
  return data;
}

void require_text(const fs::path& file, std::string_view text, std::uint64_t offset, bool cut) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = io::utf8_length(text, at);
    const bool nul = text[at] == '\0';
    if (length > 0 && !nul) {
      at += length;
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    if (cut && byte >= 0xC2 && byte <= 0xF4 && text.size() - at < sequence_size(byte) &&
        std::ranges::all_of(text.substr(at + 1), continues))
      return;
    std::string hex;
    io::append_hex(hex, byte, 2);
    io::fail(data_name(file), io::message("byte 0x{} at {} is {}, expected text (of Latin-1: iconv -f latin1 -t utf-8)",
                                          hex, offset + at, nul ? "NUL" : "not UTF-8"));
  }
}

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
  io::fail<io::Error>("{}: is longer than {} bytes", place, kMaxRow);
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
    if (position_ >= buffer_.size() && !fill()) io::fail<io::Error>("{}: the array has no end, expected ']'", place);
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
      if (ended_ && peek_past_spaces() != -1) io::fail<io::Error>("{}: found more behind the array", name_);
      return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    element += c;
    if (element.size() > kMaxRow) too_long(place);
  }
  if (peek_past_spaces() != -1) io::fail<io::Error>("{}: found more behind the array", name_);
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

TextFile::TextFile(std::filesystem::path path) : path_(std::move(path)), data_(open_data(path_)) {}

std::string TextFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  std::string result(std::min(count, data_.size - offset), '\0');
  io::read_at(data_.file.get(), data_name(path_), offset, result.data(), result.size());
  return result;
}

bool TextFile::separator_after(std::uint64_t offset) const {
  const std::uint64_t overlap = kSeparator.size() - 1;
  for (; offset < data_.size; offset += kBlock)
    if (bytes(offset, kBlock + overlap).find(kSeparator) != std::string::npos) return true;
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
