// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/work/snapshots.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <iterator>
#include <system_error>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/version.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

constexpr double kWorthIt = 50;  // a snapshot may cost 1/50 of the time
constexpr std::uint64_t kMostBytes = std::uint64_t{4} << 30, kMostBytesOfLog = std::uint64_t{1} << 30;

std::string checksum_of(const std::string& text) { return io::checksum_text(io::checksum(text)); }

/// {"identity", "progress"}; null if there is no snapshot.
io::Json read_state(const fs::path& file) {
  std::error_code error;
  if (!fs::exists(file, error)) return nullptr;
  const auto text = io::read_file(file, kMostBytes);
  const auto line = text.find('\n');
  if (line == std::string::npos || text.substr(0, line) != checksum_of(text.substr(line + 1)))
    io::fail(file, "is damaged: its checksum is not that of its text");
  io::Json state = io::parse_json(text.substr(line + 1), file.string());
  if (!state.is_object() || !state.contains("identity") || !state.contains("progress") ||
      !state["identity"].is_object())
    io::fail(file, "expected an object with 'identity' and 'progress'");
  return state;
}

std::string excerpt(const io::Json& value) {
  return io::printable(value.dump(-1, ' ', true, io::Json::error_handler_t::replace), 100);
}

/// Throws io::Error naming what of `now` is not as it was.
void require_same(const io::Json& before, const io::Json& now, const fs::path& folder) {
  const auto fail = [&](const std::string& key, const io::Json& was, const io::Json& is) {
    io::fail<io::Error>("--resume: {} is of another run: {} was {}, found {}", folder.string(), key, excerpt(was),
                        excerpt(is));
  };
  for (const auto& [key, value] : now.items()) {
    const io::Json was = before.value(key, io::Json());
    if (was == value) continue;
    if (value.is_object() && was.is_object()) {
      for (const auto& [name, inner] : value.items())
        if (was.value(name, io::Json()) != inner) fail(key + " " + name, was.value(name, io::Json()), inner);
      for (const auto& [name, inner] : was.items())
        if (!value.contains(name)) fail(key + " " + name, inner, nullptr);
    }
    fail(key, was, value);
  }
}

constexpr std::string_view kNames[] = {io::kConfigFile,      "generation_config.json",
                                       io::kIndexFile,       io::kTorchIndexFile,
                                       "tokenizer.json",     "tokenizer_config.json",
                                       "tekken.json",        "special_tokens_map.json",
                                       "chat_template.json", "chat_template.jinja",
                                       "added_tokens.json",  "vocab.json",
                                       "merges.txt",         "vocab.txt"};
constexpr std::string_view kEndings[] = {".safetensors", ".bin", ".model", ".tiktoken"};

}  // namespace

Snapshots::Snapshots(fs::path folder, double seconds) : folder_(fs::absolute(folder)), seconds_(seconds) {}

Snapshots::~Snapshots() {
  std::error_code ignored;
  if (made_ && !saved_) fs::remove_all(folder_, ignored);
}

void Snapshots::lock() {
  if (lock_.get() >= 0) return;
  const fs::path file = folder_ / "lock";
  lock_ = io::Descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock_.get() < 0) io::fail_errno(file, "open", errno);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
  const int code = errno;
  lock_.reset();
  if (code == EWOULDBLOCK) io::fail(folder_, "another run is writing here");
}

const fs::path& Snapshots::folder() {
  if (made_) return folder_;
  std::error_code error;
  const bool is_new = fs::create_directories(folder_, error);
  if (error) io::fail(folder_, "can't be made: {}", error.message());
  lock();
  made_ = true;
  if (is_new) listed_ = std::make_unique<io::ListedTemporary>(folder_, io::TemporaryKind::folder);
  return folder_;
}

io::Json Snapshots::stored_identity() const {
  const io::Json state = read_state(folder_ / "state");
  return state.is_null() ? io::Json() : state["identity"];
}

io::Json Snapshots::begin(bool resume) {
  std::error_code error;
  if (!fs::is_directory(folder_, error)) return nullptr;
  folder();
  saved_ = resume && fs::exists(folder_ / "state", error);  // it stays if this run is not to go on from it
  io::Json state = resume ? read_state(folder_ / "state") : io::Json();
  if (state.is_null()) {
    remove();
    return nullptr;
  }
  require_same(state["identity"], identity_, folder_);
  const io::Json& progress = state["progress"];
  const io::Json hidden = progress.is_object() ? progress.value("hidden", io::Json()) : io::Json();
  const std::string needed = hidden.is_object() && hidden.contains("file") && hidden["file"].is_string()
                                 ? hidden["file"].get<std::string>()
                                 : "";
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code gone;
    if (name != "state" && name != "lock" && name != needed)
      fs::remove(it->path(), gone);  // what a killed run was writing
  }
  return progress;
}

bool Snapshots::due() const {
  return std::chrono::duration<double>(Clock::now() - last_).count() >=
         std::max(seconds_, seconds_ > 0 ? kWorthIt * cost_ : 0.0);
}

void Snapshots::write(const io::Json& progress) {
  const std::string text = io::Json{{"identity", identity_}, {"progress", progress}}.dump(
      -1, ' ', false, io::Json::error_handler_t::replace);
  io::AtomicFile file(folder() / "state");
  file.append(checksum_of(text) + "\n");
  file.append(text);
  file.commit();
  saved_ = true;
  listed_.reset();
}

void Snapshots::remove() {
  std::error_code error;
  saved_ = false;
  if (!made_) return;
  fs::remove(folder_ / "state", error);  // first: without it the rest is nothing to go on from
  fs::remove_all(folder_, error);
  listed_.reset();
  lock_.reset();
  made_ = false;
}

SourceFiles::File SourceFiles::look_at(const fs::path& path) {
  struct stat status = {};
  File file{path};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return file;
  file.exists = true;
  file.bytes = static_cast<std::uint64_t>(status.st_size);
  file.device = status.st_dev, file.inode = status.st_ino;
  file.modified = io::modified(status);
  return file;
}

SourceFiles::SourceFiles(const fs::path& model, const std::vector<fs::path>& more) {
  std::vector<fs::path> paths = more;
  std::error_code error;
  if (fs::is_directory(model, error)) {
    for (fs::directory_iterator it(model, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      const auto in = [](const auto& list, std::string_view what) {
        return std::find(std::begin(list), std::end(list), what) != std::end(list);
      };
      // Measurements may lie there as well.
      if (in(kNames, name) || in(kEndings, it->path().extension().string())) paths.push_back(it->path());
    }
  } else {
    paths.push_back(model);
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    if (path.empty()) continue;  // an option that was not given
    const auto file = look_at(fs::absolute(path));
    if (file.exists) files_.push_back(file);
  }
}

void SourceFiles::check_unchanged() const {
  for (const auto& before : files_) {
    const auto now = look_at(before.path);
    if (now == before) continue;
    const std::string name = io::printable(before.path.string(), 4096);
    if (!now.exists) io::fail<io::Error>("{}: was removed while it was being read", name);
    if (now.bytes != before.bytes)
      io::fail<io::Error>("{}: changed while it was being read, from {} to {} bytes", name, before.bytes, now.bytes);
    io::fail<io::Error>("{}: was {} while it was being read", name,
                        now.inode != before.inode || now.device != before.device ? "replaced" : "written to");
  }
}

io::Json SourceFiles::to_json() const {
  io::Json json = io::Json::object();
  for (const auto& f : files_) json[io::printable(f.path.string(), 4096)] = {f.bytes, f.modified};
  return json;
}

io::Json SourceFiles::ends() const {
  constexpr std::uint64_t kEnd = std::uint64_t{64} << 10;
  io::Json json = io::Json::object();
  for (const auto& f : files_) {
    const io::Descriptor file = io::open_regular(f.path);
    io::Checksum checksum;
    std::string part(std::min(kEnd, f.bytes), '\0');
    for (const std::uint64_t at : {std::uint64_t{0}, f.bytes - part.size()}) {
      io::read_at(file.get(), f.path, at, part.data(), part.size());
      checksum.update(part.data(), part.size());
    }
    json[io::printable(f.path.filename().string(), 4096)] = {f.bytes, io::checksum_text(checksum.value())};
  }
  return json;
}

io::Json with_program(io::Json facts) {
  facts["version"] = FP8_VERSION;
  facts["instruction set"] = kernels::name_of(kernels::simd_level());
  return facts;
}

void for_each_step(const std::filesystem::path& path, const std::function<bool(io::Json, std::size_t)>& found) {
  const auto text = io::read_file(path, kMostBytesOfLog);
  std::size_t line = 1;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++line) {
    const auto where = path.string() + ", line " + std::to_string(line);
    auto entry = io::parse_json(std::string_view(text).substr(begin, end - begin), where);
    if (!entry.is_object() || !entry.contains("step") || !entry["step"].is_number_integer() || !entry.contains("loss"))
      io::fail<io::Error>("{}: is no step of a training log, expected {\"step\": N, \"loss\": X, ...}, found {}", where,
                          io::printable(entry.dump()));
    if (!found(std::move(entry), end + 1)) return;
  }
}

std::vector<io::Json> read_log(const std::filesystem::path& path) {
  std::vector<io::Json> entries;
  for_each_step(path, [&](io::Json entry, std::size_t) {
    entries.push_back(std::move(entry));
    return true;
  });
  return entries;
}

}  // namespace fp8::commands
