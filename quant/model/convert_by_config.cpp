// SPDX-License-Identifier: Apache-2.0

#include "fp8/measure/files/observer_types.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/runtime/ops/common/edge.h"

namespace fp8::quant {
namespace {

using configs::QuantConfig, configs::QuantMode;

/// Nothing of the model's data decides a scale that could be stored.
bool nothing_to_store(const QuantConfig& config) {
  return config.dynamic_quantization || !config.scale_methods.needs_measurements();
}

/// One process takes what `measurements unify` made of several ranks, where it has no file of its own.
measure::StatsName stats_name(const QuantConfig& config, const configs::Environment& environment,
                              const std::string& method) {
  measure::StatsName name{config.dump_stats_path.string(), config.observer, "",
                          configs::file_rank(config, environment)};
  const measure::StatsName unified = name.with_rank(configs::Rank{0, 1});
  if (!name.rank.has_value() && !name.exists() && unified.exists()) name = unified;
  name.method = method;
  return name;
}

/// Everything besides model and measurement that decides a scale.
std::string method_text(const QuantConfig& config, const io::Json& methods, recipes::Dialect device) {
  const auto target = configs::inc_target(config, device);
  return io::message("{} {} {} {}{}", recipes::name_of(target.dialect), recipes::name_of(config.fp8_config),
                     recipes::name_of(config.hp_dtype), methods.dump(),
                     config.row_parallel_allreduce ? " reduced" : "");
}

/// The method of each: of what is planned, or of all modules, since what tells stale scales has to be known before the
/// plan.
template <class Modules, class Nodes>
io::Json methods_of(const QuantConfig& config, const Modules& modules, const Nodes& nodes) {
  std::vector<std::pair<std::string, std::string>> names;
  const auto add = [&](const auto& list) {
    for (const auto& one : list) {
      if constexpr (requires { one.info; })
        names.emplace_back(one.info.name, one.info.type);
      else
        names.emplace_back(one.name, one.type);
    }
  };
  add(modules);
  add(nodes);
  return configs::method_report(config.scale_methods, names);
}

void dump_methods(const std::filesystem::path& path, const io::Json& methods) {
  io::AtomicFile file(path);
  file.append(methods.dump(4) + "\n");
  file.commit();
}

class Conversion {
 public:
  Conversion(const QuantConfig& config, recipes::Dialect device, const std::vector<measure::WeightModule>& modules,
             const std::vector<measure::OpNode>& nodes, const std::map<std::string, std::string>& keep)
      : config_(config), device_(device), modules_(modules), nodes_(nodes) {
    options_.keep = keep;
  }

  /// Reads what there is; the plan.
  Plan plan() {
    configs::check_rules(config_, device_, environment_);
    if (config_.mode != QuantMode::LOAD) measure::refuse_observer_without_amax(config_);
    if (config_.mode != QuantMode::LOAD && !config_.rounding.nearest())
      io::fail<io::Error>(
          "{}: key 'rounding': method {} runs the model on data, which a model that is quantized on load has not; fp8 "
          "quantize --config with --data writes a checkpoint of such codes",
          config_.source, config_.rounding.method);
    options_.config = config_;
    options_.dialect = device_;
    options_.activations = ActivationScaling::static_tensor;
    if (!nothing_to_store(config_)) read_files();
    Plan plan = plan_for(modules_, nodes_, options_);
    plan.warnings.insert(plan.warnings.begin(), warnings_.begin(), warnings_.end());
    return plan;
  }

  ConversionReport convert(const Plan& plan) {
    std::vector<ModuleScales> used;
    ConversionReport report = convert_by(plan, modules_, nodes_, &used);
    report.scales_of = read_;
    const bool made = !options_.scales.has_value() && !nothing_to_store(config_);
    if (made && !used.empty()) {
      ScaleFile file;
      file.modules = std::move(used);
      try {
        write_scales(name_, file, origin_);
      } catch (const io::Error& e) {  // the model is converted; a folder that can't be written to is no reason to fail
        report.warnings.push_back(std::string("scales are not stored: ") + e.what());
      }
    }
    if (environment_.scale_method_dump.has_value())
      dump_methods(*environment_.scale_method_dump, methods_of(config_, plan.modules, plan.nodes));
    return report;
  }

 private:
  void read_files() {
    const bool load = config_.mode == QuantMode::LOAD;
    configs::require_stats_path(config_,
                                load ? "mode LOAD reads scales there"
                                     : "scale_method " + config_.scale_methods.name() + " reads measurements there");
    measure::StatsName measurement = name_;
    measurement.method.clear();
    if (!load && measurement.exists()) options_.measurements = measure::read_measurements(measurement);
    origin_ = {fingerprint_of(modules_).digest(),
               options_.measurements.has_value() ? options_.measurements->fingerprint() : "",
               method_text(config_, methods_of(config_, modules_, nodes_), device_)};
    const ScaleChoice choice = choose_scales(name_, origin_, config_.recalc_scales && !load);
    if (!choice.warning.empty()) warnings_.push_back(choice.warning);
    if (choice.scales.has_value()) {
      read_ = name_.json();
      options_.scales = choice.scales;
      for (const auto& w : choice.scales->warnings) warnings_.push_back(w);
      return;
    }
    if (load) io::fail<io::Error>("{}: found no usable scales, which mode LOAD needs", name_.json().string());
    read_ = measurement.json();
    if (!options_.measurements.has_value())
      options_.measurements = measure::read_measurements(measurement);  // says what is missing
  }

  const QuantConfig& config_;
  recipes::Dialect device_;
  const configs::Environment environment_ = configs::environment();
  const std::vector<measure::WeightModule>& modules_;
  const std::vector<measure::OpNode>& nodes_;
  const measure::StatsName name_ = stats_name(config_, environment_, config_.scale_methods.name());
  PlanOptions options_;
  ScaleOrigin origin_;
  std::vector<std::string> warnings_;
  std::filesystem::path read_;
};

}  // namespace

ConversionReport convert_with_config(const torch::nn::Module& model, const QuantConfig& config, recipes::Dialect device,
                                     const std::map<std::string, std::string>& keep) {
  const auto modules = measure::weight_modules(model);
  const auto nodes = measure::op_nodes(model);
  Conversion conversion(config, device, modules, nodes, keep);
  const Plan plan = conversion.plan();
  refuse_set_adapters(model, plan);
  return conversion.convert(plan);
}

ConversionReport convert_with_config(const torch::jit::Module& model, const QuantConfig& config,
                                     recipes::Dialect device, const std::map<std::string, std::string>& keep) {
  return convert_with_config(script_weight_modules(model), measure::op_nodes(model), config, device, keep);
}

ConversionReport convert_with_config(const std::vector<measure::WeightModule>& modules,
                                     const std::vector<measure::OpNode>& nodes, const QuantConfig& config,
                                     recipes::Dialect device, const std::map<std::string, std::string>& keep) {
  Conversion conversion(config, device, modules, nodes, keep);
  return conversion.convert(conversion.plan());
}

Plan plan_with_config(const torch::nn::Module& model, const QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep) {
  return plan_with_config(measure::weight_modules(model), measure::op_nodes(model), config, device, keep);
}

Plan plan_with_config(const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
                      const QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep) {
  return Conversion(config, device, modules, nodes, keep).plan();
}

Plan plan_with_config(const torch::jit::Module& model, const QuantConfig& config, recipes::Dialect device,
                      const std::map<std::string, std::string>& keep) {
  return plan_with_config(script_weight_modules(model), measure::op_nodes(model), config, device, keep);
}

}  // namespace fp8::quant
