// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/weights/mxfp4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::models {
namespace {

constexpr std::int64_t kBlock = 32;
constexpr float kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};

bool tells_of_mxfp4(const io::Json& config) {
  return config.is_object() && config.value("quant_method", io::Json()) == "mxfp4";
}

void check(const io::Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape) {
  const std::string where = "[models] " + checkpoint.folder().string() + ": tensor '" + name + "'";
  if (!checkpoint.contains(name)) throw io::Error(where + " is missing, expected U8 " + io::shape_text(shape));
  const auto& info = checkpoint.info(name);
  if (info.dtype != io::DType::U8 || info.shape != shape)
    throw io::Error(where + ": found " + io::name_of(info.dtype) + " " + io::shape_text(info.shape) +
                    ", config.json asks for U8 " + io::shape_text(shape));
}

/// Bytes of expert `e` of a stack of U8.
at::Tensor read_expert(const io::Checkpoint& checkpoint, const std::string& name, std::int64_t e) {
  const auto& shape = checkpoint.info(name).shape;
  const auto one = at::empty(at::IntArrayRef(shape).slice(1), at::kByte);
  const auto bytes = static_cast<std::uint64_t>(one.numel());
  checkpoint.read(name, one.mutable_data_ptr(), static_cast<std::uint64_t>(e) * bytes, bytes);
  return one;
}

}  // namespace

bool is_quantized(const std::filesystem::path& folder) {
  const auto config = quant::read_quantization_config(folder);
  return !config.is_null() && !tells_of_mxfp4(config);
}

std::vector<std::string> mxfp4_tensors(const io::Checkpoint& checkpoint) {
  std::vector<std::string> names;
  if (!tells_of_mxfp4(quant::read_quantization_config(checkpoint))) return names;
  for (const auto& name : checkpoint.names())
    if (name.ends_with("_blocks") || name.ends_with("_scales")) names.push_back(name);
  return names;
}

bool has_mxfp4(const io::Checkpoint& checkpoint, const std::string& name) {
  return !checkpoint.contains(name) && checkpoint.contains(name + "_blocks");
}

void check_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape) {
  if (shape.size() != 3 || shape[1] % kBlock != 0)
    throw io::Error("[models] " + checkpoint.folder().string() + ": tensor '" + name +
                    "_blocks': expected a stack of matrices of a multiple of 32 columns, config.json asks for " +
                    io::shape_text(shape.vec()));
  check(checkpoint, name + "_blocks", {shape[0], shape[2], shape[1] / kBlock, kBlock / 2});
  check(checkpoint, name + "_scales", {shape[0], shape[2], shape[1] / kBlock});
}

at::Tensor read_mxfp4(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                      at::ScalarType dtype, at::Device device) {
  check_mxfp4(checkpoint, name, shape);
  const auto values = at::tensor(at::ArrayRef<float>(kE2M1), at::kFloat);
  const auto whole = at::empty(shape, at::TensorOptions(dtype).device(device));
  for (std::int64_t e = 0; e < shape[0]; ++e) {
    const auto codes = read_expert(checkpoint, name + "_blocks", e);
    const auto low = codes.bitwise_and(15).to(at::kInt), high = codes.bitwise_right_shift(4).to(at::kInt);
    const auto pairs = at::stack({low, high}, -1).flatten(-2);  // [out, in / 32, 32]
    const auto scales = at::exp2(read_expert(checkpoint, name + "_scales", e).to(at::kFloat) - 127.0);
    const auto decoded = values.index_select(0, pairs.flatten()).view(pairs.sizes()) * scales.unsqueeze(-1);
    const auto values_here = decoded.flatten(-2).t().to(dtype);
    if (!values_here.isfinite().all().item<bool>())
      throw io::Error("[models] " + checkpoint.folder().string() + ": tensor '" + name + "_blocks': expert " +
                      std::to_string(e) + " holds NaN or infinity in " + c10::toString(dtype) +
                      " (a scale of 255, or --dtype f16), allowed: finite weights");
    whole.select(0, e).copy_(values_here);
  }
  return whole;
}

}  // namespace fp8::models
