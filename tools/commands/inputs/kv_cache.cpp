// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/kv_cache.h"

#include <torch/nn/module.h>

#include "fp8/measure/files/measurement_file.h"
#include "fp8/measure/model/module_tree.h"
#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/device/block.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::commands {
namespace {

using Mode = KvCacheOptions::Mode;

/// The measurement is of this model, as far as its weights in high precision can tell.
void check_model(const measure::MeasurementFile& measured, const models::LoadedModel& model, const std::string& where) {
  if (!measured.model.has_value()) return;
  measure::ModelFingerprint own;
  for (const auto& m : measure::weight_modules(*model.model)) {
    const auto type = m.weight.scalar_type();
    if (measured.model->find(m.name) == nullptr || !runtime::ops::is_high_precision(type)) continue;
    own.weights.push_back(measure::fingerprint_of(m.name, runtime::cpu_alias(m.weight.detach()).const_data_ptr(),
                                                  runtime::ops::float_type_of(type), m.weight.sizes().vec()));
  }
  measure::require_same_model(*measured.model, own, where);
}

void use_measurements(const models::LoadedModel& model, const std::vector<measure::OpNode>& nodes,
                      const KvCacheOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.dialect = context.dialect.value_or(kernels::Dialect::ocp);
  plan.kv_scales = o.scales.value_or(quant::KvGranularity::tensor);
  plan.measurements = measure::read_measurements(o.measurements);
  check_model(*plan.measurements, model, o.measurements);
  std::vector<std::string> warnings;
  const auto kv = quant::plan_kv_cache(quant::cached_attention(nodes), plan, warnings);
  for (const auto& warning : warnings) context.warn(warning);
  quant::detach_kv_cache(nodes);
  quant::attach_kv_cache(nodes, kv, quant::kv_numbers(plan), o.measurements);
}

}  // namespace

void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& o, const Context& context) {
  const auto nodes = measure::op_nodes(*model.model);
  if (o.mode == Mode::off) return quant::detach_kv_cache(nodes);
  if (!o.measurements.empty()) use_measurements(model, nodes, o, context);
  const auto* scheme = quant::kv_cache_scheme(nodes);
  if (scheme == nullptr && o.mode == Mode::fp8) {
    throw io::Error(model.folder.string() +
                    ": found no scales for --kv-cache fp8; make them of a measurement (--measurements DIR of fp8 "
                    "measure), or put them into the checkpoint (fp8 quantize --kv-cache fp8)");
  }
  const auto heads = static_cast<std::size_t>(model.model->shape().kv_heads);
  if (scheme != nullptr && scheme->input_scale_inv.size() > 1 && scheme->input_scale_inv.size() != heads) {
    throw io::Error(model.folder.string() + ": found key-value scales of " +
                    std::to_string(scheme->input_scale_inv.size()) + " heads, config.json says num_key_value_heads " +
                    std::to_string(heads));
  }
}

KvCacheInForce kv_cache_of(const models::LoadedModel& model) {
  const auto* scheme = quant::kv_cache_scheme(measure::op_nodes(*model.model));
  if (scheme == nullptr) return {models::name_of_dtype(model.dtype), ""};
  return {"fp8", scheme->input_scale_inv.size() > 1 ? "head" : "tensor"};
}

}  // namespace fp8::commands
