// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kThousandths = 1000;  // of work that says itself how much there is

/// 0 or the errno of the write that failed.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto n = ::write(fd, text.data(), text.size());
    if (n > 0)
      text.remove_prefix(static_cast<std::size_t>(n));
    else if (n < 0 && errno != EINTR)
      return errno;
  }
  return 0;
}

/// visit(bytes, code point) for each character; a byte that is not UTF-8 stands for U+FFFD.
template <class Visit>
void each_character(std::string_view text, const Visit& visit) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = io::utf8_length(text, at);
    if (length == 0)
      visit("\xEF\xBF\xBD", 0xfffd), at += 1;
    else
      visit(text.substr(at, length), io::utf8_decode(text, at, length)), at += length;
  }
}

}  // namespace

void write_stdout(std::string_view text) {
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  const int error = write_all(STDOUT_FILENO, terminal ? for_terminal(text) : text);
  if (error == EPIPE) throw io::Error("stdout: closed by its reader");
  if (error != 0) io::fail<io::Error>("stdout: can't be written: {}", std::strerror(error));
}

void write_stderr(std::string_view text) noexcept { write_all(STDERR_FILENO, text); }

void write_output_file(const std::filesystem::path& path, std::string_view text) {
  io::AtomicFile file(path, text.size());
  file.append(text);
  file.commit();
}

void refuse_existing(const std::filesystem::path& path, bool overwrite) {
  std::error_code error;
  const auto status = path.empty() ? std::filesystem::file_status() : std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return;
  if (!std::filesystem::is_regular_file(status))
    io::fail(path, std::filesystem::is_directory(status) ? "is a folder, expected a file" : "is not a regular file");
  if (overwrite) return;
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path, error));
  const bool measured = path.filename().string().find(io::kHooks) != std::string::npos;
  io::fail(path, "exists (a file of {}{}), allowed: another path, or --overwrite to replace it",
           measured ? "a measurement, " : "", human_bytes(error ? 0 : bytes));
}

std::size_t output_width() {
  if (const char* columns = io::environment_value("COLUMNS")) {
    constexpr std::int64_t kMost = 1'000'000;
    if (const auto given = io::parse_integer(columns, 0, kMost)) return static_cast<std::size_t>(*given);
  }
  return terminal_width(STDOUT_FILENO);
}

std::string for_terminal(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  each_character(text, [&](std::string_view character, std::uint32_t code) {
    io::is_drawn(code) || code == '\n' || code == '\t' ? void(out += character) : io::append_escaped(out, code);
  });
  return out;
}

std::string one_line(std::string_view text) {
  std::string line;
  each_character(text, [&](std::string_view character, std::uint32_t code) {
    const bool breaks = code < 0xa0 || code == 0x2028 || code == 0x2029;  // of what is not drawn
    if (io::is_drawn(code))
      line += character;
    else if (!breaks)
      io::append_escaped(line, code);
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  });
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string grouped(std::int64_t number) {
  auto digits = std::to_string(number);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > static_cast<std::ptrdiff_t>(first); i -= 3)
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  return digits;
}

std::string human_bytes(std::int64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.95 && unit < 5) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string memory_message(const std::string& message) {
  constexpr std::string_view kTried = "you tried to allocate ";
  const auto at = message.find(kTried);
  if (message.find("can't allocate memory") == std::string::npos || at == std::string::npos) return message;
  const char* const first = message.data() + at + kTried.size();
  std::int64_t bytes = 0;
  const bool known = std::from_chars(first, message.data() + message.size(), bytes).ec == std::errc();
  return known ? "out of memory: " + human_bytes(bytes) + " more are not to be had" : "out of memory";
}

std::string human_seconds(double seconds) {
  if (seconds < 9.995) return fmt::format("{:.2f} s", seconds);
  if (seconds < 119.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string about(double seconds) {
  if (seconds < 5400) return fmt::format("{:.0f} min", std::max(seconds / 60, 1.0));
  return fmt::format("{:.{}f} h", seconds / 3600, seconds < 36000 ? 1 : 0);
}

Progress::Progress(const Context& context, std::string what, std::int64_t total)
    : context_(context), what_(std::move(what)), total_(total), start_(Clock::now()), last_(start_) {}

Progress::Progress(const Context& context, std::string what) : Progress(context, std::move(what), kThousandths) {}

Progress::~Progress() {
  if (drawn_) write_stderr("\r\x1b[K");
}

void Progress::update(std::int64_t done, const std::string& more) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (announces_ != nullptr) announce_if_long(done, seconds);
  if (!context_.shows_progress()) return;
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  std::string text = line(what_, done, total_, seconds, more);
  // A line that is longer than the terminal's would stay there, and each update begin a new one.
  if (const std::size_t width = terminal_width(STDERR_FILENO); width > 0 && text.size() >= width)
    text.resize(width - 1);
  const auto bar = text.find('#'), end = text.find_first_not_of('#', bar);
  if (stderr_takes_color() && bar != std::string::npos)
    text = text.substr(0, bar) + painted(text.substr(bar, end - bar), Color::green) +
           text.substr(std::min(end, text.size()));
  write_stderr("\r" + text + "\x1b[K");
}

void Progress::announce_if_long(std::int64_t done, double seconds) {
  constexpr double kKnownAfter = 3, kLong = 60;
  if (seconds < kKnownAfter || done <= 0) return;
  const auto memory = std::exchange(announces_, nullptr);
  const double whole = seconds * static_cast<double>(total_) / static_cast<double>(done);
  if (whole > kLong)
    context_.note(fmt::format("{}: about {} in all, reckoned from the first {}; memory so far {}", what_, about(whole),
                              human_seconds(seconds), human_bytes(memory())));
}

void Progress::update(std::uint64_t done, std::uint64_t total) {
  const double share = static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total, 1));
  update(static_cast<std::int64_t>(share * kThousandths));
}

std::string Progress::time_left(std::int64_t done, std::int64_t total, double seconds) {
  if (done <= 0 || done >= total) return "";
  return ", " + human_seconds(seconds * static_cast<double>(total - done) / static_cast<double>(done)) + " left";
}

std::string Progress::line(const std::string& what, std::int64_t done, std::int64_t total, double seconds,
                           const std::string& more) {
  constexpr std::int64_t kWidth = 24;
  const auto filled = static_cast<std::size_t>(done * kWidth / total);
  const auto bar = std::string(filled, '#') + std::string(static_cast<std::size_t>(kWidth) - filled, '.');
  return fmt::format("{} [{}] {:3}% {}/{}{}{}", what, bar, done * 100 / total, done, total,
                     more.empty() ? "" : ", " + more, time_left(done, total, seconds));
}

}  // namespace fp8::commands
