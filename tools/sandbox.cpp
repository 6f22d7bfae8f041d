// SPDX-License-Identifier: Apache-2.0
// A filter of system calls, made when this is compiled: nothing here allocates. It lists what is refused, for a list of
// what is allowed would end the program with the next libc.
//
//   another architecture's call            ends the process: its numbers mean other calls
//   an x32 call, on x86-64                 the same; but -1, which debuggers put for a call that they take out, passes
//   a call of kRefused                     fails with EPERM
//   any other                              passes
#include "fp8/tools/sandbox.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "fp8/runtime/io/base/file.h"

namespace fp8::commands {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "fp8: the sandbox knows the numbers of x86-64 and aarch64"
#endif

constexpr std::uint32_t kRefused[] = {
    // Programs, and other processes.
    SYS_execve, SYS_execveat, SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pidfd_getfd, SYS_kcmp,
    // What gives a way around this filter, or into the kernel.
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_bpf, SYS_userfaultfd, SYS_perf_event_open,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_add_key,
    SYS_request_key, SYS_keyctl,
    // Other views of the files.
    SYS_mount, SYS_umount2, SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsmount, SYS_fspick, SYS_mount_setattr,
    SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns, SYS_open_by_handle_at, SYS_swapon, SYS_swapoff,
    // The network: last, for ranks that talk keep it.
    SYS_socket};

/// A word for each set of calls, as doctor prints them.
constexpr const char *kAlone = "no other program, no network", *kAmongRanks = "no other program";

/// The program that refuses the first kCalls of kRefused. A jump names how many instructions it passes over.
template <std::size_t kCalls>
constexpr auto make_filter() {
  constexpr std::uint32_t kX32 = 0x40000000, kNoCall = 0xFFFFFFFF;
  constexpr std::size_t kHead = 7;
  std::array<sock_filter, kHead + kCalls + 2> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32, 0, 3),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kNoCall, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  }};
  for (std::size_t i = 0; i < kCalls; ++i)
    filter[kHead + i] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRefused[i], static_cast<std::uint8_t>(kCalls - i), 0);
  filter[kHead + kCalls] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  filter[kHead + kCalls + 1] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  return filter;
}

constexpr auto kFilterAlone = make_filter<std::size(kRefused)>();
constexpr auto kFilterAmongRanks = make_filter<std::size(kRefused) - 1>();

/// False with errno, where the kernel takes none.
template <std::size_t kSize>
bool load(const std::array<sock_filter, kSize>& filter) {
  const sock_fprog program = {kSize, const_cast<sock_filter*>(filter.data())};  // which is only read
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Landlock: what is not granted is refused, where the kernel's version knows the right. No library has it.

// Of version 2, the first that lets a file be moved to another folder, of 3 and of 5: newer than the headers of some
// distributions.
constexpr std::uint64_t kMove = std::uint64_t{1} << 13, kTruncate = std::uint64_t{1} << 14,
                        kDeviceControl = std::uint64_t{1} << 15;

constexpr std::uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr std::uint64_t kName = LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                                LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                                LANDLOCK_ACCESS_FS_REMOVE_DIR;
constexpr std::uint64_t kPut = kName | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;
constexpr std::uint64_t kWrite = kRead | kPut | kMove;
constexpr std::uint64_t kRights[] = {kRead, kName, kPut, kWrite};  ///< by Place::Use
/// Of what is no folder.
constexpr std::uint64_t kOfFiles = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE |
                                   LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate | kDeviceControl;

/// What libraries read by themselves: of the process and the machine, of times and languages, of hosts' names.
// clang-format off: a line for each kind
constexpr const char* kSystem[] = {
    "/proc", "/sys", "/dev/urandom", "/dev/random", "/etc/ld.so.cache",
    "/etc/localtime", "/usr/share/zoneinfo", "/usr/lib/locale", "/usr/share/locale",
    "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"};
// clang-format on
constexpr const char* kSystemWritten[] = {"/dev/null", "/dev/tty", "/dev/shm"};

/// What is not there can't be granted, and what the kernel takes no rule for (a pipe) it does not refuse.
void grant(int rules, std::uint64_t rights, const char* path) {
  const io::Descriptor place(::open(path, O_PATH | O_CLOEXEC));
  struct stat status;
  if (place.get() < 0 || ::fstat(place.get(), &status) != 0) return;
  if (!S_ISDIR(status.st_mode)) rights &= kOfFiles;
  const landlock_path_beneath_attr rule = {rights, place.get()};
  ::syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

}  // namespace

std::string keep_to(const std::vector<Place>& places) {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 2) return "any file: this kernel has no Landlock, or one before Linux 5.19";
  std::uint64_t known = kMove * 2 - 1;  // the rights of version 2, which are the lowest bits
  if (version >= 3) known |= kTruncate;
  if (version >= 5) known |= kDeviceControl;
  const io::Descriptor rules(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &known, sizeof known, 0)));
  for (const char* path : kSystem) grant(rules.get(), kRead & known, path);
  for (const char* path : kSystemWritten) grant(rules.get(), kWrite & known, path);
  for (const Place& place : places)
    grant(rules.get(), kRights[static_cast<int>(place.use)] & known, place.path.c_str());
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::syscall(SYS_landlock_restrict_self, rules.get(), 0) == 0)
    return "no other file";
  return "any file: " + std::generic_category().message(errno);
}

std::string enter_sandbox(bool ranks_talk) {
  if (!(ranks_talk ? load(kFilterAmongRanks) : load(kFilterAlone)))
    return "off: this kernel takes no filter: " + std::generic_category().message(errno);
  return ranks_talk ? kAmongRanks : kAlone;
}

}  // namespace fp8::commands
