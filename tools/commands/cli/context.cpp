// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/context.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/runtime_flags.h"
#include "fp8/runtime/kernels/capabilities.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/terminal/message.h"
#include "fp8/tools/commands/terminal/screen.h"

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
  [[maybe_unused]] const bool told =
      poll(&reader, 1, 0) == 1 && (isatty(STDERR_FILENO) == 0 || write(STDERR_FILENO, kClear, sizeof kClear - 1) > 0) &&
      write(STDERR_FILENO, kMessage, sizeof kMessage - 1) > 0;
  _exit(kSignalled + number);
}

void on_alarm(int) {
  if (g_kept == 0) end_at_once(g_signal);
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

}  // namespace

void Context::result(const io::Json& object, std::string_view text) const {
  if (json)
    write_stdout(object.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
  else
    write_stdout(text);
}

void Context::warn(const std::string& message) const {
  if (quiet) return;
  const std::string head = "fp8: warning:";
  // A progress bar's line is cleared, and drawn again by its next update.
  write_stderr(std::string(shows_progress() ? "\r\x1b[K" : "") +
               (stderr_takes_color() ? painted(head, Color::yellow) : head) + " " + one_line(without_origin(message)) +
               "\n");
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
  if (!kernels::has_fp8(kind)) throw io::Error("[" + command + "] " + kernels::kNoFp8);
  return kernels::dialect_of(kind);
}

void install_signal_handlers() {
  hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows past ulimit -f is a failed write
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarms, nullptr);  // whoever started us may have blocked it
  for (const int number : {SIGINT, SIGTERM}) handle(number, on_stop_signal);
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

}  // namespace fp8::commands
