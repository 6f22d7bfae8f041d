// SPDX-License-Identifier: Apache-2.0
#include "fp8/measure/files/observer_types.h"

#include <system_error>

namespace fp8::measure {
namespace {

using Parameters = std::vector<configs::ObserverParameter>;

/// In the order of messages and help.
const std::vector<ObserverType>& built_in_types() {
  static const std::vector<ObserverType> types = {
      {.name = "maxabs",
       .help = "the largest magnitude",
       .kept = Kept::amax,
       .parameters = Parameters{},
       .keeps_heads = true,
       .takes_parts = true},
      {.name = "maxabs_per_channel",
       .help = "the largest magnitude of each channel",
       .kept = Kept::amax,
       .parameters = Parameters{},
       .keeps_heads = true,
       .takes_parts = true},
      {.name = "save",
       .help = "every tensor, as a `.pt` file",
       .kept = Kept::tensors,
       .parameters = Parameters{kSaveMib}},
      {.name = "shape",
       .help = "the sizes of the last tensor",
       .kept = Kept::sizes,
       .parameters = Parameters{},
       .reads_values = false,
       .takes_parts = true},
      {.name = "histogram",
       .help = "the largest magnitude, and a histogram of magnitudes beside the file",
       .kept = Kept::amax,
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "percentile",
       .help = "a threshold below which that share of magnitudes lies",
       .parameters = Parameters{kPercentile, kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "mse",
       .help = "the threshold with the least expected squared error",
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
      {.name = "kl",
       .help = "the threshold whose distribution diverges least",
       .parameters = Parameters{kBins},
       .keeps_state = true,
       .takes_parts = true},
  };
  return types;
}

using Types = io::Registry<ObserverType>;

Types& observer_table() {
  static auto& table = *new Types(built_in_types(), &ObserverType::name);
  return table;
}

Types::Entry entry_of(ObserverType type) {
  const std::string name = type.name, quoted = io::in_quotes(name);
  if (!configs::is_observer_name(name))
    io::fail<std::invalid_argument>("observer: found the name {}, allowed: {}", quoted, configs::kObserverNames);
  if (!type.make) io::fail<std::invalid_argument>("observer {}: make is missing", quoted);
  return {observer_table(), name, std::make_shared<const ObserverType>(std::move(type)),
          io::message("observer {}: the name is taken", quoted)};
}

/// Files of unknown origin are taken for those of maxabs.
std::optional<ObserverType> type_of(const std::string& observer) {
  for (ObserverType& type : observer_types())
    if (type.name == (observer.empty() ? "maxabs" : observer)) return std::move(type);
  return std::nullopt;
}

bool is_ground(Kept kept) { return kept == Kept::amax || kept == Kept::threshold; }

/// "which keeps sizes and is no ground for scales".
std::string reason_against(Kept kept) {
  return io::message("which keeps {} and is no ground for scales",
                     kept == Kept::sizes ? "sizes" : "tensors for a look at them");
}

/// The observers that are: "a, b" + last + "c".
std::string grounds(const char* last) {
  const auto names = observer_names([](const ObserverType& type) { return is_ground(type.kept); });
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 < names.size() ? ", " : last) + names[i];
  return text;
}

/// There is one rank's part of that measurement, or several.
bool has_ranks(const StatsName& name) {
  const std::filesystem::path prefix(name.prefix), folder = prefix.has_parent_path() ? prefix.parent_path() : ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return false;
  const auto all = list_stats(folder);
  return std::ranges::any_of(all, [&](const StatsName& n) {
    return n.rank.has_value() && !n.is_scales() && n.observer == name.observer &&
           std::filesystem::path(n.prefix).filename() == prefix.filename();
  });
}

}  // namespace

std::vector<ObserverType> observer_types() {
  std::vector<ObserverType> types;
  for (const auto& row : observer_table().rows()) types.push_back(*row.row);
  const auto own = types.begin() + static_cast<std::ptrdiff_t>(built_in_types().size());
  std::ranges::sort(own, types.end(), {}, &ObserverType::name);
  return types;
}

std::vector<std::string> observer_names(const std::function<bool(const ObserverType&)>& wanted) {
  std::vector<std::string> names;
  for (const ObserverType& type : observer_types())
    if (!wanted || wanted(type)) names.push_back(type.name);
  return names;
}

ObserverRegistration::ObserverRegistration(ObserverType type) : entry_(entry_of(std::move(type))) {}

std::string observer_problem(const configs::QuantConfig& config) {
  if (config.dynamic_quantization || !config.scale_methods.needs_measurements()) return "";
  const auto type = type_of(config.observer);
  if (!type.has_value() || is_ground(type->kept)) return "";
  return io::message("{}: key 'observer': found \"{}\", {}, allowed where scales are made of measurements: ",
                     config.source, config.observer, reason_against(type->kept)) +
         grounds(", ");
}

void refuse_observer_without_amax(const configs::QuantConfig& config) {
  if (const std::string problem = observer_problem(config); !problem.empty()) throw io::Error(problem);
}

void require_amax(const MeasurementFile& file) {
  const bool shapes = file.mode == MeasurementMode::shape;
  for (const auto& m : file.modules) {
    for (std::size_t i = 0; !shapes && file.observer == "maxabs" && i < m.inputs.size(); ++i) {
      if (m.inputs[i].size() == 1) continue;
      io::fail<io::Error>("measurements: {}.inputs[{}]: expected one amax, found {}", m.module, i, m.inputs[i].size());
    }
  }
  const auto type = type_of(shapes ? "shape" : file.observer);
  if (!type.has_value() || is_ground(type->kept)) return;
  io::fail<io::Error>("measurements: found those of observer '{}', {}; measure with {}", type->name,
                      reason_against(type->kept), grounds(" or "));
}

bool has_thresholds(const MeasurementFile& file) {
  const auto type = type_of(file.observer);
  return !type.has_value() || type->kept == Kept::threshold;
}

bool has_heads(const MeasurementFile& file) {
  const auto type = type_of(file.observer);
  return type.has_value() && type->keeps_heads;
}

StatsName measurement_of(const configs::QuantConfig& config, const std::string& prefix) {
  return {prefix, config.observer, {}, configs::file_rank(config, configs::environment())};
}

MeasurementFile measurements_for(const configs::QuantConfig& config, const std::string& where) {
  refuse_observer_without_amax(config);
  if (where.empty()) {
    configs::require_stats_path(config, "scale_method " + config.scale_methods.name() + " reads measurements there");
    const StatsName exact{config.dump_stats_path.string(), config.observer};
    return read_measurements(!exact.exists() && has_ranks(exact) ? find_measurement(exact.prefix, config.observer)
                                                                 : exact);  // which says what is missing
  }
  const StatsName found = find_measurement(where, config.observer);
  if (found.observer != config.observer && config.file_keys.contains("observer"))
    io::fail<io::Error>("{}: key 'observer': found \"{}\", but {} holds measurements of observer '{}'", config.source,
                        config.observer, where, found.observer);
  return read_measurements(found);
}

configs::ParseOptions parse_options() {
  configs::ParseOptions options;
  for (const ObserverType& type : observer_types()) options.observers.push_back({type.name, type.parameters});
  return options;
}

}  // namespace fp8::measure
