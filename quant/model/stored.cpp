// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/stored.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/accumulate.h>

#include <cstring>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/operators.h"

namespace fp8::quant {
namespace {

c10::intrusive_ptr<runtime::WeightTag> tag_of_codes(const char* op, const at::Tensor& weight) {
  if (weight.is_hpu()) runtime::find_tag(weight);  // puts a mark that the tensor alone has on its memory
  auto tag = runtime::tag_in_memory(weight);
  TORCH_CHECK(fp8_handler_in_memory(weight) != nullptr, "[fp8::", op, "] weight: expected a weight in fp8, found ",
              tag ? tag->describe() : "codes without a scale");
  return tag;
}

bool is_transposed(const runtime::WeightTag& tag, const at::Tensor& weight) {
  return !weight.is_contiguous() || weight.sizes() != at::IntArrayRef(tag.sizes);
}

at::Tensor turned(const at::Tensor& t, bool transposed) { return transposed && t.dim() > 1 ? t.transpose(-2, -1) : t; }

struct PackedPart {
  std::vector<std::int64_t> sizes;
  std::int64_t bytes = 0;
};

/// Sizes of the header, each `least` or more, and how many bytes that many elements are.
PackedPart packed_part(const io::Json& header, const char* key, std::int64_t itemsize, std::int64_t least = 1) {
  PackedPart part;
  std::int64_t count = 1;
  for (const auto& side : header.value(key, io::Json::array())) {
    const std::int64_t n = side.is_number_integer() ? side.get<std::int64_t>() : -1;
    const std::int64_t most = (std::int64_t{1} << 40) / std::max<std::int64_t>(n, 1);
    TORCH_CHECK(n >= least && n <= std::numeric_limits<std::int32_t>::max() && count <= most,
                "[fp8::unpacked] bytes: key '", key, "': found ", side.dump());
    part.sizes.push_back(n);
    count *= n;
  }
  part.bytes = count * itemsize;
  return part;
}

at::Tensor copy_of(const std::uint8_t* bytes, const PackedPart& part, at::ScalarType dtype) {
  const at::Tensor out = at::empty(part.sizes, dtype);
  if (part.bytes > 0) std::memcpy(out.mutable_data_ptr(), bytes, static_cast<std::size_t>(part.bytes));
  return out;
}

/// A line of JSON, and the bytes of tensors on the host.
at::Tensor joined_bytes(const io::Json& header, const std::vector<at::Tensor>& parts) {
  const std::string text = header.dump() + '\n';
  std::size_t size = text.size();
  for (const at::Tensor& part : parts) size += part.nbytes();
  at::Tensor out = at::empty({static_cast<std::int64_t>(size)}, at::kByte);
  auto* to = std::ranges::copy(text, out.mutable_data_ptr<std::uint8_t>()).out;
  for (const at::Tensor& part : parts)
    to = std::copy_n(static_cast<const std::uint8_t*>(part.const_data_ptr()), part.nbytes(), to);
  return out;
}

/// Throws unless `expected` bytes follow the first line; `name` stands in the message.
void check_rest_of_bytes(std::int64_t found, std::int64_t expected, const std::string& name) {
  TORCH_CHECK(found == expected, "[fp8::unpacked] bytes: ", name, ": expected ", expected,
              " bytes after the first line, found ", found);
}

at::Tensor unpacked_values(const io::Json& header, const std::uint8_t* bytes, std::int64_t count) {
  const io::Json& number = header["dtype"];
  const auto last = static_cast<int>(at::ScalarType::NumOptions);
  TORCH_CHECK(number.is_number_integer() && number >= 0 && number < last &&
                  number != static_cast<int>(at::ScalarType::Undefined),
              "[fp8::unpacked] bytes: key 'dtype': found ", number.dump());
  const auto dtype = static_cast<at::ScalarType>(number.get<int>());
  const PackedPart values = packed_part(header, "sizes", static_cast<std::int64_t>(c10::elementSize(dtype)), 0);
  check_rest_of_bytes(count, values.bytes, c10::toString(dtype));
  return copy_of(bytes, values, dtype);
}

}  // namespace

at::Tensor packed(const at::Tensor& tensor) {
  if (describe_weight(tensor).empty()) {
    const at::Tensor host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    return joined_bytes({{"dtype", static_cast<int>(host.scalar_type())}, {"sizes", host.sizes().vec()}}, {host});
  }
  const auto tag = tag_of_codes("packed", tensor);
  const bool transposed = is_transposed(*tag, tensor);
  const at::Tensor upright = turned(tensor.detach(), transposed);
  TORCH_CHECK(tag->is(upright), "[fp8::packed] ", describe_weight(tensor),
              ": a part of it can't be pickled; dequantize() gives its values");
  const at::Tensor codes = upright.cpu(), scale = scale_inv_of(tensor).cpu().contiguous();
  const io::Json header = {{"module", tag->module_names()},
                           {"scheme", scheme_of(tensor)},
                           {"e5m2", codes.scalar_type() == at::kFloat8_e5m2},
                           {"sizes", codes.sizes().vec()},
                           {"scale_sizes", scale.sizes().vec()},
                           {"transposed", transposed}};
  return joined_bytes(header, {scale, codes});
}

at::Tensor unpacked(const at::Tensor& bytes) {
  TORCH_CHECK(bytes.is_cpu() && bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.is_contiguous(),
              "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const auto* data = bytes.const_data_ptr<std::uint8_t>();
  const std::string_view text(reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes.numel()));
  const auto end = text.find('\n');
  TORCH_CHECK(end != std::string_view::npos, "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const io::Json header = io::parse_json(text.substr(0, end), "[fp8::unpacked] bytes");
  const auto* first = data + end + 1;
  const std::int64_t rest = bytes.numel() - static_cast<std::int64_t>(end) - 1;
  if (header.is_object() && header.contains("dtype")) return unpacked_values(header, first, rest);
  const bool known = header.is_object() && header.value("module", io::Json()).is_string() &&
                     header.value("scheme", io::Json()).is_string();
  TORCH_CHECK(known, "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const auto name = header["module"].get<std::string>();
  const PackedPart scale = packed_part(header, "scale_sizes", 4), codes = packed_part(header, "sizes", 1);
  check_rest_of_bytes(rest, scale.bytes + codes.bytes, name);
  const auto dtype = header.value("e5m2", io::Json()) == true ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  const at::Tensor weight = copy_of(first + scale.bytes, codes, dtype).to(at::kHPU);
  tag_codes(weight, name, copy_of(first, scale, at::kFloat), header["scheme"].get<std::string>());
  return turned(weight, header.value("transposed", io::Json()) == true);
}

std::vector<at::Tensor> scales_beside(const at::Tensor& weight) {
  const auto tag = tag_of_codes("scales_beside", weight);
  const auto& handler = static_cast<const Fp8Handler&>(*tag->handler);
  const bool transposed = is_transposed(*tag, weight);
  at::Tensor scale = handler.weight_scale_inv().to(weight.device(), /*non_blocking=*/false, /*copy=*/true);
  std::vector<std::int64_t> sizes = weight.sizes().vec();
  const bool of_outputs = handler.scheme().weights == Granularity::channel && (sizes.size() == 2 || sizes.size() == 3);
  if (of_outputs) {
    sizes[sizes.size() - (transposed ? 2 : 1)] = 1;
    if (c10::multiply_integers(sizes) == scale.numel()) scale = scale.reshape(sizes);
  }
  std::vector<at::Tensor> found{scale};
  const Scheme& scheme = handler.scheme();
  if (scheme.is_static()) found.push_back(at::full({1}, scheme.input_scale_inv, scale.options()));
  return found;
}

at::Tensor with_scales(const at::Tensor& codes, const at::Tensor& like, const std::optional<at::Tensor>& scale,
                       const std::optional<at::Tensor>& input_scale) {
  const auto tag = tag_of_codes("with_scales", like);
  io::Json scheme = io::Json::parse(scheme_of(like));
  TORCH_CHECK(c10::isFloat8Type(codes.scalar_type()), "[fp8::with_scales] codes: found ", codes.scalar_type(),
              ", expected fp8 codes: load values before convert()");
  TORCH_CHECK(scale.has_value(), "[fp8::with_scales] found codes without '", tag->module_names(), ".weight_scale'");
  const bool is_static = scheme.contains("input_scale_inv");
  TORCH_CHECK(is_static == input_scale.has_value(), "[fp8::with_scales] found ", is_static ? "no '" : "'",
              tag->module_names(), ".input_scale', the model's activations are ",
              scheme["activations"].get<std::string>());
  if (is_static) scheme["input_scale_inv"] = input_scale->item<float>();
  const bool transposed = is_transposed(*tag, like);
  const at::Tensor weight =
      turned(codes.detach(), transposed).contiguous().to(at::kHPU, /*non_blocking=*/false, /*copy=*/true);
  const std::vector<std::int64_t> sizes =
      scheme["weights"] == "channel" ? std::vector<std::int64_t>{-1} : scale_inv_of(like).sizes().vec();
  tag_codes(weight, tag->module_names(), scale->detach().cpu().to(at::kFloat).reshape(sizes), scheme.dump());
  return turned(weight, transposed);
}

}  // namespace fp8::quant
