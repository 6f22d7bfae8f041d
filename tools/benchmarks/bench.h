// SPDX-License-Identifier: Apache-2.0
// The small frame of fp8_bench: kernels register themselves, results are compared with a reference, alternatives are
// timed alternately (A B A B ...) in one process that is bound to as many cores as threads; medians are printed, one
// JSON line per case. Trust ratios more than absolute times: both sides of a ratio saw the same clock, caches and
// neighbours.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fp8::bench {

/// The options of the command line.
struct Options {
  std::string filter;    ///< run the cases whose "kernel case" contains it
  int threads = 1;       ///< of our pool and of torch
  double seconds = 1.0;  ///< measured per case
};

/// The time of one alternative.
struct Time {
  double ns = 0;      ///< the median
  double spread = 0;  ///< the 90th by the 10th percentile: 1 is a quiet machine; 0: not measured
  operator double() const { return ns; }
};

/// Of a clock that only goes forward.
double now_ns();
/// Of samples in any order, at least one.
Time time_of(std::vector<double> samples);

/// One case's line.
struct Line {
  std::string name = {};
  Time ns = {};                                            ///< ours
  double bytes = 0;                                        ///< memory traffic to report as gbps; 0: none
  double macs = 0;                                         ///< multiply-adds to report as gmacs; 0: none
  Time torch_ns = {};                                      ///< the torch call it replaces; 0: there is none
  std::vector<std::pair<std::string, double>> extra = {};  ///< further numbers, printed as they are
};

class Runner {
 public:
  explicit Runner(Options options) : options_(std::move(options)) {}

  const Options& options() const { return options_; }

  /// Runs the cases of a kernel, whose name stands in front of theirs from here on.
  void run(const char* kernel, void (*cases)(Runner&)) {
    kernel_ = kernel;
    cases(*this);
  }

  /// True if the filter lets this case run; ask before allocating for it.
  bool wants(const std::string& name) const;

  /// Calls bench(*this, one) for each of these that the filter lets run.
  template <class Cases, class Bench>
  void each(const Cases& cases, Bench bench) {
    for (const auto& one : cases)
      if (wants(one.name)) bench(*this, one);
  }

  /// Returns the nanoseconds of one call of each alternative. Each is called once to warm up, then they alternate;
  /// calls shorter than 50 us are repeated within a sample.
  std::vector<Time> medians(const std::vector<std::function<void()>>& alternatives) const;

  /// Calls sample() until `share` of the time per case is over, five times at least.
  template <class Sample>
  void repeat(double share, Sample sample) const {
    const double end = now_ns() + share * options_.seconds * 1e9;
    for (int i = 0; i < 5 || now_ns() < end; ++i) sample();
  }

  /// Prints the line, with the SIMD level and the thread count in force.
  void print(const Line& line) const;

 private:
  Options options_;
  std::string kernel_;
};

/// A file of benchmarks names itself by one constant of this type.
struct Registration {
  Registration(const char* kernel, void (*run)(Runner&));
};

/// Throws std::runtime_error naming the case if `ok` is false: a wrong kernel is not timed.
void require(bool ok, const std::string& what);

}  // namespace fp8::bench
