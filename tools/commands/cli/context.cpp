// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/context.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>

#include "fp8/measure/files/observer_types.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/kernels/device_kind.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/message.h"

namespace fp8::commands {
namespace {

// A signal handler reaches nothing but globals.
std::atomic<int> g_signal = 0, g_kept = 0;
static_assert(std::atomic<int>::is_always_lock_free);

constexpr int kSignalled = 128;    // as shells count
constexpr unsigned kPatience = 1;  // seconds that a command has to end by itself

/// Called by signal handlers, so by system calls alone. The kernel runs them on the main thread, which alone commits
/// outputs: none of them is half renamed.
[[noreturn]] void end_at_once(int number) {
  io::remove_temporaries();
  constexpr char kClear[] = "\r\x1b[K", kMessage[] = "fp8: error: interrupted\n";
  struct pollfd reader = {STDERR_FILENO, POLLOUT, 0};  // which may be stuck
  [[maybe_unused]] const bool written =
      poll(&reader, 1, 0) == 1 && (isatty(STDERR_FILENO) == 0 || write(STDERR_FILENO, kClear, sizeof kClear - 1) > 0) &&
      write(STDERR_FILENO, kMessage, sizeof kMessage - 1) > 0;
  _exit(kSignalled + number);
}

void on_alarm(int) {
  if (g_kept == 0) end_at_once(g_signal);
}

std::terminate_handler g_terminate = nullptr;

/// An exception where none may leave, as CLI11 and LibTorch have such functions: one of memory ends like all others.
[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    io::remove_temporaries();
    write_stderr("fp8: error: out of memory\n");
    _exit(1);
  } catch (...) {  // the handler that was there before says what it is
  }
  g_terminate();
  std::abort();
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;  // reads and writes go on; commands look at interrupted() between chunks
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

void on_stop_signal(int number) {
  if (g_signal.exchange(number) != 0) end_at_once(number);
  handle(SIGALRM, on_alarm);
  alarm(kPatience);
}

/// A closed descriptor 0, 1 or 2 would be given to the next file opened; what we print would end up in it.
void hold_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest free descriptor is this one. Open for the wrong direction, so that using it still fails; stderr may
    // vanish.
    const int got = open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY);
    if (got != fd && got > 2) close(got);
  }
}

/// A progress bar's line is cleared, and drawn again by its next update.
void write_line(const Context& context, const std::string& head, const std::string& message) {
  if (context.quiet) return;
  write_stderr((context.shows_progress() ? "\r\x1b[K" : "") + head + " " + one_line(without_origin(message)) + "\n");
}

/// None where this process is alone.
std::optional<io::Launched> one_of_several(const io::GetVariable& get) {
  auto process = io::launched(get);
  return process.has_value() && process->size > 1 ? process : std::nullopt;
}

bool first_alone(const io::Launched& process, const std::string& command, const Context& context) {
  if (process.rank == 0) return true;
  context.warn(command + ": " + process.text() + ": rank 0 does the work alone, nothing is done here");
  return false;
}

/// QUANT_CONFIG, where it asks for measurements.
std::optional<configs::QuantConfig> config_that_measures(const io::GetVariable& get) {
  const char* path = get("QUANT_CONFIG");
  if (path == nullptr || *path == '\0') return std::nullopt;
  auto config = configs::read_quant_config(path, measure::parse_options());
  const bool measures = config.mode == configs::QuantMode::MEASURE || config.mode == configs::QuantMode::SHAPE;
  return measures ? std::optional(std::move(config)) : std::nullopt;
}

}  // namespace

void Context::result(const io::Json& object, std::string_view text) const {
  if (json)
    write_stdout(object.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
  else
    write_stdout(text);
}

void Context::say(const std::string& message) const { write_line(*this, "fp8:", message); }

void Context::note(const std::string& message) const { write_line(*this, "fp8: note:", message); }

void Context::warn(const std::string& message) const {
  const std::string head = "fp8: warning:";
  write_line(*this, stderr_takes_color() ? painted(head, Color::yellow) : head, message);
}

bool Context::shows_progress() const { return !json && !quiet && stderr_is_terminal(); }

void apply(const Context& context) {
  if (!context.threads) return;
  kernels::set_num_threads(static_cast<int>(*context.threads));
  io::override_flag("OMP_NUM_THREADS",
                    io::FlagSetting{std::to_string(*context.threads), io::FlagSource::option, "--threads"});
}

kernels::Dialect device_dialect(const Context& context, const std::string& command) {
  if (context.dialect.has_value()) return *context.dialect;
  const auto kind = kernels::kind_from_environment();
  if (!kernels::has_fp8(kind)) io::fail<io::Error>("[{}] {}", command, kernels::kNoFp8);
  return kernels::dialect_of(kind);
}

void install_signal_handlers() {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows past ulimit -f is a failed write
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarms, nullptr);  // the parent process may have blocked it
  for (const int number : {SIGINT, SIGTERM}) handle(number, on_stop_signal);
  g_terminate = std::set_terminate(on_terminate);
}

KeepsWork::KeepsWork() { ++g_kept; }

KeepsWork::~KeepsWork() {
  if (--g_kept == 0 && interrupted()) alarm(kPatience);
}

bool interrupted() { return g_signal != 0; }

int exit_code_of_signal() { return g_signal != 0 ? kSignalled + g_signal : 1; }

void end_interrupted(const std::string& why) {
  io::remove_temporaries();
  write_stderr("fp8: error: interrupted: " + one_line(why) + "\n");
  _exit(exit_code_of_signal());
}

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

std::vector<std::string> environment_problems() {
  std::vector<std::string> problems;
  try {
    kernels::simd_level();
  } catch (const std::invalid_argument& error) {
    problems.emplace_back(error.what());
  }
  for (const io::Variable& row : io::variables()) {
    if (std::string_view(row.reader) != "runtime/device") continue;
    if (std::string problem = io::environment_problem(row.name); !problem.empty())
      problems.push_back(std::move(problem));
  }
  return problems;
}

bool takes_part(Ranks ranks, const std::string& command, const Context& context, const io::GetVariable& get) {
  if (ranks == Ranks::any) return true;
  const auto process = one_of_several(get);
  if (!process.has_value()) return true;
  const bool may_measure = ranks == Ranks::first_unless_measures || ranks == Ranks::share_unless_measures;
  const auto config = may_measure ? config_that_measures(get) : std::nullopt;
  if (config.has_value()) return measures_as_rank(config->separate_measure_files, context);
  return ranks == Ranks::share_unless_measures || first_alone(*process, command, context);
}

bool shares_work(const io::GetVariable& get) {
  return one_of_several(get).has_value() && !config_that_measures(get).has_value();
}

bool is_first(const std::string& command, const Context& context) {
  const auto process = one_of_several(io::environment_value);
  return !process.has_value() || first_alone(*process, command, context);
}

bool measures_as_rank(bool separate_files, const Context& context) {
  const auto process = one_of_several(io::environment_value);
  if (!process.has_value()) return true;
  if (!separate_files) return first_alone(*process, "measure", context);
  context.warn(
      io::message("{}: each rank measures all of the samples, into files of its own (_{}_{} in their names); fp8 "
                  "measurements unify makes one of them",
                  process->text(), process->rank, process->size));
  return true;
}

}  // namespace fp8::commands
