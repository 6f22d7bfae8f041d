// SPDX-License-Identifier: Apache-2.0
// What every command gets: the common options, where to print, and whether the user asked to stop.
#pragma once
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::commands {

/// The command line can't mean anything: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ctrl-C or SIGTERM: exit code 130 or 143, "interrupted".
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

struct Context {
  std::string device = "hpu";  ///< "hpu" or "cpu"; see resolve_device() of torch_scope.h
  std::optional<kernels::Dialect> dialect;
  std::optional<kernels::FloatType> dtype;  ///< compute dtype; empty: the checkpoint's
  std::optional<std::int64_t> threads;      ///< empty: LibTorch's and the kernels' own defaults
  std::uint64_t seed = 0;
  std::vector<std::string> load;  ///< libraries of operators, before those of FP8_EXTENSIONS; see torch_scope.h
  bool json = false, quiet = false;

  /// The result of the command, once: `object` as one line with --json, else `text` (ends with a newline).
  void result(const io::Json& object, std::string_view text) const;
  /// "fp8: warning: ..." on stderr, unless --quiet.
  void warn(const std::string& message) const;
  /// True if a progress bar may be drawn: stderr is a terminal, no --quiet, no --json.
  bool shows_progress() const;
};

/// Sets the thread count of our kernels.
void apply(const Context& context);

/// What --dialect names, else the device's own as FP8_HPU_DEVICE says. Throws io::Error where that has no fp8.
kernels::Dialect device_dialect(const Context& context, const std::string& command);

/// First SIGINT or SIGTERM: interrupted() is true from now on, and a command that does not end by itself within a
/// second is ended, wherever it stands: temporary files are removed and the process exits, with 130 or 143. Second: at
/// once.
/// SIGPIPE and SIGXFSZ are ignored, so that a closed pipe or a file past its limit is a failed write. Closed
/// standard streams are held by /dev/null, so that no file we open becomes one of them.
void install_signal_handlers();
/// While one lives, the first signal waits: the command has results that it writes when its step is done.
class KeepsWork {
 public:
  KeepsWork();
  ~KeepsWork();
  KeepsWork(const KeepsWork&) = delete;
  KeepsWork& operator=(const KeepsWork&) = delete;
};

bool interrupted();
/// Of the signal that interrupted() tells of: 128 and its number; 1 where another rank was told to stop.
int exit_code_of_signal();
/// Ends the process as the second signal would, and says why. By any thread while the main one waits and commits
/// nothing.
[[noreturn]] void end_interrupted(const std::string& why);
/// Throws Interrupted if interrupted().
void check_interrupted();

}  // namespace fp8::commands
