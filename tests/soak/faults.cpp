// SPDX-License-Identifier: Apache-2.0
// A library for LD_PRELOAD: what a machine does to a program that no kernel does on request. From main() on, as the
// environment says:
//
//   SOAK_SHORT=SEED        read, pread, write, pwrite move a part of what was asked for, at least one byte
//   SOAK_CLOCK=N,SECONDS   the clock of the day is set back by SECONDS, from its N-th reading on
//   SOAK_MALLOC=N[+]       the N-th allocation fails, with + each from there on; SOAK_COUNT=FILE: how many there were
//   SOAK_RELAY=SOCKET      a connection to a port of the loopback goes through the relay that proxy.py makes for it
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

// Plain, and set before main(): nothing here may allocate.
bool g_in_main = false, g_all_fail = false;
unsigned g_short = 0;
long g_clock_from = 0, g_clock_back = 0, g_malloc_from = 0;
const char *g_relay = nullptr, *g_count = nullptr;
std::atomic<long> g_allocations{0}, g_readings{0}, g_moves{0};

template <class F>
F next(F, const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

void read_settings() {
  if (const char* text = std::getenv("SOAK_SHORT")) g_short = static_cast<unsigned>(std::strtoul(text, nullptr, 10));
  if (const char* text = std::getenv("SOAK_CLOCK")) {
    char* end = nullptr;
    g_clock_from = std::strtol(text, &end, 10);
    if (*end == ',') g_clock_back = std::strtol(end + 1, nullptr, 10);
  }
  if (const char* text = std::getenv("SOAK_MALLOC")) {
    char* end = nullptr;
    g_malloc_from = std::strtol(text, &end, 10);
    g_all_fail = *end == '+';
  }
  g_relay = std::getenv("SOAK_RELAY");
  g_count = std::getenv("SOAK_COUNT");
}

/// A part of `size`: the same ones for the same seed, as long as one thread asks.
std::size_t part_of(std::size_t size) {
  if (!g_in_main || g_short == 0 || size < 2) return size;
  std::uint64_t hash = (static_cast<std::uint64_t>(g_moves.fetch_add(1)) + 1) * 0x9E3779B97F4A7C15u ^ g_short;
  hash ^= hash >> 29;
  return hash % 3 == 0 ? size : 1 + (hash >> 8) % (size - 1);
}

std::int64_t seconds_back() {
  return g_in_main && g_clock_from > 0 && g_readings.fetch_add(1) + 1 >= g_clock_from ? g_clock_back : 0;
}

bool fails() {
  if (!g_in_main || (g_malloc_from == 0 && g_count == nullptr)) return false;
  const long n = g_allocations.fetch_add(1) + 1;
  return g_malloc_from > 0 && (n == g_malloc_from || (g_all_fail && n > g_malloc_from));
}

void write_count() {
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%ld\n", g_allocations.load());
  const int file = ::open(g_count, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, text, static_cast<std::size_t>(size)) < 0) return;
  ::close(file);
}

/// Of proxy.py, which answers on a datagram socket: the port of a relay to `port`; 0: none.
std::uint16_t relay_to(std::uint16_t port) {
  static auto real = next(&::connect, "connect");
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, g_relay, sizeof address.sun_path - 1);
  std::uint16_t answer = 0;
  const bool made = real(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                    ::send(fd, &port, sizeof port, 0) == sizeof port &&
                    ::recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer;
  ::close(fd);
  return made ? answer : std::uint16_t{0};
}

int (*g_main)(int, char**, char**) = nullptr;

int main_with_faults(int argc, char** argv, char** environment) {
  read_settings();
  g_in_main = true;
  return g_main(argc, argv, environment);
}

}  // namespace

extern "C" {

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) noexcept {
  if (!fails()) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}
void* calloc(std::size_t count, std::size_t bytes) noexcept {
  if (!fails()) return __libc_calloc(count, bytes);
  errno = ENOMEM;
  return nullptr;
}
void* realloc(void* memory, std::size_t bytes) noexcept {
  if (!fails()) return __libc_realloc(memory, bytes);
  errno = ENOMEM;
  return nullptr;
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  if (!fails()) return __libc_memalign(alignment, bytes);
  errno = ENOMEM;
  return nullptr;
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) noexcept {
  if (fails()) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

ssize_t read(int fd, void* data, std::size_t size) {
  static auto real = next(&::read, "read");
  return real(fd, data, part_of(size));
}
ssize_t write(int fd, const void* data, std::size_t size) {
  static auto real = next(&::write, "write");
  return real(fd, data, part_of(size));
}
ssize_t pread(int fd, void* data, std::size_t size, off_t at) {
  static auto real = next(&::pread, "pread");
  return real(fd, data, part_of(size), at);
}
ssize_t pwrite(int fd, const void* data, std::size_t size, off_t at) {
  static auto real = next(&::pwrite, "pwrite");
  return real(fd, data, part_of(size), at);
}
ssize_t pread64(int fd, void* data, std::size_t size, off64_t at) { return pread(fd, data, size, at); }
ssize_t pwrite64(int fd, const void* data, std::size_t size, off64_t at) { return pwrite(fd, data, size, at); }

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  static auto real = next(&::clock_gettime, "clock_gettime");
  const int result = real(clock, time);
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec -= seconds_back();
  return result;
}
int gettimeofday(timeval* time, void* zone) noexcept {
  timespec now = {};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  static_cast<void>(zone);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return result;
}
time_t time(time_t* result) noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  static auto real = next(&::connect, "connect");
  if (g_relay == nullptr || address->sa_family != AF_INET) return real(fd, address, size);
  sockaddr_in relayed = *reinterpret_cast<const sockaddr_in*>(address);
  const std::uint16_t port = (ntohl(relayed.sin_addr.s_addr) >> 24) == 127 ? relay_to(ntohs(relayed.sin_port)) : 0;
  if (port != 0) relayed.sin_port = htons(port);
  return real(fd, reinterpret_cast<const sockaddr*>(&relayed), sizeof relayed);
}

void _exit(int code) {
  if (g_count != nullptr) write_count();
  static auto real = next(&::_exit, "_exit");
  real(code);
  __builtin_unreachable();
}

int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*linker_fini)(), void* stack_end) {
  static auto real = next(&__libc_start_main, "__libc_start_main");
  g_main = main;
  return real(&main_with_faults, argc, argv, init, fini, linker_fini, stack_end);
}

}  // extern "C"
