// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/run/run_output.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/ops/common/file_dtype.h"
#include "fp8/tools/models/load.h"

namespace fp8::commands {
namespace {

io::DType file_dtype(at::ScalarType dtype, const std::string& name) {
  const auto stored = runtime::ops::file_dtype(dtype);
  if (stored && !runtime::ops::is_fp8(dtype)) return *stored;
  throw io::Error("forward's result: " + name + " is of dtype " + c10::toString(dtype) +
                  ", allowed: bool, integers, f16, bf16, f32, f64");
}

}  // namespace

RunOutput::RunOutput(std::filesystem::path path, std::int64_t samples, const std::filesystem::path& reference)
    : path_(std::move(path)), samples_(samples) {
  if (!reference.empty()) reference_ = std::make_unique<io::SafetensorsFile>(reference);
}

/// Shapes and dtypes of the whole run from those of its first call.
void RunOutput::lay_out(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t count) {
  if (tensors.empty()) throw io::Error("forward's result: found no tensor");
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    Output o;
    o.name = name;
    o.dtype = tensor.scalar_type();
    o.shape = tensor.dim() == 0 ? std::vector<std::int64_t>{1} : tensor.sizes().vec();
    if (o.shape[0] % count != 0) {
      throw io::Error(fmt::format(
          "forward's result: {} has {} rows for {} samples, allowed: as many for each sample (try --batch 1)", name,
          o.shape[0], count));
    }
    o.rows_per_sample = o.shape[0] / count;
    o.shape[0] = o.rows_per_sample * samples_;
    entries.push_back({name, file_dtype(o.dtype, name), o.shape});
    if (reference_ != nullptr) {
      const auto* other = reference_->find(name);
      if (other == nullptr || other->shape != o.shape) {
        throw io::Error(fmt::format("{}: expected a tensor '{}' of shape {}, found {}", reference_->path().string(),
                                    name, io::Json(o.shape).dump(),
                                    other == nullptr ? "none" : io::Json(other->shape).dump()));
      }
    }
    outputs_.push_back(std::move(o));
  }
  writer_ = std::make_unique<io::SafetensorsWriter>(path_, entries);
}

void RunOutput::append(const std::vector<std::pair<std::string, at::Tensor>>& tensors, std::int64_t first,
                       std::int64_t count) {
  if (writer_ == nullptr) lay_out(tensors, count);
  if (tensors.size() != outputs_.size())
    throw io::Error(
        fmt::format("forward's result: {} tensors for sample {}, {} before", tensors.size(), first, outputs_.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Output& o = outputs_[i];
    at::Tensor values = tensors[i].second.detach().to(at::kCPU).contiguous();
    if (values.dim() == 0) values = values.unsqueeze(0);
    auto expected = o.shape;
    expected[0] = o.rows_per_sample * count;
    if (tensors[i].first != o.name || values.scalar_type() != o.dtype || values.sizes() != at::IntArrayRef(expected)) {
      throw io::Error(fmt::format("forward's result: {} is {} {} for sample {}, expected {} {} as before",
                                  tensors[i].first, c10::toString(values.scalar_type()),
                                  io::Json(values.sizes().vec()).dump(), first, c10::toString(o.dtype),
                                  io::Json(expected).dump()));
    }
    const auto row_bytes = samples_ > 0 && values.size(0) > 0 ? static_cast<std::uint64_t>(values.nbytes()) /
                                                                    static_cast<std::uint64_t>(values.size(0))
                                                              : 0;
    const std::uint64_t offset = static_cast<std::uint64_t>(first * o.rows_per_sample) * row_bytes;
    writer_->write(o.name, values.const_data_ptr(), offset, values.nbytes());
    look_at(o, values, offset);
  }
}

void RunOutput::look_at(Output& o, const at::Tensor& values, std::uint64_t offset) {
  const at::Tensor wide = values.to(at::kDouble);
  at::Tensor other;
  if (reference_ != nullptr) {
    const auto* found = reference_->find(o.name);
    TORCH_INTERNAL_ASSERT(found != nullptr, o.name, ": laid out beside a reference without it");
    const auto& info = *found;
    const std::uint64_t item = values.element_size(), width = static_cast<std::uint64_t>(io::size_of(info.dtype));
    other = at::empty(values.sizes(), models::scalar_type_of(info.dtype, o.name));
    reference_->read(info, other.mutable_data_ptr(), offset / item * width, static_cast<std::uint64_t>(other.nbytes()));
    other = other.to(at::kDouble);
  }
  const double* x = wide.const_data_ptr<double>();
  const double* r = other.defined() ? other.const_data_ptr<double>() : nullptr;
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    if (!std::isfinite(x[i])) {
      ++o.non_finite;
      continue;
    }
    o.min = o.seen == 0 ? x[i] : std::min(o.min, x[i]);
    o.max = o.seen == 0 ? x[i] : std::max(o.max, x[i]);
    o.sum += x[i];
    ++o.seen;
    if (r == nullptr) continue;
    const double d = std::abs(x[i] - r[i]);
    o.difference_sum += d;
    o.difference_max = std::max(o.difference_max, d);
  }
}

void RunOutput::commit() { writer_->commit(); }

io::Json RunOutput::json() const {
  io::Json all = io::Json::object();
  for (const auto& o : outputs_) {
    io::Json one = {{"shape", o.shape}, {"dtype", io::name_of(file_dtype(o.dtype, o.name))},
                    {"min", o.min},     {"max", o.max},
                    {"mean", o.mean()}, {"non_finite", o.non_finite}};
    if (reference_ != nullptr) {
      one["mean_difference"] = o.mean_difference();
      one["max_difference"] = o.difference_max;
    }
    all[o.name] = std::move(one);
  }
  return all;
}

void RunOutput::rows(Table& table) const {
  for (const auto& o : outputs_) {
    table.row({o.name, fmt::format("{} {}", io::name_of(file_dtype(o.dtype, o.name)), io::Json(o.shape).dump())});
    table.row({o.name + " min, mean, max", fmt::format("{:.6g}, {:.6g}, {:.6g}", o.min, o.mean(), o.max)});
    if (o.non_finite > 0) table.row({o.name + " NaN or Inf", std::to_string(o.non_finite)});
    if (reference_ != nullptr)
      table.row(
          {o.name + " difference mean, max", fmt::format("{:.3e}, {:.3e}", o.mean_difference(), o.difference_max)});
  }
}

}  // namespace fp8::commands
