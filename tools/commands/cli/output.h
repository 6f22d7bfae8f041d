// SPDX-License-Identifier: Apache-2.0
// Standard streams by plain write(2): nothing is buffered, so nothing is lost unseen. Numbers never follow a locale.
#pragma once
#include <chrono>

#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

/// Writes all of it, to a terminal for_terminal(); throws io::Error ("stdout: ...") if it can't: a closed pipe, a full
/// disk.
void write_stdout(std::string_view text);

/// Writes what it can; a lost message is no reason to stop.
void write_stderr(std::string_view text) noexcept;

/// Writes the text as a file, atomically. Throws io::Error.
void write_output_file(const std::filesystem::path& path, std::string_view text);

/// The one rule for outputs: throws io::Error, "v.safetensors: exists (a file of 1.2 kB), allowed: another path, or
/// --overwrite to replace it", for what is there already, unless `overwrite`; and for what is no file. To be asked
/// before any work. "": nothing is written.
void refuse_existing(const std::filesystem::path& path, bool overwrite);

/// Columns that standard output has: what COLUMNS says, else those of a terminal; 0, any number, for pipes and files.
std::size_t output_width();

/// The text as a terminal may have it: what is not drawn (io/base/text.h), but for newlines and tabs, is spelled out as
/// \uNNNN, so that a text from a file can't control the terminal. JSON keeps the text unchanged.
std::string for_terminal(std::string_view text);

/// The text with line breaks and other control characters turned into single spaces, all else as for_terminal().
std::string one_line(std::string_view text);

/// 1234567 -> "1,234,567".
std::string grouped(std::int64_t number);

/// 3349936 -> "3.3 MB" (powers of 1000).
std::string human_bytes(std::int64_t bytes);

/// An allocator's message, which says where in LibTorch's sources it failed, as "out of memory: 3.3 MB more are not to
/// be had"; others as they are.
std::string memory_message(const std::string& message);

/// Seconds -> "0.42 s", "12.3 s", "3 min 20 s".
std::string human_seconds(double seconds);
/// The same of what is reckoned: "3 min", "2.5 h".
std::string about(double seconds);

// A bar with the time left, on a terminal only; elsewhere it does nothing.

class Progress {
 public:
  /// total: steps until done, >= 1. what: the word before the bar.
  Progress(const Context& context, std::string what, std::int64_t total);
  /// Of work that says itself how much there is: update(done, total).
  Progress(const Context& context, std::string what);
  /// Says once, some seconds after the begin, how long work takes that takes over a minute, and the memory so far: for
  /// work whose length no formula tells. memory: returns the bytes that the process has taken.
  void announce(std::int64_t (*memory)()) { announces_ = memory; }
  /// Clears its line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps are done; draws at most ten times a second. more: what else the line shows.
  void update(std::int64_t done, const std::string& more = "");
  /// `done` of `total`, which may be 0.
  void update(std::uint64_t done, std::uint64_t total);

  /// The line as drawn: "evaluate [#######.............]  35% 12/34, 1 min 20 s left"; `more` stands before the time.
  static std::string line(const std::string& what, std::int64_t done, std::int64_t total, double seconds,
                          const std::string& more = "");
  /// ", 1 min 20 s left"; empty where it is not known, and at the end.
  static std::string time_left(std::int64_t done, std::int64_t total, double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  void announce_if_long(std::int64_t done, double seconds);

  const Context& context_;
  bool drawn_ = false;
  std::int64_t (*announces_)() = nullptr;  ///< null: it need not, or has
  std::string what_;
  std::int64_t total_;
  Clock::time_point start_, last_;
};

// Wall time of a piece of a command's work.

/// Runs from when it is made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point start_ = Clock::now();
};

}  // namespace fp8::commands
