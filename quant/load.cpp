// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/load.h"

#include <ATen/ops/empty.h>

#include <map>
#include <sstream>

#include "fp8/quant/convert.h"
#include "fp8/quant/formats/form.h"
#include "fp8/quant/kv_cache_handler.h"
#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/error.h"

namespace fp8::quant {
namespace {

at::Tensor read_codes(const io::Checkpoint& checkpoint, const StoredWeight& stored, at::IntArrayRef shape) {
  if (shape != at::IntArrayRef({stored.spec.rows, stored.spec.cols})) {
    std::ostringstream text;
    text << checkpoint.folder().string() << ": " << stored.weight << ": found shape [" << stored.spec.rows << ", " << stored.spec.cols << "]"
         << (stored.transposed ? ", stored transposed" : "") << "; the model's is " << shape;
    throw io::Error(text.str());
  }
  const auto dtype = stored.spec.scheme.format == recipes::Format::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  at::Tensor codes = at::empty(shape, at::TensorOptions().dtype(dtype).device(at::kHPU));
  read_code_rows(checkpoint, stored, 0, stored.spec.rows, static_cast<std::uint8_t*>(codes.mutable_data_ptr()));
  return codes;
}

}  // namespace

std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes, const io::Checkpoint& checkpoint,
                               at::ScalarType compute) {
  TORCH_CHECK(runtime::device_kind() != runtime::DeviceKind::gaudi, "[load_fp8] fp8 is not supported on GAUDI, allowed: gaudi2, gaudi3 (FP8_HPU_DEVICE)");
  const StoredCheckpoint stored = read_stored(checkpoint);
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  std::set<std::string> taken(stored.kv_tensors.begin(), stored.kv_tensors.end());
  taken.insert(stored.strays.begin(), stored.strays.end());
  const auto watch = std::make_shared<InputWatch>();
  for (const auto& w : stored.weights) {
    const auto it = by_name.find(w.spec.module);
    if (it == by_name.end()) throw io::Error(checkpoint.folder().string() + ": " + io::printable(w.weight) + ": the model has no such module");
    attach_fp8(*it->second, read_codes(checkpoint, w, it->second->weight.sizes()), read_scale_inv(checkpoint, w), w.spec.scheme, compute, watch);
    taken.insert(w.tensors.begin(), w.tensors.end());
  }
  if (!stored.kv.empty()) attach_kv_cache(nodes, stored.kv, stored.weights.front().spec.scheme, checkpoint.folder().string());
  return taken;
}

}  // namespace fp8::quant
