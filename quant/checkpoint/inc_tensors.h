// SPDX-License-Identifier: Apache-2.0
// Checkpoints of INC's form by tensors: whose part a tensor is, what ranks share out of it, and small ones in memory.
// Internal to inc_ranks.cpp. No torch here.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/forms/folder.h"
#include "fp8/quant/scheme/scheme.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/kernels/float_bits.h"

namespace fp8::quant::inc {

using io::DType;
using io::Json;

inline std::string with_rank(const std::string& name, int rank, int world) {
  return world == 1 ? name : name + "_" + std::to_string(rank) + "_" + std::to_string(world);
}

inline bool is_fp8(DType dtype) { return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2; }

/// "model.layers.0.q_proj.quant_input.scale_inv" -> ("model.layers.0.q_proj", "quant_input.scale_inv").
struct Parts {
  std::string module, field;
};
inline Parts parts_of(const std::string& tensor) {
  for (const char* end : {".quant_input.scale_inv", ".quant_input.scale", ".quant_input.zero_point",
                          ".dequant_weights.scale", ".dequant_weights.zero_point"}) {
    if (tensor.ends_with(end)) return {tensor.substr(0, tensor.size() - std::strlen(end)), end + 1};
  }
  const auto dot = tensor.rfind('.');
  return dot == std::string::npos ? Parts{"", tensor} : Parts{tensor.substr(0, dot), tensor.substr(dot + 1)};
}

inline bool is_weight_scale(const std::string& field) {
  return field == "scale_weight" || field == "dequant_weights.scale";
}
inline bool is_input_scale(const std::string& field) { return field == "scale_input" || field == "quant_input.scale"; }

/// A small tensor in memory: scales, biases.
struct Tensor {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};

inline Tensor read(const io::Checkpoint& checkpoint, const std::string& name) {
  const auto& info = checkpoint.info(name);
  Tensor t{info.dtype, info.shape, std::vector<std::uint8_t>(info.bytes())};
  checkpoint.read(name, t.bytes.data());
  return t;
}

inline std::string text_of(io::DType dtype, const std::vector<std::int64_t>& shape) {
  return io::name_of(dtype) + std::string(" ") + io::shape_text(shape);
}

/// The parts of two ranks that do not make one tensor.
[[noreturn]] inline void fail_unlike(const std::string& where, const std::string& first, const std::string& other) {
  io::fail_at(where, "the parts of its ranks do not fit each other: found {} beside {}", other, first);
}

inline std::vector<float> values_of(const Tensor& t, const std::string& where) {
  if (!is_float(t.dtype)) io::fail_at(where, "expected dtype F32, BF16 or F16, found {}", io::name_of(t.dtype));
  std::vector<float> values(t.bytes.size() / static_cast<std::size_t>(io::size_of(t.dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = kernels::load_element(t.bytes.data(), float_type(t.dtype), static_cast<std::int64_t>(i));
    if (!std::isfinite(values[i]) || values[i] <= 0)
      io::fail_at(where, "expected finite scales > 0, found {}", values[i]);
  }
  return values;
}

/// Elementwise the part with the largest (or smallest) value, in the parts' own dtype: nothing is rounded.
inline Tensor extreme(const std::vector<Tensor>& parts, bool largest, const std::string& where) {
  Tensor out = parts[0];
  std::vector<float> best = values_of(out, where);
  for (const auto& p : parts) {
    const auto values = values_of(p, where);
    if (values.size() != best.size() || p.dtype != out.dtype)
      fail_unlike(where, text_of(out.dtype, out.shape), text_of(p.dtype, p.shape));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (largest ? values[i] <= best[i] : values[i] >= best[i]) continue;
      best[i] = values[i];
      std::memcpy(out.bytes.data() + i * static_cast<std::size_t>(io::size_of(out.dtype)),
                  p.bytes.data() + i * static_cast<std::size_t>(io::size_of(p.dtype)),
                  static_cast<std::size_t>(io::size_of(out.dtype)));
    }
  }
  return out;
}

/// The source folder: its configs, and how many ranks it is of.
struct Source {
  explicit Source(const std::filesystem::path& folder)
      : checkpoint(folder), config(io::read_python_json(io::source_file(folder, io::kConfigFile))) {
    const std::string where = (folder / io::kConfigFile).string();
    if (!config.is_object() || !config.contains("quantization_config") ||
        !inc_form().recognizes(config["quantization_config"])) {
      io::fail_at(where, "key 'quantization_config': expected INC's ('fp8_config', 'scale_method')");
    }
    const Json found = config["quantization_config"].value("world_size", Json(-1));
    if (!found.is_number_integer() || found.get<std::int64_t>() > 65536)
      io::fail_at(where, "key 'world_size': expected an integer up to 65536");
    world = static_cast<int>(std::max<std::int64_t>(found.get<std::int64_t>(), 1));
    const std::filesystem::path sidecar_path = folder / kSidecarName;
    if (std::filesystem::exists(sidecar_path)) {
      sidecar = io::read_json(io::source_file(folder, kSidecarName));
      dialect = read_sidecar(sidecar, sidecar_path.string()).dialect;
    }
  }
  io::Checkpoint checkpoint;
  Json config, sidecar;
  int world = 1;
  recipes::Dialect dialect = recipes::Dialect::ocp;
};

/// The dimension of a tensor that ranks share out; none: all have the same.
inline std::optional<std::size_t> dimension_of(const Parts& parts, const std::vector<std::int64_t>& shape, bool fp8,
                                               Split split) {
  if (parts.field == "weight" && shape.size() == 2)
    return (split == Split::output) == fp8 ? 1 : 0;  // codes are stored [K, N], the rest [N, K]
  const bool per_output = (is_weight_scale(parts.field) || parts.field == "bias") && shape.size() == 1;
  return per_output && split == Split::output ? std::optional<std::size_t>(0) : std::nullopt;
}

}  // namespace fp8::quant::inc
