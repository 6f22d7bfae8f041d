// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/model/convert.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/api/module.h>

#include <iomanip>
#include <ostream>
#include <sstream>

#include "fp8/quant/handlers/linear_handler.h"
#include "fp8/runtime/leaf/pending_work.h"
#include "fp8/runtime/modules/op_modules.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

std::vector<ModuleInfo> infos_of(const std::vector<measure::WeightModule>& modules) {
  std::vector<ModuleInfo> infos;
  for (const auto& m : modules) infos.push_back({m.name, m.type, m.weight.sizes().vec()});
  return infos;
}

std::vector<NodeInfo> infos_of(const std::vector<measure::OpNode>& nodes) {
  std::vector<NodeInfo> infos;
  for (const auto& n : nodes) infos.push_back({n.name, n.type});
  return infos;
}

/// The scales of a module with a weight as a scale file stores them. INC: the output's scale is the product of the two,
/// or those of what ranks add and of the sum.
ModuleScales module_scales(const PlannedModule& p, const WeightScales& weight, std::int64_t cols) {
  ModuleScales out{p.info.name, {}, {}, std::nullopt};
  const bool per_channel = weight.scale_inv.size() > 1 || p.scheme.weights == Granularity::channel;
  out.weight = per_channel ? StoredScale::channels(weight.scale_inv, static_cast<std::size_t>(cols))
                           : StoredScale::of(weight.scale_inv[0]);
  if (!p.scheme.is_static()) return out;
  out.inputs = {StoredScale::of(p.scheme.input_scale_inv)};
  std::vector<float> product;
  for (float w : weight.scale_inv) product.push_back(recipes::round_to(w * p.scheme.input_scale_inv, p.scheme.hp));
  // A product of two tiny scales may vanish; no reader could use it.
  for (float& v : product) v = std::max(v, std::numeric_limits<float>::min());
  out.outputs = {per_channel ? StoredScale::channels(product) : StoredScale::of(product[0])};
  if (!p.reduced_scale_inv.empty())
    out.outputs = {StoredScale::of(p.reduced_scale_inv[0]), StoredScale::of(p.reduced_scale_inv[1])};
  return out;
}

ModuleScales node_scales(const PlannedNode& p) {
  ModuleScales out{p.info.name, {}, {}, std::nullopt};
  for (float s : p.scheme.input_scale_inv) out.inputs.push_back(StoredScale::of(s));
  for (float s : p.scheme.output_scale_inv)
    out.outputs.push_back(StoredScale::of(std::max(s, std::numeric_limits<float>::min())));
  return out;
}

/// The values of the modules of one conversion that become zero.
struct Losses {
  UnderflowReport weights;
  std::shared_ptr<InputWatch> inputs = std::make_shared<InputWatch>();
};

ConvertedModule convert_one(const measure::WeightModule& m, const PlannedModule& p, const WeightScales& scales,
                            const RoundedCodes* rounded, Losses& losses) {
  const at::Tensor w = m.weight.detach().contiguous();
  const at::Tensor codes = at::empty(w.sizes(), w.options().dtype(runtime::ops::dtype_of(p.scheme.format)));
  const Channels c = channels_of(m);
  const auto type = runtime::ops::float_type_of(w.scalar_type());
  auto* bytes_of_codes = static_cast<std::uint8_t*>(codes.mutable_data_ptr());
  if (rounded != nullptr && rounded->contains(m.name)) {
    rounded->require_scales(m.name, 0, c.rows, c.cols, p.scheme, scales.scale_inv);
    rounded->read(m.name, 0, c.rows, c.cols, bytes_of_codes);
  } else {
    cast_weight_rows(w.const_data_ptr(), type, c.rows, c.cols, 0, scales, p.scheme, bytes_of_codes);
  }
  losses.weights.add(m.name, underflow_of_codes(w.const_data_ptr(), type, w.numel(), bytes_of_codes));
  if (p.scheme.compute == Compute::fake_quant) {
    const auto bytes = static_cast<std::int64_t>(m.weight.nbytes());
    runtime::untag_weight(m.weight);
    runtime::tag_weight(m.weight, m.name, std::make_shared<FakeQuantHandler>(p.scheme, scales.scale_inv));
    return {m.name, m.type, p.scheme.describe(), bytes, bytes};
  }
  ConvertedModule out{m.name, m.type, p.scheme.describe(), static_cast<std::int64_t>(w.nbytes()),
                      static_cast<std::int64_t>(codes.nbytes())};
  attach_fp8(m, codes, scales.scale_inv, p.scheme, w.scalar_type(), losses.inputs);
  return out;
}

/// Modules that the plan keeps, but whose weight is the one of a converted module: they read fp8 too, and the report
/// says so.
void report_ties(const std::vector<measure::WeightModule>& modules, const std::map<const void*, std::string>& done,
                 ConversionReport& report) {
  for (auto it = report.skipped.begin(); it != report.skipped.end();) {
    const auto m = std::ranges::find_if(modules, [&](const auto& w) { return w.name == it->name; });
    const auto owner = m == modules.end() ? done.end() : done.find(m->weight.unsafeGetTensorImpl());
    if (owner == done.end()) {
      ++it;
      continue;
    }
    const auto handler = runtime::find_tag(m->weight)->handler;
    runtime::tag_weight(m->weight, m->name, handler);
    report.converted.push_back({m->name, m->type, handler->describe() + " (tied to " + owner->second + ")", 0, 0});
    report.warnings.push_back(m->name + " shares the weight of " + owner->second + " and became fp8 with it");
    it = report.skipped.erase(it);
  }
}

struct Slot {
  std::shared_ptr<runtime::ModuleSlot> slot;
  std::shared_ptr<NodeHandler> handler;
};

/// Returns the slot and the handler of each planned node. Handlers can fail, so all are made before anything is
/// changed.
std::vector<Slot> slots_of(const Plan& plan, const std::vector<measure::OpNode>& nodes) {
  std::vector<Slot> slots;
  for (const auto& p : plan.nodes) {
    const auto node = std::ranges::find_if(nodes, [&](const auto& n) { return n.name == p.info.name; });
    TORCH_CHECK(node != nodes.end() && node->slot != nullptr, "[convert] ", p.info.name,
                ": the model has no such node");
    TORCH_CHECK(node_handler(*node->slot) == nullptr, "[convert] ", p.info.name,
                ": it is in fp8 already (converted already)");
    try {
      slots.push_back({node->slot, make_node_handler(p.scheme)});
    } catch (const std::invalid_argument& e) {
      TORCH_CHECK(false, "[convert] ", p.info.name, ": ", e.what());
    }
  }
  return slots;
}

void describe_into(const torch::nn::Module& module, const std::string& name, const std::string& path, int depth,
                   std::ostream& out) {
  out << std::string(static_cast<std::size_t>(2 * depth), ' ') << (name.empty() ? "" : "(" + name + "): ")
      << module.name();
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    if (!parameter.key().starts_with("weight")) continue;  // recurrent modules have several
    const auto* tag = runtime::find_tag(parameter.value());
    const auto* handler = tag != nullptr ? tag->handler.get() : nullptr;
    if (parameter.key() != "weight") out << " " << parameter.key();
    out << " " << parameter.value().sizes() << " " << parameter.value().scalar_type();
    if (runtime::handler_as<Fp8Handler>(handler) != nullptr ||
        runtime::handler_as<FakeQuantHandler>(handler) != nullptr)
      out << " [" << handler->describe() << "]";
  }
  if (const auto* node = dynamic_cast<const runtime::OpModule*>(&module);
      node != nullptr && runtime::handler_as<NodeHandler>(node->handler()) != nullptr) {
    out << " [" << node->handler()->describe() << "]";
  }
  out << "\n";
  for (const auto& child : module.named_children())
    describe_into(*child.value(), child.key(), path.empty() ? child.key() : path + "." + child.key(), depth + 1, out);
}

/// A clipping threshold fits every weight with a larger amax: only sampled values tell whether it is this model's.
void require_measured_model(const std::vector<measure::WeightModule>& modules, const PlanOptions& options) {
  if (!options.measurements.has_value() || !options.measurements->model.has_value() ||
      !measure::has_thresholds(*options.measurements))
    return;
  measure::require_same_model(*options.measurements->model, fingerprint_of(modules), "measurements");
}

/// 1234567 -> "1.23 M"
std::string short_number(double value) {
  const char* units[] = {"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < std::size(units); ++unit) value /= 1000.0;
  std::ostringstream text;
  text << std::setprecision(3) << value << units[unit];
  return text.str();
}

void print_planned(const ConvertedModule& m, std::ostream& out) {
  if (m.flops_per_row == 0 && !m.expected_error.has_value()) return;
  out << "; " << (m.operand_bytes != 0 ? "operand " : "")
      << short_number(static_cast<double>(m.operand_bytes != 0 ? m.operand_bytes : m.bytes_after)) << "B of "
      << short_number(static_cast<double>(m.bytes_before)) << "B, " << short_number(m.flops_per_row) << "flop a row";
  if (m.expected_error.has_value()) out << ", error " << short_number(100.0 * *m.expected_error) << " %";
}

}  // namespace

std::vector<measure::OpNode> nodes_of_checkpoint(const torch::nn::Module& model) {
  using configs::KindInfo;
  auto nodes = measure::op_nodes(model);
  std::erase_if(nodes, [](const measure::OpNode& n) {
    return !configs::type_is(n.type, &KindInfo::cache) && !configs::type_is(n.type, &KindInfo::experts);
  });
  return nodes;
}

void attach_fp8(const measure::WeightModule& module, const at::Tensor& codes, const std::vector<float>& scale_inv,
                const Scheme& scheme, at::ScalarType original, std::shared_ptr<InputWatch> watch) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(scale_inv.size())};
  if (scheme.has_blocks()) {
    const Channels c = channels_of(module);
    const auto grid = scale_grid(scheme, c.rows, c.cols);
    shape = {grid.rows, grid.cols};
    TORCH_CHECK(grid.size() == static_cast<std::int64_t>(scale_inv.size()), "[convert] ", module.name,
                ".weight: expected ", grid.rows, " x ", grid.cols, " block scales, found ", scale_inv.size());
  }
  at::Tensor scale = at::empty(shape, codes.options().dtype(at::kFloat));
  std::copy(scale_inv.begin(), scale_inv.end(), scale.mutable_data_ptr<float>());
  auto handler = std::make_shared<Fp8Handler>(scheme, std::move(scale), original);
  handler->watch_input(watch != nullptr ? std::move(watch) : std::make_shared<InputWatch>());
  runtime::untag_weight(module.weight);
  module.weight.set_data(codes);
  runtime::tag_weight(module.weight, module.name, std::move(handler));
}

/// A LoRACompatibleLinear with an adapter set adds the adapter's result inside of its own forward, on the weight it
/// thinks it has.
void refuse_set_adapters(const torch::nn::Module& model, const Plan& plan) {
  const auto all = model.named_modules("", /*include_self=*/true);
  for (const auto& p : plan.modules) {
    if (p.info.type != "LoRACompatibleLinear" && p.info.type != "LoRACompatibleConv") continue;
    TORCH_CHECK(!all.contains(p.info.name + ".lora_layer"), "[convert] ", p.info.name,
                ": found its lora_layer set; fuse the adapter or unset it, or leave the module out");
  }
}

measure::ModelFingerprint fingerprint_of(const std::vector<measure::WeightModule>& modules) {
  const runtime::RunsAtOnce addresses;
  measure::ModelFingerprint model;
  for (const auto& m : modules) {
    if (!runtime::ops::is_high_precision(m.weight.scalar_type())) continue;
    const at::Tensor w = m.weight.detach().contiguous();
    model.weights.push_back(measure::fingerprint_of(m.name, w.const_data_ptr(),
                                                    runtime::ops::float_type_of(w.scalar_type()), w.sizes().vec()));
  }
  return model;
}

Plan plan_for(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
              const PlanOptions& options) {
  require_measured_model(modules, options);
  PlanOptions of_device = options;
  if (!of_device.dialect.has_value() && runtime::device_kind() == runtime::DeviceKind::gaudi2)
    of_device.dialect = recipes::Dialect::gaudi2;
  return make_plan(infos_of(modules), infos_of(nodes), of_device);
}

ConversionReport convert(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
                         const PlanOptions& options, const RoundedCodes* rounded) {
  return convert_by(plan_for(modules, nodes, options), modules, nodes, /*used=*/nullptr, rounded);
}

ConversionReport convert_by(const Plan& plan, const std::vector<measure::WeightModule>& modules,
                            const std::vector<measure::OpNode>& nodes, std::vector<ModuleScales>* used,
                            const RoundedCodes* rounded) {
  TORCH_CHECK(kernels::has_fp8(runtime::device_kind()), "[convert] ", kernels::kNoFp8);
  const runtime::RunsAtOnce addresses;
  const runtime::OrdinaryTensors ordinary;  // gradients may pass through what is converted in InferenceMode
  std::map<std::string, const measure::WeightModule*> by_name;
  for (const auto& m : modules) by_name[m.name] = &m;
  const auto slots = slots_of(plan, nodes);
  const std::vector<WeightScales> scales = planned_weight_scales(plan, modules);
  ConversionReport report{{}, plan.skipped, plan.warnings};
  Losses losses;
  std::map<const void*, std::string> done;  // tied weights are converted once
  for (std::size_t i = 0; i < plan.modules.size(); ++i) {
    const PlannedModule& p = plan.modules[i];
    const auto& m = *by_name.at(p.info.name);
    if (auto it = done.find(m.weight.unsafeGetTensorImpl()); it != done.end()) {
      const auto handler = runtime::find_tag(m.weight)->handler;
      runtime::tag_weight(m.weight, m.name, handler);
      report.converted.push_back({m.name, m.type, p.scheme.describe() + " (tied to " + it->second + ")", 0, 0});
      continue;
    }
    report.converted.push_back(convert_one(m, p, scales[i], rounded, losses));
    report.converted.back().reduced_scale_inv = p.reduced_scale_inv;
    done[m.weight.unsafeGetTensorImpl()] = m.name;
  }
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const PlannedNode& p = plan.nodes[i];
    slots[i].slot->handler = slots[i].handler;
    report.converted.push_back({p.info.name, p.info.type, p.scheme.describe(), 0, 0});
  }
  report_ties(modules, done, report);
  for (auto& warning : losses.weights.warnings(plan.scale_method, "weights"))
    report.warnings.push_back(std::move(warning));
  for (std::size_t i = 0; used != nullptr && i < plan.modules.size(); ++i)
    used->push_back(
        module_scales(plan.modules[i], scales[i], channels_of(*by_name.at(plan.modules[i].info.name)).cols));
  for (std::size_t i = 0; used != nullptr && i < plan.nodes.size(); ++i) used->push_back(node_scales(plan.nodes[i]));
  return report;
}

ConversionReport convert(const torch::nn::Module& model, const PlanOptions& options) {
  const auto modules = measure::weight_modules(model);
  const auto nodes = measure::op_nodes(model);
  const Plan plan = plan_for(modules, nodes, options);
  refuse_set_adapters(model, plan);
  return convert_by(plan, modules, nodes);
}

std::vector<measure::WeightModule> script_weight_modules(const torch::jit::Module& model) {
  auto modules = measure::weight_modules(model);
  TORCH_CHECK(!modules.empty(),
              "[convert] the TorchScript module has no module with a weight; output of freeze() or "
              "optimize_for_inference() holds weights as constants: convert first, then freeze");
  return modules;
}

ConversionReport convert(const torch::jit::Module& model, const PlanOptions& options) {
  return convert(script_weight_modules(model), measure::op_nodes(model), options);
}

void set_scale(const torch::nn::Module& model, const std::string& module, ScaleOf which, std::size_t index,
               float scale_inv) {
  constexpr const char* kExpected = ": expected a converted module with such a scale, got ";
  std::vector<std::string> names;
  try {
    for (const auto& n : measure::op_nodes(model)) {
      names.push_back(n.name);
      if (n.name != module) continue;
      auto* handler = node_handler(*n.slot);
      TORCH_CHECK(handler != nullptr && which != ScaleOf::weight, "[set_scale] ", module, kExpected,
                  handler == nullptr ? "one that is not converted" : "the weight's of one without a weight");
      return which == ScaleOf::input ? handler->set_input_scale_inv(index, scale_inv)
                                     : handler->set_output_scale_inv(index, scale_inv);
    }
    for (const auto& m : measure::weight_modules(model)) {
      names.push_back(m.name);
      if (m.name != module) continue;
      auto* handler = fp8_handler(m.weight);
      TORCH_CHECK(
          handler != nullptr && which != ScaleOf::output && index == 0, "[set_scale] ", module, kExpected,
          handler == nullptr ? "one that is not converted" : "an output's or a second input's of one with a weight");
      return which == ScaleOf::input ? handler->set_input_scale_inv(scale_inv)
                                     : handler->set_weight_scale_inv(scale_inv);
    }
  } catch (const std::invalid_argument& e) {
    TORCH_CHECK(false, "[set_scale] ", module, ": ", e.what());
  }
  TORCH_CHECK(false, "[set_scale] the model has no module '", module, "'",
              names.empty() ? "" : ", did you mean '" + io::closest(module, names) + "'?");
}

std::string describe(const torch::nn::Module& model) {
  std::ostringstream out;
  describe_into(model, "", "", 0, out);
  return out.str();
}

// The table of a conversion: a line for every module, and what a plan adds to it.
//
//   converted  fc1 (Linear): fp8 training, current scaling, E4M3; operand 6.14 kB of 24.6 kB, 36.9 kflop a row,
//              error 3.61 %
//   kept       embed: type Embedding is trained in high precision
//   plan       1 of 2: 6.14 kB of 24.6 kB, 36.9 kflop for one row of each
//   warning    block[0] "attention": no module has such a name

std::ostream& operator<<(std::ostream& out, const ConversionReport& report) {
  std::int64_t before = 0, after = 0, planned = 0;
  double flops = 0;
  for (const auto& m : report.converted) {
    out << "converted  " << (m.name.empty() ? "the model itself" : m.name) << " (" << m.type << "): " << m.scheme;
    print_planned(m, out);
    out << "\n";
    before += m.bytes_before;
    after += m.operand_bytes != 0 ? m.operand_bytes : m.bytes_after;
    flops += m.flops_per_row;
    planned += m.flops_per_row != 0;
  }
  for (const auto& m : report.skipped)
    out << "kept       " << (m.name.empty() ? "the model itself" : m.name) << ": " << m.reason << "\n";
  if (planned != 0)
    out << "plan       " << report.converted.size() << " of " << report.converted.size() + report.skipped.size() << ": "
        << short_number(static_cast<double>(after)) << "B of " << short_number(static_cast<double>(before)) << "B, "
        << short_number(flops) << "flop for one row of each\n";
  for (const auto& w : report.warnings) out << "warning    " << w << "\n";
  return out;
}

}  // namespace fp8::quant
