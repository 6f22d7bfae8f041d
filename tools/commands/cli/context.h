// SPDX-License-Identifier: Apache-2.0
// The context of a command: the common options, the output, and the user's request to stop.
#pragma once

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/kernels/format.h"

namespace fp8::commands {

/// The command line can't mean anything: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Ctrl-C or SIGTERM: exit code 130 or 143, "interrupted".
struct Interrupted : std::runtime_error {
  /// what: "after 68 of 400 samples; --resume goes on", where something is kept.
  explicit Interrupted(const std::string& what = "")
      : std::runtime_error(what.empty() ? "interrupted" : "interrupted " + what), says_what_is_kept(!what.empty()) {}
  bool says_what_is_kept;
};

/// A path, and what a command does with it: reads it; makes and removes names in a folder; writes files in it; all of
/// that. Folders stand for all that is in them.
struct Place {
  enum class Use : std::uint8_t { read, name, put, write };
  std::filesystem::path path;
  Use use = Use::read;
};

/// What the process has given up (tools/sandbox.h).
struct Sandbox {
  std::string in_force = "none";
  /// Gives up all files but these, and returns what is in force then, for doctor. Empty: it gives up none.
  std::function<std::string(const std::vector<Place>&)> keep_to = {};
};

struct Context {
  std::string sandbox = "none";  ///< what the process has given up
  bool no_sandbox = false;       ///< --no-sandbox, which the program heeds before it parses
  std::string device = "hpu";    ///< "hpu" or "cpu"; see resolve_device() of torch_scope.h
  std::optional<kernels::Dialect> dialect;
  std::optional<kernels::FloatType> dtype;  ///< compute dtype; empty: the checkpoint's
  std::optional<std::int64_t> threads;      ///< empty: LibTorch's and the kernels' own defaults
  std::uint64_t seed = 0;
  std::vector<std::string> load;  ///< libraries of operators, before those of FP8_EXTENSIONS; see torch_scope.h
  bool json = false, quiet = false;
  bool verbose = false;  ///< nothing is folded or left out of what is printed

  /// The result of the command, once: `object` as one line with --json, else `text` (ends with a newline).
  void result(const io::Json& object, std::string_view text) const;
  /// "fp8: ..." on stderr, unless --quiet: what is no warning.
  void say(const std::string& message) const;
  /// "fp8: warning: ..." on stderr, unless --quiet.
  void warn(const std::string& message) const;
  /// "fp8: note: ..." likewise: what was done, where nothing is wrong.
  void note(const std::string& message) const;
  /// True if a progress bar may be drawn: stderr is a terminal, no --quiet, no --json.
  bool shows_progress() const;
};

/// Returns the flag of an option in the library's messages; an io::Spelling.
std::string flag_of_option(std::string_view id, std::string_view value);

/// The message of an error, with flags for its options.
std::string what_of(const std::exception& error);

/// Sets the thread count of our kernels.
void apply(const Context& context);

/// Returns the dialect of --dialect, else that of the device in FP8_HPU_DEVICE. Throws io::Error if the device has no
/// fp8.
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

// Environment variables that would give other numbers than were asked for.

/// Returns the problems of FP8_SIMD and of the variables that set the device and its rounding (io::variables() of
/// runtime/device), one line each.
std::vector<std::string> environment_problems();

// The work of each process where a launcher (torchrun, mpirun, srun) has started several of them.

enum class Ranks : std::uint8_t {
  any,                    ///< it makes no difference, or the command sees to it itself: its share, files of its own
  first,                  ///< rank 0 does all of the work; the others say so and end with 0, nothing on stdout
  first_unless_measures,  ///< the same, but where QUANT_CONFIG asks for measurements each rank makes its own
  share_unless_measures   ///< each does a part (shares_work()), but where QUANT_CONFIG asks for measurements as above
};

/// True: this process runs `command`. Throws io::Error for variables that make no sense.
bool takes_part(Ranks ranks, const std::string& command, const Context& context,
                const io::GetVariable& get = io::environment_value);

/// Of a command of Ranks::share_unless_measures: this process has a part of the work, not all of it.
bool shares_work(const io::GetVariable& get = io::environment_value);
/// True in rank 0, and where there is one process; the others say that it does the work alone.
bool is_first(const std::string& command, const Context& context);

/// Warns, where there are several, that each rank measures all of the samples into files of its own. separate_files: as
/// the config says; false: rank 0 alone writes, and this returns false in the others.
bool measures_as_rank(bool separate_files, const Context& context);

// Functions that need LibTorch. They live in libfp8_program.so, those of training in libfp8_train_program.so, which the
// first call of one loads, so that commands that need none start in milliseconds, and run on machines without LibTorch.
// No torch here.
//
//   budget.h            extern Late<BudgetResult(...)> meet_budget;
//   budget.cpp          decltype(meet_budget) meet_budget;              empty; called by quantize.cpp
//   budget_search.cpp   const Provided g_budget(meet_budget, search);   filled while libfp8_program.so is loaded
//
// So is a command that computes: model_options.{h,cpp} declare its options, check them and call evaluate_model,
// which evaluate.cpp provides.

/// Loads libfp8_program.so, and before it the LibTorch that FP8_LIBTORCH names. Throws io::Error saying what is
/// missing; in the static program (late_static.cpp) UsageError.
void load_program();

/// The folders in which they and what they need are looked for.
std::vector<std::filesystem::path> library_folders();

/// load_program(), and then libfp8_train_program.so. Throws io::Error with the command that builds it where it is
/// missing.
void load_training();

/// Throws io::Error: the library that was loaded is another version's.
[[noreturn]] void fail_not_provided();

template <class>
class Late;

template <class R, class... A>
class Late<R(A...)> {
 public:
  /// load: load_training for what the training wing provides.
  explicit Late(void (*load)()) : load_(load) {}
  Late() = default;
  /// Throws io::Error where LibTorch can't be loaded, and what the function throws.
  R operator()(A... arguments) const {
    if (!function_) load_();
    if (!function_) fail_not_provided();
    return function_(std::forward<A>(arguments)...);
  }
  void provide(std::function<R(A...)> function) { function_ = std::move(function); }

 private:
  void (*load_)() = load_program;
  std::function<R(A...)> function_;
};

}  // namespace fp8::commands
