// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/load.h"

#include <ATen/ops/empty.h>

#include <sstream>

#include "fp8/quant/forms/folder.h"
#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/model/convert.h"

namespace fp8::quant {
namespace {

std::string converted_to(recipes::Dialect dialect) {
  const std::string name = recipes::name_of(dialect);
  return io::option("convert_dialect", "convert_checkpoint() with dialect " + name, name);
}
std::string read_as(recipes::Dialect dialect) {
  const std::string name = recipes::name_of(dialect);
  return io::option("dialect", "the option dialect = " + name, name);
}

/// All modules in the dialect that counts; throws if the device has another (see LoadFp8Options).
void settle_dialect(const io::Checkpoint& checkpoint, const std::optional<recipes::Dialect>& asked,
                    StoredCheckpoint& stored) {
  if (stored.weights.empty()) return;
  const auto format = stored.weights.front().spec.scheme.format;
  const auto max = [&](recipes::Dialect dialect) { return kernels::fp8_max(format, dialect); };
  recipes::Dialect dialect = stored.weights.front().spec.scheme.dialect;
  const std::string folder = checkpoint.folder().string();
  const bool has_sidecar = std::filesystem::exists(checkpoint.folder() / kSidecarName);
  if (asked.has_value() && max(*asked) != max(dialect) && !(has_sidecar && max(*asked) > max(dialect))) {
    if (has_sidecar)
      io::fail<io::Error>("{}: fp8.json: key 'dialect': found {}, asked for is {}; {} writes a checkpoint of it",
                          folder, recipes::name_of(dialect), recipes::name_of(*asked), converted_to(*asked));
    dialect = *asked;
    for (auto& w : stored.weights) w.spec.scheme.dialect = dialect;
  }
  if (asked.has_value() || runtime::device_kind() != runtime::DeviceKind::gaudi2 ||
      max(dialect) == max(recipes::Dialect::gaudi2))
    return;
  io::fail<io::Error>(
      "{}: its codes are of dialect {}, up to 448, which Gaudi2 (FP8_HPU_DEVICE=gaudi2) reads as Inf and NaN from 256 "
      "on; {} writes one for it, {} goes on with these{}",
      folder, recipes::name_of(dialect), converted_to(recipes::Dialect::gaudi2), read_as(dialect),
      has_sidecar ? "" : ", " + read_as(recipes::Dialect::gaudi2) + " takes them for Gaudi2's own");
}

at::Tensor read_codes(const io::Checkpoint& checkpoint, const StoredWeight& stored, at::IntArrayRef shape,
                      bool allow_nonfinite) {
  if (shape != at::IntArrayRef({stored.spec.rows, stored.spec.cols})) {
    std::ostringstream text;
    text << checkpoint.folder().string() << ": " << stored.weight << ": found shape [" << stored.spec.rows << ", "
         << stored.spec.cols << "]" << (stored.transposed ? ", stored transposed" : "") << "; the model's is " << shape;
    throw io::Error(text.str());
  }
  const auto dtype = stored.spec.scheme.format == recipes::Format::E4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  at::Tensor codes = at::empty(shape, at::TensorOptions().dtype(dtype).device(at::kHPU));
  read_code_rows(checkpoint, stored, 0, stored.spec.rows, static_cast<std::uint8_t*>(codes.mutable_data_ptr()),
                 allow_nonfinite);
  return codes;
}

}  // namespace

std::set<std::string> load_fp8(const std::vector<measure::WeightModule>& modules,
                               const std::vector<measure::OpNode>& nodes, const io::Checkpoint& checkpoint,
                               at::ScalarType compute, const LoadFp8Options& options) {
  TORCH_CHECK(kernels::has_fp8(runtime::device_kind()), "[load_fp8] ", kernels::kNoFp8);
  StoredCheckpoint stored = read_stored(checkpoint);
  settle_dialect(checkpoint, options.dialect, stored);
  if (options.warnings != nullptr)
    options.warnings->insert(options.warnings->end(), stored.warnings.begin(), stored.warnings.end());
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  std::set<std::string> taken(stored.kv_tensors.begin(), stored.kv_tensors.end());
  for (const auto* names : {&stored.strays, &stored.attention_scales}) taken.insert(names->begin(), names->end());
  const auto watch = std::make_shared<InputWatch>();
  for (const auto& w : stored.weights) {
    const auto it = by_name.find(w.spec.module);
    if (it == by_name.end() && options.left_out && options.left_out(w.spec.module)) continue;
    if (it == by_name.end())
      io::fail<io::Error>("{}: {}: the model has no such module", checkpoint.folder().string(),
                          io::printable(w.weight));
    attach_fp8(*it->second, read_codes(checkpoint, w, it->second->weight.sizes(), options.allow_nonfinite),
               read_scale_inv(checkpoint, w), w.spec.scheme, compute, watch);
    taken.insert(w.tensors.begin(), w.tensors.end());
  }
  if (!stored.kv.empty())
    attach_kv_cache(nodes, stored.kv, stored.weights.empty() ? Scheme{} : stored.weights.front().spec.scheme,
                    checkpoint.folder().string());
  return taken;
}

}  // namespace fp8::quant
