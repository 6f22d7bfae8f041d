// SPDX-License-Identifier: Apache-2.0
// verify_conversion() of checkpoint_convert.h: both folders streamed side by side.
#include <algorithm>
#include <cstring>
#include <map>

#include "fp8/quant/convert_plan.h"
#include "fp8/quant/float_dtype.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using recipes::FloatType;

constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

class Comparison {
 public:
  Comparison(const fs::path& model, const fs::path& out, const ConvertOptions& options)
      : options_(options), a_(model), b_(out), plan_(plan_conversion(a_, options)) {
    for (const auto& w : b_.stored.weights) written_[w.spec.module] = &w;
    for (const auto& tensor : a_.checkpoint.names()) {
      if (plan_.consumed.count(tensor) == 0) tensors_.push_back(tensor);
    }
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
    for (const auto& d : found) {
      if (d.exact && !d.equal) v.broken.push_back(d.name);
    }
    v.modules.assign(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(modules));
    std::stable_sort(v.modules.begin(), v.modules.end(), [](const Difference& x, const Difference& y) { return x.rms_error > y.rms_error; });
    compare_kv(v);
    return v;
  }

 private:
  [[noreturn]] void fail(const std::string& tensor, const std::string& what) const {
    throw io::Error(b_.checkpoint.folder().string() + ": " + tensor + ": " + what);
  }

  void check_stop() const {
    if (options_.stream.stop && options_.stream.stop()) throw io::Error("interrupted");
  }

  /// What `out` has of a module: codes, or a tensor of the type asked for.
  const StoredWeight* check_written(const PlannedWeight& w) const {
    const auto it = written_.find(w.to.module);
    if (w.change != Change::decoded) {
      if (it == written_.end())
        fail(w.to.module, "expected in fp8, found " + std::string(b_.checkpoint.contains(w.output()) ? "in high precision" : "nothing"));
      if (it->second->spec.rows != w.to.rows || it->second->spec.cols != w.to.cols) fail(w.to.module, "found another shape than in the source");
      return it->second;
    }
    if (it != written_.end()) fail(w.output(), std::string("expected in ") + kernels::name_of(plan_.type) + ", found in fp8");
    const auto& info = b_.checkpoint.info(w.output());
    if (info.dtype != file_type(plan_.type))
      fail(w.output(), std::string("expected dtype ") + io::name_of(file_type(plan_.type)) + ", found " + io::name_of(info.dtype));
    if (info.shape != std::vector<std::int64_t>{w.to.rows, w.to.cols}) fail(w.output(), "found another shape than in the source");
    return nullptr;
  }

  Difference compare_weight(const PlannedWeight& w) const {
    const StoredWeight* written = check_written(w);
    const std::int64_t cols = w.to.cols, step = rows_per_chunk(w, w.from.transposed || (written != nullptr && written->transposed));
    const auto from = read_scale_inv(a_.checkpoint, w.from);
    const auto to = written == nullptr ? std::vector<float>() : read_scale_inv(b_.checkpoint, *written);
    std::vector<std::uint8_t> bytes;
    std::vector<float> before, after, promised;
    Deviation d, from_promise;
    for (std::int64_t row = 0; row < w.to.rows; row += step) {
      const std::int64_t rows = std::min(step, w.to.rows - row), n = rows * cols;
      for (auto* v : {&before, &after, &promised}) v->resize(static_cast<std::size_t>(n));
      bytes.resize(static_cast<std::size_t>(n));
      read_code_rows(a_.checkpoint, w.from, row, rows, bytes.data());
      const auto decode = [&](const StoredWeight& stored, const std::vector<float>& scales, void* y, FloatType type) {
        decode_weight_rows(bytes.data(), rows, cols, row, scales.data(), static_cast<std::int64_t>(scales.size()), stored.spec.scheme, y, type);
      };
      decode(w.from, from, before.data(), FloatType::F32);
      if (written != nullptr) {
        read_code_rows(b_.checkpoint, *written, row, rows, bytes.data());
        decode(*written, to, after.data(), FloatType::F32);
      } else {
        std::vector<std::uint8_t> typed(static_cast<std::size_t>(n * kernels::size_of(plan_.type)));
        decode(w.from, from, typed.data(), plan_.type);
        cast_floats(typed.data(), plan_.type, n, FloatType::F32, promised.data());
        b_.checkpoint.read(w.output(), typed.data(), static_cast<std::uint64_t>(row * cols * kernels::size_of(plan_.type)), typed.size());
        cast_floats(typed.data(), plan_.type, n, FloatType::F32, after.data());
        from_promise.add(promised.data(), after.data(), n);
      }
      d.add(before.data(), after.data(), n);
      check_stop();
    }
    bool equal = written == nullptr ? from_promise.equal : d.equal;
    if (written != nullptr && w.to.scheme.activations == ActivationScaling::static_tensor)
      equal = equal && written->spec.scheme.input_scale_inv == w.to.scheme.input_scale_inv;
    return {w.to.module, w.exact, equal, d.max_error(), d.rms_error()};
  }

  Difference compare_tensor(const std::string& name) const {
    const auto &x = a_.checkpoint.info(name), &y = b_.checkpoint.info(name);
    const bool cast = plan_.cast && is_float(x.dtype);
    Difference result{name, true, x.shape == y.shape && y.dtype == (cast ? file_type(plan_.type) : x.dtype), 0, 0};
    const std::uint64_t from_size = static_cast<std::uint64_t>(io::size_of(x.dtype)), to_size = static_cast<std::uint64_t>(io::size_of(y.dtype));
    std::vector<std::uint8_t> source(kChunkBytes), expected(cast ? 4 * kChunkBytes : 0), found;
    for (std::uint64_t at = 0; result.equal && at < x.bytes(); at += kChunkBytes) {
      const std::uint64_t size = std::min(kChunkBytes, x.bytes() - at);
      a_.checkpoint.read(name, source.data(), at, size);
      if (cast) cast_floats(source.data(), float_type(x.dtype), static_cast<std::int64_t>(size / from_size), plan_.type, expected.data());
      found.resize(size / from_size * to_size);
      b_.checkpoint.read(name, found.data(), at / from_size * to_size, found.size());
      result.equal = std::memcmp(found.data(), cast ? expected.data() : source.data(), found.size()) == 0;
      check_stop();
    }
    return result;
  }

  void compare_kv(Verification& v) const {
    for (const auto& kv : plan_.config.kv) {
      const bool same = std::any_of(b_.stored.kv.begin(), b_.stored.kv.end(),
                                    [&](const KvScales& o) { return o.attention == kv.attention && o.k == kv.k && o.v == kv.v; });
      if (!same) v.broken.push_back(kv.attention + " (key-value cache scales)");
    }
  }

  const ConvertOptions& options_;
  ConvertSource a_, b_;
  ConvertPlan plan_;
  std::map<std::string, const StoredWeight*> written_;
  std::vector<std::string> tensors_;
};

}  // namespace

Verification verify_conversion(const fs::path& model, const fs::path& out, const ConvertOptions& options) {
  return Comparison(model, out, options).run();
}

}  // namespace fp8::quant
