// SPDX-License-Identifier: Apache-2.0
#include "fp8/configs/training/deepspeed_config.h"

#include "fp8/configs/name_patterns.h"

namespace fp8::configs {
namespace {

using detail::DeepSpeedFile;

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";

bool is_automatic(const io::Json& value) { return value.is_string() && value.get_ref<const std::string&>() == "auto"; }

/// Paths whose value is "auto", in the file's order. The walk has judged the depth.
void find_automatic(const io::Json& json, const std::string& parent, std::vector<std::string>& paths) {
  for (const auto& [key, value] : json.items()) {
    if (value.is_object()) find_automatic(value, parent + io::printable(key) + ".", paths);
    if (is_automatic(value)) paths.push_back(parent + io::printable(key));
  }
}

void check_precision(const DeepSpeedFile& file) {
  const bool old = file.find("bfloat16") != nullptr;
  if (old && file.find("bf16") != nullptr) file.refuse("bfloat16", "found beside bf16, allowed: one of the two");
  const bool bf16 = file.is("bf16.enabled") || file.is("bfloat16.enabled");
  if (file.is("fp16.enabled") && bf16)
    file.refuse("fp16.enabled", std::string("found true beside ") + (old ? "bfloat16" : "bf16") +
                                    ".enabled true, allowed: one of the two");
  for (const char* key :
       {"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"}) {
    if (file.is(key) && file.stage() == 0)
      file.refuse(key, "found true with zero_optimization.stage 0, allowed: a stage from 1 to 3");
  }
  if (file.is("bf16.bf16_optimizer_states") && !file.is("bf16.bf16_master_weights_and_grads"))
    file.refuse("bf16.bf16_optimizer_states",
                "found true without bf16.bf16_master_weights_and_grads, allowed: with it");
  const io::Json* dtype = file.find("data_types.grad_accum_dtype");
  const bool sums_in_f32 = dtype != nullptr && *dtype == "fp32";
  if (bf16 && sums_in_f32 && file.stage() == 1 && file.offload_device("offload_optimizer") == "none")
    file.findings.notes.push_back(file.source + ": stage 1 with bf16 and gradients in fp32 is BF16_Optimizer");
}

/// Keys of zero_optimization that transformers' Trainer or Accelerate fill in. DeepSpeed drops "auto" there, so its
/// default applies.
constexpr const char* kFilledIn[] = {"stage",
                                     "reduce_bucket_size",
                                     "stage3_prefetch_bucket_size",
                                     "stage3_param_persistence_threshold",
                                     "stage3_gather_16bit_weights_on_model_save",
                                     "offload_param.device",
                                     "offload_param.nvme_path",
                                     "offload_optimizer.device",
                                     "offload_optimizer.nvme_path"};

bool is_filled_in(const std::string& path) {
  constexpr std::string_view kZero = "zero_optimization.";
  if (!path.starts_with(kZero)) return true;
  return std::ranges::any_of(kFilledIn, [&](const char* key) { return path.substr(kZero.size()) == key; });
}

void check_automatic(const DeepSpeedFile& file) {
  std::vector<std::string> automatic;
  find_automatic(file.json, "", automatic);
  for (const auto& path : automatic) {
    const KeyRow* row = find_row(deepspeed_keys(), path);
    const bool is_argument = path.starts_with("optimizer.params.") || path.starts_with("scheduler.params.");
    if (!is_argument && (row == nullptr || !row->allowed.automatic)) continue;  // free contents, or named by the walk
    if (!is_filled_in(path))
      file.note(path, "\"auto\" is DeepSpeed's default");
    else if (!file.use.reader.has_value())
      file.note(path, "\"auto\" is filled in by transformers and Accelerate alone");
    else if (!file.is_read_by(DeepSpeedReader::transformers))
      file.refuse(path, std::string("found \"auto\", which nobody fills in with reader ") + name_of(*file.use.reader) +
                            ", allowed: a value");
  }
}

void check_reader(const DeepSpeedFile& file) {
  check_automatic(file);
  if (!file.is_read_by(DeepSpeedReader::lightning)) return;
  if (file.find(kAccumulation) != nullptr)
    file.refuse(kAccumulation, "found with reader lightning, allowed: the Trainer's accumulate_grad_batches");
  if (file.is("autotuning.enabled"))
    file.refuse("autotuning.enabled", "found true, which HPUDeepSpeedStrategy refuses, allowed: false");
}

/// A positive integer that the file says; 0 where it does not.
std::int64_t count_at(const io::Json& json, const char* key) {
  const io::Json* value = find_value(json, key);
  if (value == nullptr || !value->is_number()) return 0;
  const double number = value->get<double>();
  return number >= 1 && number <= 2147483647 && number == std::floor(number) ? static_cast<std::int64_t>(number) : 0;
}

/// The keys, and how many processes divide the batch.
struct BatchKeys {
  const io::Json& json;
  const DeepSpeedUse& use;
  std::int64_t train = count_at(json, kTrain), micro = count_at(json, kMicro),
               accumulation = count_at(json, kAccumulation),
               processes = use.processes / std::max<std::int64_t>(1, count_at(json, "sequence_parallel_size"));

  /// "train_micro_batch_size_per_gpu 17 x gradient_accumulation_steps 2 x 2 processes": those that are known.
  std::string factors() const {
    std::string text;
    const auto add = [&text](const std::string& factor) { text += (text.empty() ? "" : " x ") + factor; };
    if (micro > 0) add(std::string(kMicro) + " " + std::to_string(micro));
    if (accumulation > 0) add(std::string(kAccumulation) + " " + std::to_string(accumulation));
    if (processes > 0) add(std::to_string(processes) + (processes == 1 ? " process" : " processes"));
    return text;
  }
};

/// Unless something judged it already, or another program chooses.
bool is_judged(const io::Json& json, const char* key) {
  const io::Json* value = find_value(json, key);
  return value == nullptr || count_at(json, key) > 0;
}

void check_product(const BatchKeys& keys, const DeepSpeedFile& file) {
  const std::int64_t each = std::max<std::int64_t>(1, keys.micro) * std::max<std::int64_t>(1, keys.accumulation);
  const std::int64_t processes = std::max<std::int64_t>(1, keys.processes);
  const bool complete = keys.micro > 0 && keys.accumulation > 0 && keys.processes > 0;
  const bool divides = keys.train % processes == 0 && keys.train / processes % each == 0;
  if (complete ? divides && keys.train / processes == each : divides) return;
  const bool fits = each <= 2147483647 / processes;
  const std::string product = fits ? std::to_string(each * processes) : "the product";
  file.refuse(kTrain, io::message("found {}, allowed: {} ({})", keys.train,
                                  complete ? product : "a multiple of " + product, keys.factors()));
}

void require_rows(const io::Json& arguments, const std::string& source, KeyRows rows) {
  const auto problems = key_problems(arguments, io::printable(source, 4096), rows);
  if (!problems.empty()) throw io::Error(problems[0]);
}

DeepSpeedStrategy with_defaults(const DeepSpeedStrategy& s) {
  return with_standards(s.is_null() ? io::Json::object() : s, deepspeed_strategy_keys());
}

io::Json picked(const DeepSpeedStrategy& s, std::initializer_list<const char*> names) {
  io::Json json = io::Json::object();
  for (const char* name : names) json[name] = s.at(name);
  return json;
}

io::Json offload_json(const DeepSpeedStrategy& s, bool parameters) {
  io::Json json = {{"device", s.at(parameters ? "offload_params_device" : "offload_optimizer_device")},
                   {"nvme_path", s.at("nvme_path")},
                   {"buffer_count", s.at(parameters ? "params_buffer_count" : "optimizer_buffer_count")}};
  if (parameters) json.update({{"buffer_size", s.at("params_buffer_size")}, {"max_in_cpu", s.at("max_in_cpu")}});
  json["pin_memory"] = s.at("pin_memory");
  return json;
}

io::Json zero_json(const DeepSpeedStrategy& s) {
  io::Json json = picked(s, {"stage", "contiguous_gradients", "overlap_comm", "allgather_partitions", "reduce_scatter",
                             "allgather_bucket_size", "reduce_bucket_size", "sub_group_size"});
  if (s.at("offload_optimizer") == true) json["offload_optimizer"] = offload_json(s, /*parameters=*/false);
  if (s.at("offload_parameters") == true) json["offload_param"] = offload_json(s, /*parameters=*/true);
  return json;
}

/// A whole number stays one, as Python writes it.
io::Json plain_number(double value) {
  const auto whole = static_cast<std::int64_t>(std::clamp(value, -1e15, 1e15));
  return static_cast<double>(whole) == value ? io::Json(whole) : io::Json(value);
}

}  // namespace

void DeepSpeedFile::check_batch() const {
  if (is("elasticity.enabled")) {
    if (is("elasticity.ignore_non_elastic_batch_info")) return;
    for (const char* key : {kTrain, kMicro, kAccumulation})
      if (find(key) != nullptr)
        refuse(key,
               "found with elasticity.enabled, which chooses it, allowed: without it, or with "
               "elasticity.ignore_non_elastic_batch_info true");
    return;
  }
  for (const char* key : {kTrain, kMicro, kAccumulation})
    if (!is_judged(json, key)) return;
  const BatchKeys keys{json, use};
  if (keys.train > 0) return check_product(keys, *this);
  if (keys.micro == 0 && !is_read_by(DeepSpeedReader::lightning))
    findings.problems.push_back(
        io::message("{}: found neither {} nor {}, allowed: one of the two, or both", source, kTrain, kMicro));
}

std::int64_t DeepSpeedFile::stage() const {
  if (is("zero_optimization")) return 1;
  const io::Json* value = find("zero_optimization.stage");
  return value != nullptr && value->is_number() ? static_cast<std::int64_t>(std::clamp(value->get<double>(), 0.0, 3.0))
                                                : 0;
}

std::string DeepSpeedFile::offload_device(const std::string& section) const {
  const bool old =
      is(section == "offload_param" ? "zero_optimization.cpu_offload_param" : "zero_optimization.cpu_offload");
  const io::Json* device = find("zero_optimization." + section + ".device");
  if (device == nullptr || !device->is_string()) return old ? "cpu" : "none";
  return device->get<std::string>();
}

Findings check_deepspeed(const io::Json& json, const std::string& source, const DeepSpeedUse& use) {
  Findings found;
  const DeepSpeedFile file{{json, io::printable(source, 4096), found}, use};
  found.problems = key_problems(json, file.source, deepspeed_keys());
  if (!json.is_object()) return found;
  check_precision(file);
  check_reader(file);
  file.check_types();
  file.check_zero();
  file.check_batch();
  return found;
}

DeepSpeedBatch deepspeed_batch(const io::Json& json, const DeepSpeedUse& use) {
  const BatchKeys keys{json, use};
  DeepSpeedBatch batch{keys.train, keys.micro, keys.accumulation, keys.processes};
  const auto quotient = [](std::int64_t a, std::int64_t b) { return a > 0 && b > 0 ? a / b : 0; };
  if (batch.train > 0 && batch.micro == 0 && batch.accumulation == 0) batch.accumulation = 1;
  if (batch.train == 0 && batch.micro > 0 && batch.accumulation == 0) batch.accumulation = 1;
  const auto per_process = quotient(batch.train, batch.processes);
  if (batch.micro == 0) batch.micro = quotient(per_process, batch.accumulation);
  if (batch.accumulation == 0) batch.accumulation = quotient(per_process, batch.micro);
  if (batch.processes == 0) batch.processes = quotient(quotient(batch.train, batch.micro), batch.accumulation);
  if (batch.train == 0 && batch.processes > 0 && batch.micro > 0 &&
      batch.accumulation <= (std::int64_t{1} << 62) / batch.micro / batch.processes)
    batch.train = batch.micro * batch.accumulation * batch.processes;
  return batch;
}

KeyRows deepspeed_strategy_keys() { return deepspeed_table("strategy"); }
KeyRows deepspeed_trainer_keys() { return deepspeed_table("trainer"); }

const std::vector<std::string>& deepspeed_strategy_names() {
  static const std::vector<std::string> names = {"hpu_deepspeed",
                                                 "hpu_deepspeed_stage_1",
                                                 "hpu_deepspeed_stage_2",
                                                 "hpu_deepspeed_stage_3",
                                                 "hpu_deepspeed_stage_2_offload",
                                                 "hpu_deepspeed_stage_3_offload",
                                                 "hpu_deepspeed_stage_3_offload_nvme"};
  return names;
}

DeepSpeedStrategy deepspeed_strategy(const std::string& name) {
  const auto& names = deepspeed_strategy_names();
  if (std::ranges::find(names, name) == names.end())
    io::fail<io::Error>("strategy: found {}, allowed: {}; did you mean '{}'?", io::in_quotes(name), io::joined(names),
                        closest(name, names));
  DeepSpeedStrategy s = with_defaults({});
  const auto stage = name.find("_stage_");
  if (stage == std::string::npos) return s;
  const bool offloads = name.find("_offload") != std::string::npos;
  s["stage"] = name[stage + 7] - '0';
  s["offload_optimizer"] = offloads;
  s["offload_parameters"] = offloads && s["stage"] == 3;
  if (name.ends_with("_nvme")) s["offload_params_device"] = s["offload_optimizer_device"] = "nvme";
  return s;
}

DeepSpeedStrategy parse_deepspeed_strategy(const io::Json& arguments, const std::string& source,
                                           DeepSpeedStrategy start) {
  require_rows(arguments, source, deepspeed_strategy_keys());
  for (const auto& [name, value] : arguments.items()) {
    const bool whole = find_row(deepspeed_strategy_keys(), name)->allowed.type == Allowed::Type::integer;
    start[name] = whole && value.is_number() ? io::Json(static_cast<std::int64_t>(value.get<double>())) : value;
  }
  return start;
}

DeepSpeedTrainer parse_deepspeed_trainer(const io::Json& arguments, const std::string& source) {
  require_rows(arguments, source, deepspeed_trainer_keys());
  const auto number = [&](const char* key, double standard) {
    const io::Json* value = find_value(arguments, key);
    return value != nullptr ? value->get<double>() : standard;
  };
  return {.precision = arguments.value("precision", "32-true"),
          .accumulate_grad_batches = static_cast<std::int64_t>(number("accumulate_grad_batches", 1)),
          .gradient_clip_val = number("gradient_clip_val", 0),
          .batch_size = static_cast<std::int64_t>(number("batch_size", 1))};
}

io::Json deepspeed_json(const DeepSpeedStrategy& strategy) {
  const DeepSpeedStrategy s = with_defaults(strategy);
  io::Json json = io::Json::object();
  if (const io::Json& batch = s.at("logging_batch_size_per_gpu"); batch.is_number())
    json["train_micro_batch_size_per_gpu"] = batch;
  if (s.at("zero_optimization") == true) {
    json["zero_allow_untested_optimizer"] = s.at("zero_allow_untested_optimizer");
    json["zero_optimization"] = zero_json(s);
  }
  json["activation_checkpointing"] = picked(s, {"partition_activations", "cpu_checkpointing",
                                                "contiguous_memory_optimization", "synchronize_checkpoint_boundary"});
  json["aio"] = picked(s, {"block_size", "queue_depth", "single_submit", "overlap_events", "thread_count"});
  return json;
}

void fill_in_deepspeed(io::Json& config, const DeepSpeedStrategy& strategy, const DeepSpeedTrainer& trainer,
                       const std::string& source) {
  const DeepSpeedStrategy s = with_defaults(strategy);
  const std::string where = io::printable(source, 4096);
  if (is_true(config, "autotuning.enabled"))
    io::fail<io::Error>("{}: found true, which HPUDeepSpeedStrategy refuses, allowed: false",
                        key_where(where, "autotuning.enabled"));
  if (config.contains("gradient_accumulation_steps"))
    io::fail<io::Error>("{}: found with reader lightning, allowed: the Trainer's accumulate_grad_batches",
                        key_where(where, "gradient_accumulation_steps"));
  config["gradient_accumulation_steps"] = trainer.accumulate_grad_batches;
  if (!config.contains("train_micro_batch_size_per_gpu")) config["train_micro_batch_size_per_gpu"] = trainer.batch_size;
  if (!config.contains("gradient_clipping")) config["gradient_clipping"] = trainer.gradient_clip_val;
  const bool f16 = trainer.precision.starts_with("16-"), bf16 = trainer.precision.starts_with("bf16-");
  if (f16 && !config.contains("fp16")) {
    config["fp16"] = {{"enabled", true}, {"loss_scale", plain_number(s.at("loss_scale").get<double>())}};
    config["fp16"].update(picked(s, {"initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"}));
  } else if (bf16 && !config.contains("bf16")) {
    config["bf16"] = {{"enabled", true}};
  }
}

}  // namespace fp8::configs
