// SPDX-License-Identifier: Apache-2.0
// A library that does, when it is loaded, what a reader might be made to do by the bytes of a stranger. It prints the
// name and the errno of each attempt; where none is refused, nothing is started and nothing is sent.
#include <linux/io_uring.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace {

void attempt(const char* name, long result) { std::fprintf(stderr, "%s %d\n", name, result < 0 ? errno : 0); }

[[gnu::constructor]] void misbehave() {
  char* const nothing[] = {nullptr};
  attempt("exec", execve("/no/such/program", nothing, nothing));
  attempt("socket", socket(AF_INET, SOCK_STREAM, 0));
  attempt("ptrace", ptrace(PTRACE_PEEKDATA, 0, nullptr, nullptr));
  io_uring_params parameters = {};
  attempt("io_uring", syscall(SYS_io_uring_setup, 1, &parameters));
  attempt("unshare", syscall(SYS_unshare, 0));
}

}  // namespace
