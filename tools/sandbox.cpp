// SPDX-License-Identifier: Apache-2.0
// A list of what is refused, for one of what is allowed would end the program with the next libc. Names that an
// architecture does not have are left out by libseccomp, and calls by another architecture's numbers end the process.
#include "fp8/tools/sandbox.h"

#include <seccomp.h>

#include <cerrno>
#include <memory>
#include <system_error>

namespace fp8::commands {
namespace {

constexpr const char* kRefused[] = {
    // Programs, and other processes.
    "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
    // What gives a way around this filter, or into the kernel.
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "userfaultfd", "perf_event_open", "init_module",
    "finit_module", "delete_module", "kexec_load", "kexec_file_load", "add_key", "request_key", "keyctl",
    // Other views of the files.
    "mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "fspick", "mount_setattr", "pivot_root",
    "chroot", "unshare", "setns", "open_by_handle_at", "swapon", "swapoff"};

/// A word for each set of calls, as doctor prints them.
constexpr const char *kAlone = "no other program, no network", *kAmongRanks = "no other program";

bool refuse(scmp_filter_ctx filter, const char* name) {
  const int number = seccomp_syscall_resolve_name(name);
  return number == __NR_SCMP_ERROR || seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), number, 0) == 0;
}

}  // namespace

std::string enter_sandbox(bool ranks_talk) {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ALLOW), &seccomp_release);
  bool made = filter != nullptr;
  for (const char* name : kRefused) made = made && refuse(filter.get(), name);
  if (!ranks_talk) made = made && refuse(filter.get(), "socket");
  if (!made) return "off: its filter can't be made";
  const int error = seccomp_load(filter.get());
  if (error != 0) return "off: this kernel takes no filter: " + std::generic_category().message(-error);
  return ranks_talk ? kAmongRanks : kAlone;
}

}  // namespace fp8::commands
