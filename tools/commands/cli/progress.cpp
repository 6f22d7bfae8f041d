// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/screen.h"

namespace fp8::commands {

Progress::Progress(const Context& context, std::string what, std::int64_t total)
    : shown_(context.shows_progress()), what_(std::move(what)), total_(total), start_(Clock::now()), last_(start_) {}

Progress::~Progress() {
  if (drawn_) write_stderr("\r\x1b[K");
}

void Progress::update(std::int64_t done) {
  if (!shown_) return;
  const auto now = Clock::now();
  if (drawn_ && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  std::string text = line(what_, done, total_, std::chrono::duration<double>(now - start_).count());
  // A line that is longer than the terminal's would stay there, and each update begin a new one.
  if (const std::size_t width = terminal_width(STDERR_FILENO); width > 0 && text.size() >= width)
    text.resize(width - 1);
  const auto bar = text.find('#'), end = text.find_first_not_of('#', bar);
  if (stderr_takes_color() && bar != std::string::npos)
    text = text.substr(0, bar) + painted(text.substr(bar, end - bar), Color::green) +
           text.substr(std::min(end, text.size()));
  write_stderr("\r" + text + "\x1b[K");
}

std::string Progress::line(const std::string& what, std::int64_t done, std::int64_t total, double seconds) {
  constexpr std::int64_t kWidth = 24;
  const auto filled = static_cast<std::size_t>(done * kWidth / total);
  const auto bar = std::string(filled, '#') + std::string(static_cast<std::size_t>(kWidth) - filled, '.');
  auto text = fmt::format("{} [{}] {:3}% {}/{}", what, bar, done * 100 / total, done, total);
  if (done > 0 && done < total)
    text += ", " + human_seconds(seconds * static_cast<double>(total - done) / static_cast<double>(done)) + " left";
  return text;
}

}  // namespace fp8::commands
