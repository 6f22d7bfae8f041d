// SPDX-License-Identifier: Apache-2.0
// verify_conversion() of reform.h: both folders streamed side by side. What was promised comes from the plan; what
// stands in the folders is read a second way (reading.h), so that a reading that is wrong is not its own witness.
#include <cstring>

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/checkpoint/reading.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using recipes::FloatType;

/// NaN that was allowed is NaN on both sides.
void take_out_nonfinite(std::vector<float>& a, std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = (std::isnan(a[i]) && std::isnan(b[i])) || (std::isinf(a[i]) && a[i] == b[i]);
    if (same) a[i] = b[i] = 0;
  }
}

class Comparison {
 public:
  Comparison(const fs::path& model, const fs::path& out, const ConvertOptions& options)
      : options_(options), a_(model, options.assume), b_(out), plan_(promised(a_, options)) {
    for (const auto& w : plan_.weights) planned_[w.to.module] = &w;
    for (const auto& [module, weight] : before_.weights())
      if (!planned_.contains(module)) fail(module, "stands in codes in the source, and is not converted");
    for (const auto& piece : plan_.pieces)
      if (piece.weights.empty()) tensors_.push_back(piece.from);
  }

  Verification run() {
    const std::size_t modules = plan_.weights.size(), all = modules + tensors_.size();
    std::vector<Difference> found(all);
    kernels::parallel_for(static_cast<std::int64_t>(all), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::size_t>(i);
        found[at] = at < modules ? compare_weight(plan_.weights[at]) : compare_tensor(tensors_[at - modules]);
      }
    });
    Verification v;
    v.tensors = tensors_.size();
    for (const auto& d : found)
      if (d.exact && !d.equal) v.changed.push_back(d.name);
    v.modules.assign(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(modules));
    std::ranges::stable_sort(v.modules,
                             [](const Difference& x, const Difference& y) { return x.rms_error > y.rms_error; });
    compare_kv(v);
    return v;
  }

 private:
  using Weight = CheckpointReading::Weight;

  /// Where NaN and Inf stand is seen when values are compared.
  static FolderPlan promised(const SourceFolder& source, ConvertOptions options) {
    options.allow_nonfinite = false;
    return plan_conversion(source, options);
  }

  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    io::fail_at(b_.checkpoint.folder().string(), "{}: {}", tensor, what);
  }

  void check_stop() const {
    if (options_.stream.stop && options_.stream.stop()) throw io::Error("interrupted");
  }

  /// The weight of a module in `out`: codes, or (null) a tensor of the type asked for.
  const Weight* check_written(const PlannedWeight& w) const {
    const auto it = after_.weights().find(w.to.module);
    if (w.change != Change::decoded) {
      if (it == after_.weights().end())
        fail(w.to.module, "expected in fp8, found " +
                              std::string(b_.checkpoint.contains(w.output()) ? "in high precision" : "nothing"));
      if (it->second.rows != w.to.rows || it->second.cols != w.to.cols)
        fail(w.to.module, "found another shape than in the source");
      return &it->second;
    }
    if (it != after_.weights().end())
      fail(w.output(), std::string("expected in ") + kernels::name_of(plan_.type) + ", found in fp8");
    const auto& info = b_.checkpoint.info(w.output());
    if (info.dtype != file_type(plan_.type))
      fail(w.output(),
           std::string("expected dtype ") + io::name_of(file_type(plan_.type)) + ", found " + io::name_of(info.dtype));
    if (info.shape != std::vector<std::int64_t>{w.to.rows, w.to.cols})
      fail(w.output(), "found another shape than in the source");
    return nullptr;
  }

  Difference compare_weight(const PlannedWeight& w) const {
    const std::string& module = w.to.module;
    const Weight* written = check_written(w);
    const Weight& stored = stored_weight(w);
    const std::int64_t cols = w.to.cols,
                       step = rows_per_chunk(w, stored.transposed || (written != nullptr && written->transposed));
    Deviation d, from_promise;
    for (std::int64_t row = 0; row < w.to.rows; row += step) {
      const std::int64_t rows = std::min(step, w.to.rows - row), n = rows * cols;
      std::vector<float> before(static_cast<std::size_t>(n)), after(before.size());
      before_.read(module, row, rows, before.data());
      if (written != nullptr) {
        after_.read(module, row, rows, after.data());
      } else {
        after_.read_floats(w.output(), row * cols, n, after.data());
        std::vector<float> promised = before, found = after;
        for (float& value : promised) value = rounded_to(value, plan_.type);
        if (options_.allow_nonfinite) take_out_nonfinite(promised, found);
        from_promise.add(promised.data(), found.data(), n);
      }
      if (options_.allow_nonfinite) take_out_nonfinite(before, after);
      d.add(before.data(), after.data(), n);
      check_stop();
    }
    bool equal = written == nullptr ? from_promise.equal : d.equal;
    if (written != nullptr && w.to.scheme.is_static())
      equal = equal && !stored.input.empty() && written->input == stored.input;
    return {module, w.exact, equal, d.max_error(), d.rms_error()};
  }

  const Weight& stored_weight(const PlannedWeight& w) const {
    const auto it = before_.weights().find(w.to.module);
    if (it == before_.weights().end() || it->second.rows != w.to.rows || it->second.cols != w.to.cols)
      io::fail_at(a_.checkpoint.folder().string(), "{}: a second reading finds no such weight in codes", w.from.weight);
    return it->second;
  }

  Difference compare_tensor(const std::string& name) const {
    const auto &x = a_.checkpoint.info(name), &y = b_.checkpoint.info(name);
    const bool cast = plan_.cast && is_float(x.dtype);
    Difference result{name, true, x.shape == y.shape && y.dtype == (cast ? file_type(plan_.type) : x.dtype), 0, 0};
    if (cast) return compare_cast(name, result);
    std::vector<std::uint8_t> source, found;
    for (std::uint64_t at = 0; result.equal && at < x.bytes(); at += io::kChunkBytes) {
      source.resize(std::min(io::kChunkBytes, x.bytes() - at));
      found.resize(source.size());
      a_.checkpoint.read(name, source.data(), at, source.size());
      b_.checkpoint.read(name, found.data(), at, found.size());
      result.equal = std::memcmp(found.data(), source.data(), found.size()) == 0;
      check_stop();
    }
    return result;
  }

  Difference compare_cast(const std::string& name, Difference result) const {
    constexpr std::int64_t kElements = std::int64_t{1} << 18;
    std::vector<float> source, found;
    const std::int64_t all = a_.checkpoint.info(name).numel();
    for (std::int64_t at = 0; result.equal && at < all; at += kElements) {
      const std::int64_t n = std::min(kElements, all - at);
      for (auto* v : {&source, &found}) v->resize(static_cast<std::size_t>(n));
      before_.read_floats(name, at, n, source.data());
      after_.read_floats(name, at, n, found.data());
      for (std::int64_t i = 0; i < n; ++i) {
        const float expected = rounded_to(source[static_cast<std::size_t>(i)], plan_.type),
                    is = found[static_cast<std::size_t>(i)];
        if (!(expected == is || (std::isnan(expected) && std::isnan(is))) || std::signbit(expected) != std::signbit(is))
          result.equal = false;
      }
      check_stop();
    }
    return result;
  }

  void compare_kv(Verification& v) const {
    if (plan_.config.kv.empty()) return;  // none, or dropped with a note
    const auto holds = [](const CheckpointReading& reading, const KvScales& kv) {
      const auto it = reading.caches().find(kv.attention);
      return it != reading.caches().end() && it->second.k == kv.k && it->second.v == kv.v;
    };
    for (std::size_t i = 0; i < plan_.config.kv.size(); ++i) {
      const bool same = i < a_.stored.kv.size() && holds(before_, a_.stored.kv[i]) && holds(after_, plan_.config.kv[i]);
      if (!same) v.changed.push_back(plan_.config.kv[i].attention + " (key-value cache scales)");
    }
    if (before_.caches().size() != plan_.config.kv.size())
      v.changed.push_back("key-value cache scales of " + std::to_string(before_.caches().size()) +
                          " attention modules");
  }

  const ConvertOptions& options_;
  SourceFolder a_, b_;
  const FolderPlan plan_;
  const bool assumes_ = !options_.assume.empty();
  const CheckpointReading before_{a_.checkpoint, assumes_,
                                  assumes_ && !form_named(options_.assume).stores_transposed()},
      after_{b_.checkpoint};
  std::map<std::string, const PlannedWeight*> planned_;
  std::vector<std::string> tensors_;
};

}  // namespace

Verification verify_conversion(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  return Comparison(model, out, options).run();
}

}  // namespace fp8::quant
