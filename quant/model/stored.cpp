// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/stored.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/accumulate.h>

#include <cstring>
#include <limits>
#include <string>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/quant/model/operators.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {
namespace {

c10::intrusive_ptr<runtime::WeightTag> tag_of_codes(const char* op, const at::Tensor& weight) {
  if (weight.is_hpu()) runtime::find_tag(weight);  // puts a mark that the tensor alone has on its memory
  auto tag = runtime::tag_in_memory(weight);
  TORCH_CHECK(tag && dynamic_cast<const Fp8Handler*>(tag->handler.get()) != nullptr, "[fp8::", op,
              "] weight: expected a weight in fp8, found ", tag ? tag->describe() : "codes without a scale");
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

/// Sizes of the header, and how many bytes that many elements are.
PackedPart packed_part(const io::Json& header, const char* key, std::int64_t itemsize) {
  PackedPart part;
  std::int64_t count = 1;
  for (const auto& side : header.value(key, io::Json::array())) {
    const std::int64_t n = side.is_number_integer() ? side.get<std::int64_t>() : -1;
    TORCH_CHECK(n >= 1 && n <= std::numeric_limits<std::int32_t>::max() && count <= (std::int64_t{1} << 40) / n,
                "[fp8::unpacked] bytes: key '", key, "': found ", side.dump());
    part.sizes.push_back(n);
    count *= n;
  }
  part.bytes = count * itemsize;
  return part;
}

at::Tensor copy_of(const std::uint8_t* bytes, const PackedPart& part, at::ScalarType dtype) {
  const at::Tensor out = at::empty(part.sizes, dtype);
  std::memcpy(out.mutable_data_ptr(), bytes, static_cast<std::size_t>(part.bytes));
  return out;
}

}  // namespace

at::Tensor packed(const at::Tensor& weight) {
  const auto tag = tag_of_codes("packed", weight);
  const bool transposed = is_transposed(*tag, weight);
  const at::Tensor upright = turned(weight.detach(), transposed);
  TORCH_CHECK(tag->is(upright), "[fp8::packed] ", describe_weight(weight),
              ": a part of it can't be pickled; dequantize() gives its values");
  const at::Tensor codes = upright.cpu(), scale = scale_inv_of(weight).cpu().contiguous();
  const io::Json header = {{"module", tag->module_names()},
                           {"scheme", scheme_of(weight)},
                           {"e5m2", codes.scalar_type() == at::kFloat8_e5m2},
                           {"sizes", codes.sizes().vec()},
                           {"scale_sizes", scale.sizes().vec()},
                           {"transposed", transposed}};
  const std::string text = header.dump() + '\n';
  at::Tensor out = at::empty({static_cast<std::int64_t>(text.size() + scale.nbytes() + codes.nbytes())}, at::kByte);
  auto* to = out.mutable_data_ptr<std::uint8_t>();
  std::memcpy(to, text.data(), text.size());
  std::memcpy(to + text.size(), scale.const_data_ptr(), scale.nbytes());
  std::memcpy(to + text.size() + scale.nbytes(), codes.const_data_ptr(), codes.nbytes());
  return out;
}

at::Tensor unpacked(const at::Tensor& bytes) {
  TORCH_CHECK(bytes.is_cpu() && bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.is_contiguous(),
              "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const auto* data = bytes.const_data_ptr<std::uint8_t>();
  const std::string_view text(reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes.numel()));
  const auto end = text.find('\n');
  TORCH_CHECK(end != std::string_view::npos, "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const io::Json header = io::parse_json(text.substr(0, end), "[fp8::unpacked] bytes");
  const bool known = header.is_object() && header.value("module", io::Json()).is_string() &&
                     header.value("scheme", io::Json()).is_string();
  TORCH_CHECK(known, "[fp8::unpacked] bytes: expected what fp8::packed gives");
  const PackedPart scale = packed_part(header, "scale_sizes", 4), codes = packed_part(header, "sizes", 1);
  TORCH_CHECK(static_cast<std::int64_t>(end) + 1 + scale.bytes + codes.bytes == bytes.numel(),
              "[fp8::unpacked] bytes: ", header["module"].get<std::string>(), ": expected ", scale.bytes + codes.bytes,
              " bytes after the first line, found ", bytes.numel() - static_cast<std::int64_t>(end) - 1);
  const auto dtype = header.value("e5m2", io::Json()) == true ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
  const auto* first = data + end + 1;
  const at::Tensor weight = copy_of(first + scale.bytes, codes, dtype).to(at::kHPU);
  tag_codes(weight, header["module"].get<std::string>(), copy_of(first, scale, at::kFloat),
            header["scheme"].get<std::string>());
  return turned(weight, header.value("transposed", io::Json()) == true);
}

std::vector<at::Tensor> scales_beside(const at::Tensor& weight) {
  const auto tag = tag_of_codes("scales_beside", weight);
  const auto& handler = static_cast<const Fp8Handler&>(*tag->handler);
  const bool transposed = is_transposed(*tag, weight);
  at::Tensor scale = handler.weight_scale_inv().to(weight.device(), /*non_blocking=*/false, /*copy=*/true);
  std::vector<std::int64_t> sizes = weight.sizes().vec();
  const bool of_outputs =
      handler.scheme().weights == WeightGranularity::channel && (sizes.size() == 2 || sizes.size() == 3);
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
