// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/models/weights/parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "fp8/quant/forms/form.h"
#include "fp8/quant/forms/nonfinite.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/ops/common/file_dtype.h"

namespace fp8::models {
namespace {

/// No NaN and no infinity in a dense CPU tensor of f32, bf16 or f16.
bool is_finite(const at::Tensor& tensor) {
  const auto type = runtime::ops::file_dtype(tensor.scalar_type());
  return !quant::has_nonfinite(tensor.const_data_ptr(), *type, tensor.numel());
}

[[noreturn]] void fail(const io::Checkpoint& checkpoint, const std::string& message) {
  io::fail<io::Error>("[models] {}: {}", checkpoint.folder().string(), message);
}

/// True if what the checkpoint has is the parameter's transpose. Experts that stand one by one never are.
bool is_turned(const std::vector<quant::WeightPiece>& pieces, CausalLM::Storage storage) {
  return storage.transposed && pieces.size() == 1 && (pieces[0].index.has_value() || !pieces[0].of_expert);
}

/// The tensor is there with that shape; index: it is a stack [N, shape...] that holds matrix `index`.
void check_shape(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                 std::optional<std::int64_t> index) {
  if (!checkpoint.contains(name))
    fail(checkpoint, "tensor '" + name + "' is missing, expected shape " + io::shape_text(shape.vec()));
  const at::IntArrayRef found(checkpoint.info(name).shape);
  const bool stacked = index.has_value() && !found.empty() && found.slice(1) == shape && *index < found[0];
  if (index.has_value() ? !stacked : found != shape)
    fail(checkpoint,
         io::message("tensor '{}': found shape {}, config.json asks for {}{}", name, io::shape_text(found.vec()),
                     index.has_value() ? "matrix " + std::to_string(*index) + " of a stack of " : "",
                     io::shape_text(shape.vec())));
}

}  // namespace

at::ScalarType scalar_type_of(io::DType dtype, const std::string& tensor) {
  if (const auto type = runtime::ops::tensor_dtype(dtype)) return *type;
  io::fail<io::Error>("[models] tensor '{}': dtype {} is not supported", tensor, io::name_of(dtype));
}

const char* name_of_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat      ? "f32"
         : dtype == at::kBFloat16 ? "bf16"
         : dtype == at::kHalf     ? "f16"
                                  : c10::toString(dtype);
}

at::Tensor read_tensor(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  auto tensor = at::empty(info.shape, scalar_type_of(info.dtype, name));
  checkpoint.read(name, tensor.mutable_data_ptr());
  return tensor;
}

namespace {

/// Rows [first, first + rows) of the tensor, seen as a matrix that is as wide as `shape`, in pieces of some megabytes.
at::Tensor read_rows(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                     std::int64_t first, std::int64_t rows, at::ScalarType dtype, at::Device device,
                     bool allow_nonfinite = false) {
  const auto& info = checkpoint.info(name);
  if (info.dtype != io::DType::F32 && info.dtype != io::DType::BF16 && info.dtype != io::DType::F16)
    fail(checkpoint, "tensor '" + name + "': found dtype " + io::name_of(info.dtype) + ", allowed: F32, BF16, F16");
  auto sizes = shape.vec();
  sizes[0] = rows;
  const auto whole = at::empty(sizes, at::TensorOptions(dtype).device(device));
  if (whole.numel() == 0) return whole;
  constexpr std::int64_t kPiece = std::int64_t{8} << 20;
  const std::int64_t row_bytes = whole.numel() / rows * io::size_of(info.dtype);
  const std::int64_t per_piece = std::clamp<std::int64_t>(kPiece / row_bytes, 1, rows);
  sizes[0] = per_piece;
  // The device's memory is the host's: what needs no cast is read to where it stays. A buffer for each weight would
  // leave a hole in the heap beside each, which no weight fits.
  const auto type = scalar_type_of(info.dtype, name);
  const bool casts = dtype != type;
  const auto place = casts ? at::empty(sizes, type) : runtime::cpu_alias(whole);
  for (std::int64_t row = 0; row < rows; row += per_piece) {
    const auto count = std::min(per_piece, rows - row);
    auto piece = place.narrow(0, casts ? 0 : row, count);
    checkpoint.read(name, piece.mutable_data_ptr(), static_cast<std::uint64_t>((first + row) * row_bytes),
                    static_cast<std::uint64_t>(count * row_bytes));
    const bool finite = is_finite(piece);
    if (!finite && !allow_nonfinite)
      fail(checkpoint,
           io::message("tensor '{}' holds NaN or infinity: {}, allowed: finite weights (--allow-nonfinite takes them "
                       "as they are)",
                       name, quant::count_nonfinite(checkpoint, name).text(static_cast<std::uint64_t>(info.numel()))));
    if (!casts) continue;
    const auto stored = piece;
    piece = piece.to(dtype);
    if (dtype == at::kHalf && info.dtype != io::DType::F16 &&
        (finite ? !is_finite(piece) : !piece.isfinite().equal(stored.isfinite())))
      fail(checkpoint, "tensor '" + name + "' passes 65504, the largest f16, allowed here: --dtype f32 or bf16");
    whole.narrow(0, row, count).copy_(piece);
  }
  return whole;
}

constexpr std::int64_t kBlock = 32;
constexpr float kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0F, -0.5, -1, -1.5, -2, -3, -4, -6};

bool tells_of_mxfp4(const io::Json& config) {
  return config.is_object() && config.value("quant_method", io::Json()) == "mxfp4";
}

void check(const io::Checkpoint& checkpoint, const std::string& name, const std::vector<std::int64_t>& shape) {
  const std::string where = "[models] " + checkpoint.folder().string() + ": tensor '" + name + "'";
  if (!checkpoint.contains(name)) io::fail<io::Error>("{} is missing, expected U8 {}", where, io::shape_text(shape));
  const auto& info = checkpoint.info(name);
  if (info.dtype != io::DType::U8 || info.shape != shape)
    io::fail<io::Error>("{}: found {} {}, config.json asks for U8 {}", where, io::name_of(info.dtype),
                        io::shape_text(info.shape), io::shape_text(shape));
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

at::Tensor read_weight(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                       at::ScalarType dtype, at::Device device, std::optional<std::int64_t> index,
                       bool allow_nonfinite) {
  check_shape(checkpoint, name, shape, index);
  return read_rows(checkpoint, name, shape, index.value_or(0) * shape[0], shape[0], dtype, device, allow_nonfinite);
}

at::Tensor read_weight_rows(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                            std::int64_t first, std::int64_t rows, at::ScalarType dtype, at::Device device) {
  check_shape(checkpoint, name, shape, std::nullopt);
  return read_rows(checkpoint, name, shape, first, rows, dtype, device);
}

void check_parameter(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                     CausalLM::Storage storage) {
  if (has_mxfp4(checkpoint, name)) return check_mxfp4(checkpoint, name, shape);
  const auto pieces = quant::pieces_of(name, checkpoint);
  auto part = shape.vec();
  part[0] /= static_cast<std::int64_t>(pieces.size());
  if (is_turned(pieces, storage)) std::swap(part.front(), part.back());
  for (const auto& piece : pieces) check_shape(checkpoint, piece.tensor, part, piece.index);
}

at::Tensor read_parameter(const io::Checkpoint& checkpoint, const std::string& name, at::IntArrayRef shape,
                          CausalLM::Storage storage, const ReadOptions& options) {
  const auto dtype = storage.wide ? at::kFloat : options.dtype;
  if (has_mxfp4(checkpoint, name)) return read_mxfp4(checkpoint, name, shape, dtype, options.device);
  const auto pieces = quant::pieces_of(name, checkpoint);
  const auto read = [&](const quant::WeightPiece& piece, at::IntArrayRef part) {
    return read_weight(checkpoint, piece.tensor, part, dtype, options.device, piece.index, options.allow_nonfinite);
  };
  auto part = shape.vec();
  if (is_turned(pieces, storage)) {
    std::swap(part.front(), part.back());
    return read(pieces[0], part).t().contiguous();
  }
  if (pieces.size() == 1) return read(pieces[0], shape);
  part[0] /= static_cast<std::int64_t>(pieces.size());
  auto whole = at::empty(shape, at::TensorOptions(dtype).device(options.device));
  for (std::size_t i = 0; i < pieces.size(); ++i)
    whole.narrow(0, static_cast<std::int64_t>(i) * part[0], part[0]).copy_(read(pieces[i], part));
  return whole;
}

void require_promised(const io::Checkpoint& checkpoint, const std::string& name, const std::string& promise) {
  if (!checkpoint.contains(name)) fail(checkpoint, "tensor '" + name + "' is missing (config.json: " + promise + ")");
}

void require_head(const io::Checkpoint& checkpoint, const std::string& module) {
  require_promised(checkpoint, module + ".weight", "an untied head, tie_word_embeddings");
}

bool has_other_weight(const io::Checkpoint& checkpoint, const std::string& module, const std::string& other) {
  const std::string first = module + ".weight", second = other + ".weight";
  if (!checkpoint.contains(first) || !checkpoint.contains(second)) return false;
  const auto &a = checkpoint.info(first), &b = checkpoint.info(second);
  if (a.shape != b.shape || a.dtype != b.dtype) return true;
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  std::string ours, theirs;
  for (std::uint64_t at = 0; at < a.bytes(); at += kPiece) {
    const auto count = std::min(kPiece, a.bytes() - at);
    ours.resize(count), theirs.resize(count);
    checkpoint.read(first, ours.data(), at, count);
    checkpoint.read(second, theirs.data(), at, count);
    if (ours != theirs) return true;
  }
  return false;
}

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
    io::fail<io::Error>(
        "[models] {}: tensor '{}_blocks': expected a stack of matrices of a multiple of 32 columns, config.json asks "
        "for {}",
        checkpoint.folder().string(), name, io::shape_text(shape.vec()));
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
      io::fail<io::Error>(
          "[models] {}: tensor '{}_blocks': expert {} holds NaN or infinity in {} (a scale of 255, or --dtype f16), "
          "allowed: finite weights",
          checkpoint.folder().string(), name, e, c10::toString(dtype));
    whole.select(0, e).copy_(values_here);
  }
  return whole;
}

}  // namespace fp8::models
