// SPDX-License-Identifier: Apache-2.0
// exit_program DEVICE LIBRARY: a thread that computes on DEVICE ("hpu" or "cpu") while main() returns. The library is
// loaded here, after a handler for exit(), and LibTorch has computed before: what the library would take back at the
// program's end is taken back before the handler runs, what LibTorch takes back after it. The handler lets the thread
// go on for 100 rounds more and tells by the exit code how that went: 0 well, 1 it threw, 2 it stood still.
#include <dlfcn.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::atomic<long> rounds{0};
std::atomic<bool> failed{false};

/// No backward: on the CPU too LibTorch's engine does not outlive main().
void compute(const at::Device device, long count) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = at::TensorOptions().device(device);
  at::Tensor x = at::ones({8, 8}, options);
  const at::Tensor w = at::full({8, 8}, 0.125, options);
  for (long i = 0; i < count; ++i, ++rounds) {
    x = at::linear(x, w) +
        0.25 * at::randn({8, 8}, options).clamp(-1, 1);  // allocator, generator, interception, fallback
    at::Tensor out = at::empty({0}, options);
    at::add_out(out, x, x);
    if (x.cpu().isnan().any().item<bool>()) failed = true;
  }
}

void work(const at::Device device) {
  try {
    compute(device, std::numeric_limits<long>::max());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thread: %s\n", error.what());
    failed = true;
  }
}

void at_exit() {
  const long seen = rounds;
  for (int i = 0; i < 1000 && !failed && rounds < seen + 100; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::_Exit(failed ? 1 : rounds < seen + 100 ? 2 : 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  compute(at::kCPU, 3);
  if (std::atexit(&at_exit) != 0) return 65;
  if (dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 66;
  }
  std::thread(work, at::Device(argv[1])).detach();
  while (rounds < 30 && !failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}
