// SPDX-License-Identifier: Apache-2.0
// fp8_bench [FILTER] [--threads N] [--seconds S]: times the host kernels beside torch. FP8_SIMD chooses the level.
#include "fp8/tools/benchmarks/bench.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/kernels/simd.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::bench {
namespace {

struct Entry {
  const char* kernel;
  void (*run)(Runner&);
};
std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

double time_ns(const std::function<void()>& call, std::int64_t repeats) {
  const double begin = now_ns();
  for (std::int64_t i = 0; i < repeats; ++i) call();
  return (now_ns() - begin) / static_cast<double>(repeats);
}

/// Threads made later stay on these cores too, as many as there are threads: a migration costs more than many of the
/// kernels. The core this one is on is the first.
void pin(int threads) {
  cpu_set_t allowed, mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int here = sched_getcpu();
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&mask) < threads; ++i) {
    const auto core = static_cast<unsigned>((std::max(here, 0) + i) % CPU_SETSIZE);
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &mask);
  }
  sched_setaffinity(0, sizeof mask, &mask);
}

/// Of samples in order; p from 0 to 1.
double percentile(const std::vector<double>& sorted, double p) {
  return sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1) + 0.5)];
}

constexpr const char* kUsage =
    "usage: fp8_bench [FILTER] [--threads N] [--seconds S]\n"
    "  FILTER     run the cases whose \"kernel case\" contains it, e.g. cast or 'cast f32'\n"
    "  --threads  threads of our kernels and of torch, on as many cores (default 1)\n"
    "  --seconds  measured per case (default 1)\n"
    "FP8_SIMD=scalar|avx2|avx512|avx512bf16|amx lowers the instruction set of our side.\n";

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (word == "--threads" || word == "--seconds") {
      char* end = nullptr;
      const double value = i + 1 < argc ? std::strtod(argv[++i], &end) : -1.0;
      if (end == nullptr || *end != '\0' || !(value > 0 && value <= 1024))
        io::fail<std::invalid_argument>("{}: found \"{}\", allowed is a number above 0, at most 1024", word, argv[i]);
      if (word == "--threads") options.threads = std::max(1, static_cast<int>(value));
      if (word == "--seconds") options.seconds = value;
    } else if (word.starts_with("--") || !options.filter.empty()) {
      io::fail<std::invalid_argument>("unexpected argument \"{}\"\n{}", word, kUsage);
    } else {
      options.filter = word;
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  pin(options.threads);
  kernels::set_num_threads(options.threads);
  at::set_num_threads(options.threads);
  Runner runner(options);
  std::vector<Entry>& all = entries();
  std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return std::string(a.kernel) < b.kernel; });
  for (const Entry& entry : all) runner.run(entry.kernel, entry.run);
  return 0;
}

}  // namespace

double now_ns() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Time time_of(std::vector<double> samples) {
  std::ranges::sort(samples);
  return {percentile(samples, 0.5), percentile(samples, 0.9) / percentile(samples, 0.1)};
}

bool Runner::wants(const std::string& name) const {
  return (kernel_ + " " + name).find(options_.filter) != std::string::npos;
}

std::vector<Time> Runner::medians(const std::vector<std::function<void()>>& alternatives) const {
  constexpr double kShortestSample = 50e3;
  std::vector<std::int64_t> repeats;
  double round = 0;
  for (const auto& call : alternatives) {
    call();
    const double once = time_ns(call, 1);
    repeats.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(kShortestSample / once))));
    round += once * static_cast<double>(repeats.back());
  }
  const int rounds = std::clamp(static_cast<int>(options_.seconds * 1e9 / round), 5, 2001);
  std::vector<std::vector<double>> samples(alternatives.size());
  for (int r = 0; r < rounds; ++r)
    for (std::size_t a = 0; a < alternatives.size(); ++a) samples[a].push_back(time_ns(alternatives[a], repeats[a]));
  std::vector<Time> result;
  for (auto& sample : samples) result.push_back(time_of(std::move(sample)));
  return result;
}

void Runner::print(const Line& line) const {
  std::printf("{\"kernel\":\"%s\",\"case\":\"%s\",\"ns\":%.0f", kernel_.c_str(), line.name.c_str(), line.ns.ns);
  if (line.ns.spread > 0) std::printf(",\"spread\":%.3f", line.ns.spread);
  if (line.bytes > 0) std::printf(",\"gbps\":%.2f", line.bytes / line.ns);
  if (line.macs > 0) std::printf(",\"gmacs\":%.2f", line.macs / line.ns);
  if (line.torch_ns > 0)
    std::printf(",\"torch_ns\":%.0f,\"torch_spread\":%.3f,\"ratio\":%.2f", line.torch_ns.ns, line.torch_ns.spread,
                line.torch_ns / line.ns);
  for (const auto& [key, value] : line.extra) std::printf(",\"%s\":%.5g", key.c_str(), value);
  std::printf(",\"simd\":\"%s\",\"threads\":%d}\n", kernels::name_of(kernels::simd_level()), options_.threads);
  std::fflush(stdout);
}

Registration::Registration(const char* kernel, void (*run)(Runner&)) { entries().push_back({kernel, run}); }

void require(bool ok, const std::string& what) {
  if (!ok) io::fail<std::runtime_error>("{}: the result differs from the reference, not timed", what);
}

}  // namespace fp8::bench

int main(int argc, char** argv) {
  try {
    return fp8::bench::run(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "fp8_bench: error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fp8_bench: error: %s\n", error.what());
    return 1;
  }
}
