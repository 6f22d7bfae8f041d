// SPDX-License-Identifier: Apache-2.0
// A filter of system calls, made when this is compiled: nothing here allocates. It lists what is refused, for a list of
// what is allowed would end the program with the next libc.
//
//   another architecture's call            ends the process: its numbers mean other calls
//   an x32 call, on x86-64                 the same; but -1, which debuggers put for a call that they take out, passes
//   a call of kRefused                     fails with EPERM
//   any other                              passes
#include "fp8/tools/sandbox.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

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

}  // namespace

std::string enter_sandbox(bool ranks_talk) {
  if (!(ranks_talk ? load(kFilterAmongRanks) : load(kFilterAlone)))
    return "off: this kernel takes no filter: " + std::generic_category().message(errno);
  return ranks_talk ? kAmongRanks : kAlone;
}

}  // namespace fp8::commands
