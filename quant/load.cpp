// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/load.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "fp8/quant/convert.h"
#include "fp8/quant/formats/form.h"
#include "fp8/quant/node_handler.h"
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

/// Puts a cache's scales in force. `numbers`: format, dialect and convention of the checkpoint's weights.
void attach_cache(const std::vector<measure::OpNode>& nodes, const std::string& name, const std::vector<float>& scale_inv, const Numbers& numbers,
                  const io::Checkpoint& checkpoint) {
  const auto node = std::find_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.name == name; });
  if (node == nodes.end() || node->slot == nullptr) {
    throw io::Error(checkpoint.folder().string() + ": scales of a key-value cache for " + io::printable(name) + ", which the model has not");
  }
  NodeScheme scheme;
  static_cast<Numbers&>(scheme) = numbers;
  scheme.kind = configs::ModuleKind::kv_cache;
  scheme.input_scale_inv = scheme.output_scale_inv = scale_inv;
  node->slot->handler = make_node_handler(scheme);
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
  for (const auto& w : stored.weights) {
    const auto it = by_name.find(w.spec.module);
    if (it == by_name.end()) throw io::Error(checkpoint.folder().string() + ": " + io::printable(w.weight) + ": the model has no such module");
    attach_fp8(*it->second, read_codes(checkpoint, w, it->second->weight.sizes()), read_scale_inv(checkpoint, w), w.spec.scheme, compute);
    taken.insert(w.tensors.begin(), w.tensors.end());
  }
  for (const auto& kv : stored.kv) {
    attach_cache(nodes, kv.attention + ".k_cache", kv.k, stored.weights.front().spec.scheme, checkpoint);
    attach_cache(nodes, kv.attention + ".v_cache", kv.v, stored.weights.front().spec.scheme, checkpoint);
  }
  return taken;
}

}  // namespace fp8::quant
