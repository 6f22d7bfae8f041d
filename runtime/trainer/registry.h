// SPDX-License-Identifier: Apache-2.0
// Accelerators and strategies by the names that Lightning has for them, and how many processes a run needs: what
// programs, options and run files ask. No torch here; strategy.h has what the names stand for.
//
//   strategy_named("strategy", "hpu_dpd")        throws: allowed: auto, hpu_single, ...; did you mean 'hpu_ddp'?
//   strategy_named("strategy", "hpu_deepspeed")  throws: ... comes with a package of Python: torchrun ...
//   require_ranks(8, 2)                          throws unless a launcher started 16 processes: torchrun --nnodes 2 ...
//
// All throw std::invalid_argument, in one line. where: the option or key in it, "--strategy", "trainer.strategy".
#pragma once
#include <iterator>
#include <map>
#include <numbers>

#include "fp8/runtime/io/base/enum_names.h"
#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

// How the ranks of a training come to the same gradients. No torch here.

enum class StrategyKind : std::uint8_t { automatic, hpu_single, hpu_parallel, hpu_ddp, fast_ddp };

template <class E>
struct NameAndMeaning {
  E value;
  const char* name;
  const char* what;
};
constexpr auto names_of(StrategyKind) {
  using enum StrategyKind;
  return std::to_array<NameAndMeaning<StrategyKind>>(
      {{automatic, "auto", "hpu_single for one rank, hpu_parallel for more"},
       {hpu_single, "hpu_single", "one rank, no messages"},
       {hpu_parallel, "hpu_parallel", "one f32 message after backward: the mean, rounded once"},
       {hpu_ddp, "hpu_ddp", "buckets of gradients, sent while backward runs (c10d's Reducer)"},
       {fast_ddp, "fast_ddp", "one message after backward, in bf16 unless told otherwise"}});
}

// The training loop's answer to NaN and Inf. No torch here.

/// When a loss or a gradient is NaN or infinite: end with an error naming the step, or leave the parameters as they
/// are.
enum class NonFinite : std::uint8_t { error, skip };
constexpr auto names_of(NonFinite) { return names_up_to<NonFinite::skip>("error", "skip"); }

/// What becomes of an epoch's last samples where they are no whole batch: a smaller batch, none, or a whole one with
/// the epoch's first samples once more, so that all batches have one size.
enum class LastBatch : std::uint8_t { keep, drop, fill };
constexpr auto names_of(LastBatch) { return names_up_to<LastBatch::fill>("keep", "drop", "fill"); }

enum class AcceleratorKind : std::uint8_t { automatic, hpu, cpu };

constexpr auto names_of(AcceleratorKind) {
  using enum AcceleratorKind;
  return std::to_array<NameAndMeaning<AcceleratorKind>>({{automatic, "auto", "hpu where there is one, else cpu"},
                                                         {hpu, "hpu", "the emulated Gaudi"},
                                                         {cpu, "cpu", "LibTorch's own device"}});
}

/// Lightning's strategies that come with a package of Python: DeepSpeed's stages, and FSDP.
inline constexpr const char* kPythonStrategies[] = {"hpu_deepspeed",
                                                    "hpu_deepspeed_stage_1",
                                                    "hpu_deepspeed_stage_2",
                                                    "hpu_deepspeed_stage_2_offload",
                                                    "hpu_deepspeed_stage_3",
                                                    "hpu_deepspeed_stage_3_offload",
                                                    "hpu_deepspeed_stage_3_offload_nvme",
                                                    "hpu_fsdp"};

/// "found 'hpu_fsdp', which comes with ...: torchrun ...; allowed here: auto, ...", of one of them; else "".
inline std::string python_strategy_refusal(std::string_view name) {
  if (std::ranges::find(kPythonStrategies, name) == std::end(kPythonStrategies)) return "";
  const std::string sharding =
      name == "hpu_fsdp"
          ? "torch.distributed.fsdp.fully_shard(model.to(\"hpu\")) shards it"
          : "deepspeed.initialize(model=model, config=\"ds.json\") has it (fp8 config check ds.json reads the same)";
  return io::message(
      "found '{}', which comes with a package of Python: torchrun --nproc-per-node 2 your_training.py, where {}; "
      "allowed here: {}",
      name, sharding, allowed_names<StrategyKind>());
}

/// The value of the name, else an error with the nearest of them and of `others`.
template <NamedEnum E>
E named(const std::string& where, std::string_view name, const std::vector<std::string>& others = {}) {
  if (const auto value = parse_enum<E>(name)) return *value;
  auto known = others;
  for (const auto& row : enum_names<E>) known.emplace_back(row.name);
  io::fail<std::invalid_argument>("{}: found {}, allowed: {}; did you mean '{}'?", where, io::in_quotes(name),
                                  allowed_names<E>(), io::closest(name, known));
}

inline AcceleratorKind accelerator_named(const std::string& where, std::string_view name) {
  return named<AcceleratorKind>(where, name);
}

inline StrategyKind strategy_named(const std::string& where, std::string_view name) {
  if (const std::string refusal = python_strategy_refusal(name); !refusal.empty())
    io::fail<std::invalid_argument>("{}: {}", where, refusal);
  return named<StrategyKind>(where, name, {std::begin(kPythonStrategies), std::end(kPythonStrategies)});
}

/// Of one machine: as many as FP8_HPU_DEVICES may say.
inline constexpr int kMostDevices = 16;

/// Starts `devices` processes on each of num_nodes machines: "torchrun --nproc-per-node 2 --no-python fp8 train".
inline std::string launch_line(std::int64_t devices, std::int64_t num_nodes,
                               std::string_view command = "fp8 train ...") {
  const std::string machines = num_nodes > 1 ? "--nnodes " + std::to_string(num_nodes) +
                                                   " --node-rank $NODE_RANK --master-addr $MASTER_ADDR " +
                                                   "--master-port $MASTER_PORT "
                                             : "";
  return io::message("torchrun {}--nproc-per-node {} --no-python {}", machines, devices, command);
}

/// Ends a run that asks for other processes than there are. devices: processes on each machine, 1 to kMostDevices, each
/// with a device of its own; none (no key, or "auto"): as many as were started. num_nodes: machines, 1 to kMaxRanks.
/// Throws naming both, with the line that starts them (launch_line(), `command` in it) where no launcher did; io::Error
/// for variables of a launcher that contradict each other.
inline void require_ranks(std::optional<std::int64_t> devices, std::int64_t num_nodes,
                          std::string_view command = "fp8 train ...",
                          const io::GetVariable& get = io::environment_value) {
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) io::fail<std::invalid_argument>("{}: found {}, allowed: 1 to {}", name, value, most);
  };
  in_range("devices", devices.value_or(1), kMostDevices);
  in_range("num_nodes", num_nodes, io::kMaxRanks);
  const auto started = io::launched(get);
  const int size = started.has_value() ? started->size : 1;
  const bool fits = devices.has_value() ? *devices * num_nodes == size : size % num_nodes == 0;
  if (fits) return;
  std::string asked = "devices: found " + (devices.has_value() ? std::to_string(*devices) : "auto");
  if (num_nodes != 1) asked += " with num_nodes " + std::to_string(num_nodes);
  if (size > 1)
    io::fail<std::invalid_argument>("{}, allowed: what makes {} processes, for {}", asked, size, started->text());
  io::fail<std::invalid_argument>("{}, which is more than this process, and a launcher starts them: {}", asked,
                                  launch_line(devices.value_or(1), num_nodes, command));
}

// The learning rate of each optimizer step, as a share of the highest. No torch here.
//
//   rise       (step + warmup_from) / warmup                                       step < warmup, steps from 0
//   cosine     min + (1 - min) (1 + cos(pi share)) / 2                             share: of the steps after the rise
//   linear     min + (1 - min) (1 - share)
//   constant   1
//
// transformers' schedules of the same names with warmup_from 0: its first step has rate 0.

enum class LrShape : std::uint8_t { cosine, linear, constant };
constexpr auto names_of(LrShape) { return names_up_to<LrShape::constant>("cosine", "linear", "constant"); }

struct LrSchedule {
  LrShape shape = LrShape::cosine;
  std::int64_t warmup = 0, warmup_from = 1;  ///< steps of the rise; what the first of them counts as, 0 or 1
  std::int64_t steps = 0;                    ///< at which the shape has come down to min_factor, there to stay
  double min_factor = 0;

  /// step: from 0.
  double operator()(std::int64_t step) const {
    if (step < warmup) return static_cast<double>(step + warmup_from) / static_cast<double>(warmup);
    const auto after_rise = [this](std::int64_t n) { return static_cast<double>(n - warmup); };
    const double share = step < steps ? after_rise(step) / after_rise(steps) : 1;
    switch (shape) {
      case LrShape::cosine: return min_factor + (1 - min_factor) * 0.5 * (1 + std::cos(std::numbers::pi * share));
      case LrShape::linear: return min_factor + (1 - min_factor) * (1 - share);
      case LrShape::constant: break;
    }
    return 1;
  }
};

// Classes that a run file names: callbacks, loggers, models and data, with arguments of their own. No torch here.
//
//   callbacks:                                               Part{"lightning.pytorch.callbacks.EarlyStopping",
//   - class_path: lightning.pytorch.callbacks.EarlyStopping       {"monitor": "val_loss", "patience": 3}}
//     init_args: {monitor: val_loss, patience: 3}

struct Part {
  std::string class_path;
  io::Json init_args = io::Json::object();
  std::string place = {};                          ///< of class_path, "run.yaml:12: trainer.callbacks.0"
  std::map<std::string, std::string> places = {};  ///< of arguments
};

/// Modules of Python that this program stands for.
inline constexpr std::string_view kModules[] = {
    "lightning", "pytorch_lightning", "lightning_habana", "habana_frameworks", "fp8", "torch"};

/// "EarlyStopping" of "lightning.pytorch.callbacks.EarlyStopping"; whole for a class of another package.
inline std::string own_name(const std::string& class_path) {
  const std::string_view first = std::string_view(class_path).substr(0, class_path.find('.'));
  const bool ours = first.size() < class_path.size() && std::ranges::find(kModules, first) != std::end(kModules);
  return ours ? class_path.substr(class_path.rfind('.') + 1) : class_path;
}

// How Lightning's files write a time: 90, "DD:HH:MM:SS", {hours: 1, minutes: 30}. No torch here.

/// Throws io::Error naming `place` and what is allowed.
inline double seconds_of(const io::Json& value, const std::string& place) {
  const auto fail = [&]() {
    io::fail<io::Error>(
        "{}: found {}, allowed: seconds, \"DD:HH:MM:SS\", or an object of weeks, days, hours, minutes, seconds", place,
        io::printable(value.dump()));
  };
  constexpr std::pair<const char*, double> kUnits[] = {
      {"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}, {"weeks", 604800}};
  double seconds = 0;
  if (value.is_number()) return value.get<double>();
  if (value.is_object()) {
    for (const auto& [unit, number] : value.items()) {
      const auto* row = std::ranges::find(kUnits, unit, [](const auto& pair) { return std::string(pair.first); });
      if (row == std::end(kUnits) || !number.is_number() || number < 0) fail();
      seconds += row->second * number.get<double>();
    }
    return seconds;
  }
  if (!value.is_string()) fail();
  std::string rest = value.get<std::string>();
  for (int unit = 0; unit < 4; ++unit) {
    const auto end = unit < 3 ? rest.find(':') : rest.size();
    const auto number = end == std::string::npos ? std::nullopt : io::parse_integer(rest.substr(0, end), 0, 1 << 30);
    if (!number) fail();
    seconds += kUnits[unit].second * static_cast<double>(number.value_or(0));
    rest = end < rest.size() ? rest.substr(end + 1) : "";
  }
  return seconds;
}

}  // namespace fp8::trainer
