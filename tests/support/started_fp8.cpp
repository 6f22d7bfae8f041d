// SPDX-License-Identifier: Apache-2.0
// started_fp8 DESCRIPTOR: the fp8 program for tests that run it many times. It loads LibTorch once, which is most of a
// short run's time. Each message on the socket is a run, in a process forked from this one: fields that end in a zero
// byte, folder, file of stdout, file of stderr, number of variables, the variables (NAME=VALUE), arguments. The answer
// is the status that waitpid() gives. tools/commands/run_fp8.h sends them.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "fp8/tools/commands/cli/context.h"

int fp8_main(int argc, char** argv);  // main() of tools/fp8.cpp, renamed on its command line

namespace {

std::vector<std::string> fields_of(const std::string& message) {
  std::vector<std::string> fields;
  for (std::size_t at = 0, end; (end = message.find('\0', at)) != std::string::npos; at = end + 1)
    fields.push_back(message.substr(at, end - at));
  return fields;
}

/// In the child: what execve() of the program would give it.
int run(std::vector<std::string>& fields, std::size_t variables) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGINT, SIG_DFL);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    const int file = open(fields[static_cast<std::size_t>(fd)].c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0) return 126;
    close(file);
  }
  if (chdir(fields[0].c_str()) != 0) return 126;
  clearenv();
  for (std::size_t i = 0; i < variables; ++i) putenv(fields[4 + i].data());
  std::vector<char*> argv;
  std::string program = "fp8";
  argv.push_back(program.data());
  for (std::size_t i = 4 + variables; i < fields.size(); ++i) argv.push_back(fields[i].data());
  argv.push_back(nullptr);
  return fp8_main(static_cast<int>(argv.size()) - 1, argv.data());
}

}  // namespace

int main(int, char** argv) {
  const int socket = std::atoi(argv[1]);
  // What main() of the program prefers, before LibTorch reads it.
  setenv("OMP_WAIT_POLICY", "passive", 0);
  setenv("KINETO_LOG_LEVEL", "6", 0);
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  std::string message(1 << 20, '\0');
  for (ssize_t size; (size = recv(socket, message.data(), message.size(), 0)) > 0;) {
    auto fields = fields_of(message.substr(0, static_cast<std::size_t>(size)));
    const auto variables = std::stoul(fields.at(3));
    if (fields.at(4 + variables) == "train")
      fp8::commands::load_training();
    else
      fp8::commands::load_program();
    const pid_t child = fork();
    if (child == 0) {
      close(socket);
      _exit(run(fields, variables));
    }
    int status = 0;
    waitpid(child, &status, 0);
    send(socket, &status, sizeof status, MSG_NOSIGNAL);
  }
}
