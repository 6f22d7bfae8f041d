// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/load.h"

#include <ATen/ops/empty.h>

#include <map>
#include <sstream>

#include "fp8/quant/convert.h"
#include "fp8/quant/formats/compressed_tensors.h"
#include "fp8/quant/formats/inc_checkpoint.h"
#include "fp8/quant/formats/sidecar.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/error.h"
#include "fp8/runtime/kernels/decode.h"

namespace fp8::quant {
namespace {

at::Tensor read_codes(const io::Checkpoint& checkpoint, const compressed_tensors::StoredModule& stored, at::IntArrayRef shape, bool is_inc) {
  const std::string tensor = stored.name + ".weight";
  const auto& info = checkpoint.info(tensor);
  // What INC calls its vllm form has the codes of everything but *proj transposed (a quantized lm_head), as its own form has all of them.
  const bool projection = stored.name.size() >= 4 && stored.name.compare(stored.name.size() - 4, 4, "proj") == 0;
  const bool transposed = is_inc || (!projection && shape.size() == 2 && shape[0] != shape[1] && info.shape == std::vector<std::int64_t>{shape[1], shape[0]});
  if (!transposed && at::IntArrayRef(info.shape) != shape) {
    std::ostringstream text;
    text << checkpoint.folder().string() << ": " << tensor << ": found shape " << at::IntArrayRef(info.shape) << ", the model's is " << shape;
    throw io::Error(text.str());
  }
  at::Tensor codes = at::empty(shape, at::TensorOptions().dtype(stored.scheme.format == recipes::Format::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2).device(at::kHPU));
  if (transposed) {
    TORCH_CHECK(shape.size() == 2, "[load_fp8] ", tensor, ": expected a weight [out, in], found shape ", shape);
    inc::read_codes(checkpoint, stored, shape[0], shape[1], static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
  } else {
    checkpoint.read(tensor, codes.mutable_data_ptr());
  }
  if (kernels::has_nan_code(static_cast<const std::uint8_t*>(codes.const_data_ptr()), codes.numel(), stored.scheme.format, stored.scheme.dialect)) {
    throw io::Error(checkpoint.folder().string() + ": " + tensor + ": expected codes of dialect " + recipes::name_of(stored.scheme.dialect) + ", found NaN codes");
  }
  return codes;
}

}  // namespace

std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules, const io::Checkpoint& checkpoint, const io::Json& quantization_config,
                               at::ScalarType compute) {
  TORCH_CHECK(runtime::device_kind() != runtime::DeviceKind::gaudi, "[load_fp8] fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)");
  const auto sidecar_path = checkpoint.folder() / kSidecarName;
  const bool has_sidecar = std::filesystem::exists(sidecar_path);
  const io::Json sidecar = has_sidecar ? io::read_json(sidecar_path) : io::Json(nullptr);
  if (has_sidecar && !sidecar.is_object()) throw io::Error(sidecar_path.string() + ": expected an object, found " + sidecar.type_name());
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  std::set<std::string> taken;
  const bool is_inc = inc::is_config(quantization_config);
  for (const auto& stored : is_inc ? inc::read_modules(checkpoint, quantization_config, sidecar) : compressed_tensors::read_modules(checkpoint, quantization_config, sidecar)) {
    const auto it = by_name.find(stored.name);
    if (it == by_name.end()) throw io::Error(checkpoint.folder().string() + ": " + stored.name + ".weight: the model has no such module");
    attach_fp8(*it->second, read_codes(checkpoint, stored, it->second->weight.sizes(), is_inc), stored.weight_scale_inv, stored.scheme, compute);
    if (is_inc) {
      const auto names = inc::tensors_of(checkpoint, stored.name);
      taken.insert(names.begin(), names.end());
      continue;
    }
    taken.insert({stored.name + ".weight", stored.name + ".weight_scale"});
    if (stored.scheme.activations == ActivationScaling::static_tensor) taken.insert(stored.name + ".input_scale");
  }
  return taken;
}

}  // namespace fp8::quant
