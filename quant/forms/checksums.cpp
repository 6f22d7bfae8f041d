// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/checksums.h"

#include <deque>

#include "fp8/quant/forms/folder.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr char kChecksums[] = "checksums";
constexpr std::string_view kSelf = "\"self\": \"", kZeros = "0000000000000000";
constexpr std::uint64_t kMaxSidecar = std::uint64_t{256} << 20;

/// One piece to be read; what it points at outlives it.
struct Piece {
  const fs::path* path;
  const std::string *file, *tensor;
  std::uint64_t at, begin, size;  ///< at: in the file; begin: in the tensor
  std::string_view sum;
};

/// What fp8.json says of a folder, and what is there.
class Verification {
 public:
  Verification(const fs::path& folder, const io::Json& files) : folder_(folder), files_(files) {}

  Verified run(const std::function<bool()>& stop) {
    find_files();
    std::vector<char> bad(pieces_.size());
    kernels::parallel_each(static_cast<std::int64_t>(pieces_.size()), 1, [&](std::int64_t i) {
      if (stop && stop()) throw io::Error("interrupted");
      const Piece& p = pieces_[static_cast<std::size_t>(i)];
      bad[static_cast<std::size_t>(i)] = sum_of_piece(io::open_regular(*p.path).get(), *p.path, p.at, p.size) != p.sum;
    });
    for (std::size_t i = 0; i < bad.size(); ++i)
      if (bad[i] != 0) add(pieces_[i]);
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    io::fail<io::Error>("{}: key '{}': {}", (folder_ / kSidecarName).string(), kChecksums, what);
  }

  /// Pieces of a tensor that follow each other are one.
  void add(const Piece& p) {
    auto& list = result_.damage;
    if (!list.empty() && list.back().file == *p.file && list.back().tensor == *p.tensor && list.back().end == p.begin)
      list.back().end += p.size;
    else
      list.push_back({"changed", *p.file, *p.tensor, p.begin, p.begin + p.size});
  }

  void find_files() {
    if (!files_.is_object()) fail("expected an object 'files'");
    auto there = files_below(folder_);
    for (const auto& [name, entry] : files_.items()) {
      const io::Json bytes = entry.is_object() ? entry.value("bytes", io::Json()) : io::Json();
      if (!bytes.is_number_unsigned()) fail("expected the bytes of " + io::in_quotes(name));
      std::error_code error;
      const auto found = there.extract(name);
      if (found.empty() || !fs::is_regular_file(folder_ / found.mapped(), error)) {
        result_.damage.push_back({"missing", name, ""});
        continue;
      }
      const fs::path path = io::source_file(folder_, found.mapped());
      std::uint64_t size = 0;
      io::open_regular(path, &size);
      ++result_.files;
      result_.bytes += size;
      if (size != bytes)
        result_.damage.push_back({"size", name, "", size, bytes.get<std::uint64_t>()});
      else
        find_pieces(name, paths_.emplace_back(path), size, entry);
    }
    there.erase(kSidecarName);
    for (const auto& [name, file] : there) result_.damage.push_back({"extra", name, ""});
  }

  void find_pieces(const std::string& name, const fs::path& path, std::uint64_t size, const io::Json& entry) {
    const auto add_pieces = [&](const std::string& tensor, std::uint64_t at, std::uint64_t bytes,
                                std::string_view sums) {
      const std::string* const its_name = &names_.emplace_back(tensor);
      for (std::uint64_t begin = 0; begin < bytes; begin += kPieceBytes) {
        pieces_.push_back({&path, &name, its_name, at + begin, begin, std::min(kPieceBytes, bytes - begin),
                           sums.substr(0, PieceSums::kStep - 1)});
        sums.remove_prefix(std::min(sums.size(), PieceSums::kStep));
      }
    };
    if (!entry.contains("head")) return add_pieces("", 0, size, noted(entry, "sums"));
    std::optional<io::SafetensorsFile> weights;
    try {
      weights.emplace(path);
    } catch (const io::Error&) {
      result_.damage.push_back({"header", name, ""});
      return;
    }
    const auto& tensors = weights->tensors();
    const std::uint64_t head = size - (tensors.empty() ? 0 : tensors.back().end);
    add_pieces("", 0, head, noted(entry, "head"));
    std::string_view sums = noted(entry, "tensors");
    for (const auto& tensor : tensors) {
      add_pieces(tensor.name, head + tensor.begin, tensor.bytes(), sums);
      sums.remove_prefix(std::min(sums.size(), PieceSums::kStep * PieceSums::count(tensor.bytes())));
    }
  }

  /// What has none, or too few, has bytes that are not as they were written.
  static std::string_view noted(const io::Json& entry, const char* key) {
    const auto found = entry.find(key);
    return found != entry.end() && found->is_string() ? std::string_view(found->get_ref<const std::string&>()) : "";
  }

  const fs::path& folder_;
  const io::Json& files_;
  std::deque<fs::path> paths_;
  std::deque<std::string> names_;  // of tensors
  std::vector<Piece> pieces_;
  Verified result_;
};

}  // namespace

PieceSums::PieceSums(std::uint64_t bytes)
    : text_(bytes == 0 ? 0 : kStep * static_cast<std::size_t>(count(bytes)) - 1, ' ') {}

std::optional<PieceSums> PieceSums::of(const io::Json& text, std::uint64_t bytes) {
  PieceSums sums(bytes);
  if (!text.is_string() || text.get_ref<const std::string&>().size() != sums.text_.size()) return std::nullopt;
  sums.text_ = text.get<std::string>();
  for (std::size_t i = 0; i < sums.size(); ++i)
    if (!sums.has(i)) return std::nullopt;
  return sums;
}

void PieceSums::take(const PieceSums& other) {
  for (std::size_t i = 0; i < size(); ++i)
    if (other.has(i)) set(i, other[i]);
}

std::string sum_of_piece(int fd, const fs::path& path, std::uint64_t begin, std::uint64_t size) {
  std::string bytes(static_cast<std::size_t>(size), '\0');
  io::read_at(fd, path, begin, bytes.data(), bytes.size());
  return io::checksum_text(io::checksum(bytes));
}

std::string sums_of(std::string_view bytes) {
  PieceSums sums(bytes.size());
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums.set(i, io::checksum_text(io::checksum(bytes.substr(i * kPieceBytes, kPieceBytes))));
  return sums.text();
}

io::Json sums_of_file(const fs::path& path) {
  std::uint64_t size = 0;
  const io::Descriptor file = io::open_regular(path, &size);
  PieceSums sums(size);
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums.set(i, sum_of_piece(file.get(), path, i * kPieceBytes, std::min(kPieceBytes, size - i * kPieceBytes)));
  return {{"bytes", size}, {"sums", sums.text()}};
}

std::string with_checksums(const fs::path& path, io::Json value, io::Json files) {
  value[kChecksums] = {{"files", std::move(files)}, {"self", kZeros}};
  std::string text = io::json_text(path, value);
  const std::string sum = io::checksum_text(io::checksum(text));
  return text.replace(text.rfind(kSelf) + kSelf.size(), sum.size(), sum);
}

std::map<std::string, fs::path> files_below(const fs::path& folder) {
  std::map<std::string, fs::path> files;
  for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
    const bool hidden = entry->path().filename().string().front() == '.';
    if (hidden) entry.disable_recursion_pending();
    if (hidden || (entry->is_directory() && !entry->is_symlink())) continue;
    const fs::path name = entry->path().lexically_relative(folder);
    files.emplace(io::printable(name.string(), 4096), name);
  }
  return files;
}

std::string Damage::text() const {
  const std::string_view what = kind;
  if (what == "missing") return file + ": is missing";
  if (what == "extra") return file + ": was not written with the others";
  if (what == "header") return file + ": its header is damaged, so that its tensors can't be told apart";
  if (what == "size") return io::message("{}: {} bytes, {} were written", file, begin, end);
  return io::message("{}: {}bytes {} to {} are not those that were written", file,
                     tensor.empty() ? "" : "tensor " + io::in_quotes(tensor) + ": ", begin, end);
}

Verified verify_checksums(const fs::path& folder, const std::function<bool()>& stop) {
  const fs::path path = folder / kSidecarName;
  std::string text = io::read_file(io::source_file(folder, kSidecarName), kMaxSidecar);
  const std::size_t at = text.rfind(kSelf);
  if (at != std::string::npos && text.size() - at >= kSelf.size() + kZeros.size()) {
    const std::string sum = text.substr(at + kSelf.size(), kZeros.size());
    text.replace(at + kSelf.size(), kZeros.size(), kZeros);
    if (sum != io::checksum_text(io::checksum(text)))
      return {1, text.size(), {{"changed", kSidecarName, "", 0, text.size()}}};
  }
  const io::Json sidecar = io::parse_json(text, path.string());
  const io::Json sums = sidecar.is_object() ? sidecar.value(kChecksums, io::Json()) : io::Json();
  if (!sums.is_object() || at == std::string::npos)
    io::fail<io::Error>("{}: has no checksums to verify it by: fp8 quantize and fp8 convert write them", path.string());
  const io::Json files = sums.value("files", io::Json());
  Verified result = Verification(folder, files).run(stop);
  ++result.files;
  result.bytes += text.size();
  return result;
}

}  // namespace fp8::quant
