// SPDX-License-Identifier: Apache-2.0
// The fp8 program from its start to its end, beside a program that does nothing. None of these needs LibTorch but
// doctor, which loads it. "load": all libraries of fp8 with LibTorch beside LibTorch alone, each by a program that does
// nothing else; ours_ns is the difference.
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::startup_cases {
namespace {

namespace fs = std::filesystem;

/// Its output goes to /dev/null.
void run_program(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  int status = 0;
  require(error == 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "startup of " + command[0]);
}

void bench_load(Runner& runner, const fs::path& bin) {
  if (!runner.wants("load")) return;
  Dl_info torch;
  require(dladdr(reinterpret_cast<void*>(&at::globalContext), &torch) != 0, "startup load: LibTorch's file");
  const std::string loader = (bin / "fp8_bench_load").string();
  const auto times = runner.medians(
      {[&] { run_program({loader, FP8_PROGRAM_LIBRARY}); }, [&] { run_program({loader, torch.dli_fname}); }});
  runner.print({.name = "load", .ns = times[0], .torch_ns = times[1], .extra = {{"ours_ns", times[0] - times[1]}}});
}

/// Writes the input of fp8_bench_register: the operators and kernels of this process beyond LibTorch's. Returns their
/// number.
int write_registrations(const fs::path& path) {
  const std::set<std::string_view> own = {"fp8", "hpu", "quantized_decomposed"};
  std::ofstream file(path);
  std::string kernels;
  int count = 0;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const bool is_own = own.contains(name.getNamespace().value_or(""));
    std::string target = toString(name);
    if (is_own) {
      target.replace(0, target.find("::"), "fp8_bench");
      const std::string schema = toString(op->schema());
      file << schema.substr(schema.find("::") + 2) << '\n';
      ++count;
    }
    for (const auto key : {c10::DispatchKey::HPU, c10::DispatchKey::AutogradHPU, c10::DispatchKey::Meta}) {
      if ((key == c10::DispatchKey::Meta && !is_own) || !op->hasKernelForDispatchKey(key)) continue;
      kernels += std::string(toString(key)) + " " + target + "\n";
      ++count;
    }
  }
  file << kernels;
  require(file.flush().good() && count > 0, "startup registrations: their list");
  return count;
}

void bench_registrations(Runner& runner, const fs::path& bin) {
  if (!runner.wants("registrations")) return;
  const fs::path list = fs::temp_directory_path() / ("fp8_bench_register." + std::to_string(getpid()));
  const int count = write_registrations(list);
  const std::string program = (bin / "fp8_bench_register").string();
  const auto times =
      runner.medians({[&] { run_program({program, list.string()}); }, [&] { run_program({program, "/dev/null"}); }});
  fs::remove(list);
  runner.print({.name = "registrations",
                .ns = times[0],
                .torch_ns = times[1],
                .extra = {{"floor_ns", times[0] - times[1]}, {"registrations", count}}});
}

void run(Runner& runner) {
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path();
  const std::string fp8 = (bin / "fp8").string();
  const std::string model = FP8_DEMO_MODEL;
  const struct {
    const char* name;
    std::vector<std::string> command;
  } cases[] = {{"version", {fp8, "--version"}},
               {"help", {fp8, "--help"}},
               {"inspect", {fp8, "inspect", model}},
               {"inspect headers", {fp8, "inspect", model, "--tensors-only"}},
               {"evaluate help", {fp8, "evaluate", "--help"}},
               {"doctor", {fp8, "doctor"}}};
  for (const auto& c : cases) {
    if (!runner.wants(c.name)) continue;
    const auto times = runner.medians({[&] { run_program(c.command); }, [] { run_program({"/bin/true"}); }});
    runner.print({.name = c.name, .ns = times[0], .extra = {{"true_ns", times[1]}}});
  }
  bench_load(runner, bin);
  bench_registrations(runner, bin);
}

const Registration registration("startup", run);

}  // namespace
}  // namespace fp8::bench::startup_cases
