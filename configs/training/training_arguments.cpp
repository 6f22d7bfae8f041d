// SPDX-License-Identifier: Apache-2.0
// What training arguments demand of each other (see gaudi_config.h).
#include <cmath>
#include <string_view>

#include "fp8/configs/quant_config_keys.h"
#include "fp8/configs/training/gaudi_config.h"
#include "fp8/configs/training/training_values.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::configs {
namespace {

constexpr const char* kGraphs[] = {"use_hpu_graphs", "use_hpu_graphs_for_training", "use_hpu_graphs_for_inference"};

/// "found true": a key that stands in the file.
std::string found(const io::Json& json, const std::string& key) {
  return "found " + detail::found_text(*find_value(json, key));
}

class Rules {
 public:
  Rules(const io::Json& json, std::string source, Findings& findings)
      : json_(json), all_(with_standards(json, training_argument_keys())), source_(std::move(source)), out_(findings) {}

  /// What GaudiTrainingArguments itself refuses.
  void gaudi() {
    std::vector<std::string> graphs;
    for (const char* key : kGraphs) {
      if (is_true(json_, key)) graphs.emplace_back(key);
    }
    std::vector<std::string> needs_device = graphs;
    if (is_true(json_, "use_lazy_mode")) needs_device.emplace_back("use_lazy_mode");
    if (find_value(json_, "gaudi_config_name") != nullptr) needs_device.emplace_back("gaudi_config_name");
    if (!is_true(json_, "use_habana")) {
      for (const auto& key : needs_device) refuse(key, "found without use_habana, allowed: use_habana true");
    }
    if (!graphs.empty() && training::is_false(json_, "use_lazy_mode") &&
        find_value(json_, "torch_compile_backend") == nullptr)
      refuse(graphs[0], "found true with use_lazy_mode false, allowed: use_lazy_mode true, or torch_compile_backend");
    const std::string of_graphs = "allowed: with use_hpu_graphs_for_training or use_hpu_graphs_for_inference";
    if (graphs.empty() && is_true(json_, "disable_tensor_cache_hpu_graphs"))
      refuse("disable_tensor_cache_hpu_graphs", "found true without graphs, " + of_graphs);
    if (graphs.empty() && find_value(json_, "max_hpu_graphs") != nullptr)
      refuse("max_hpu_graphs", "found without graphs, " + of_graphs);
  }

  /// What transformers' TrainingArguments refuse, of keys that have an effect.
  void transformers() {
    const std::string type = training::text_of(all_, "lr_scheduler_type");
    const io::Json* min_lr = find_value(all_, "lr_scheduler_kwargs.min_lr");
    if (type == "cosine_with_min_lr" && min_lr == nullptr)
      refuse("lr_scheduler_type", found(json_, "lr_scheduler_type") + ", allowed: with lr_scheduler_kwargs.min_lr");
    if (type != "cosine_with_min_lr" && min_lr != nullptr)
      refuse("lr_scheduler_kwargs.min_lr",
             "found with lr_scheduler_type \"" + type + "\", allowed: lr_scheduler_type cosine_with_min_lr");
    if (training::number_of(all_, "max_steps") == 0)  // no version makes none: one step, or num_train_epochs
      refuse("max_steps", "found 0, allowed: 1 or more, or -1, where num_train_epochs counts");
    const double warmup = training::number_of(all_, "warmup_steps");
    if (warmup > 1 && warmup != std::floor(warmup))
      refuse("warmup_steps", found(json_, "warmup_steps") + ", allowed: an integer, or a share of all steps below 1");
    if (training::number_of(all_, "dataloader_num_workers") == 0 &&
        find_value(all_, "dataloader_prefetch_factor") != nullptr)
      refuse("dataloader_prefetch_factor",
             "found without dataloader_num_workers, allowed: dataloader_num_workers above 0");
    const std::string evaluates = training::eval_strategy(json_), saves = training::text_of(all_, "save_strategy");
    if (saves == "best" && evaluates == "no")
      refuse("save_strategy", "found \"best\" without eval_strategy, allowed: eval_strategy steps or epoch");
    else if (saves == "best" && !is_true(json_, "load_best_model_at_end") &&
             training::text_of(json_, "metric_for_best_model").empty())
      refuse("save_strategy", "found \"best\", allowed: with metric_for_best_model, or load_best_model_at_end");
    if (!is_true(json_, "load_best_model_at_end") || saves == "best") return;
    if (evaluates != saves)
      return refuse("load_best_model_at_end", "found true with eval_strategy " + evaluates + " and save_strategy " +
                                                  saves + ", allowed: the same, or save_strategy best");
    const double every =
        training::number_of(all_, find_value(all_, "eval_steps") != nullptr ? "eval_steps" : "logging_steps");
    if (saves == "steps" && every > 0 && std::fmod(training::number_of(all_, "save_steps"), every) != 0)
      refuse("load_best_model_at_end", "found true with save_steps that are no multiple of eval_steps");
  }

  /// What fp8 train cannot do as it is asked.
  void train() {
    const bool cpu = training::on_cpu(json_);
    if (training::text_of(json_, "half_precision_backend") == "cpu_amp" && !cpu)
      refuse("half_precision_backend", "found \"cpu_amp\" with the model on hpu, allowed: hpu_amp, or use_cpu true");
    if (cpu && is_true(json_, "fp8")) refuse("fp8", "found true with the model on the CPU, allowed: false");
    if (cpu && is_true(json_, "bf16") && training::text_of(json_, "half_precision_backend") != "cpu_amp")
      refuse(
          "bf16",
          "found true with the model on the CPU, which hpu_amp leaves in f32, allowed: half_precision_backend cpu_amp");
    exclude("ddp_static_graph", "ddp_find_unused_parameters");
    exclude("use_cpu", "use_habana");
    exclude("no_cuda", "use_habana");
    if (training::text_of(all_, "save_strategy") == "best" || is_true(json_, "load_best_model_at_end")) best();
    if (training::number_of(all_, "max_grad_norm") > 1e30)
      refuse("max_grad_norm", found(json_, "max_grad_norm") + ", allowed: at most 1e30");
  }

  void notes() {
    for (const auto& name : training::reports_to(json_)) {
      if (name != "tensorboard" && name != "none" && name != "all")
        out_.notes.push_back(key_where(source_, "report_to") + ": found " + io::in_quotes(name) +
                             ", where nothing is sent; log.jsonl has a line for each step");
    }
  }

 private:
  void refuse(const std::string& key, const std::string& what) {
    out_.problems.push_back(key_where(source_, key) + ": " + what);
  }
  void exclude(const char* key, const char* other) {
    if (is_true(json_, key) && is_true(json_, other))
      refuse(key, std::string("found true beside ") + other + " true, allowed: one of the two");
  }
  void best() {
    const std::string metric = training::text_of(json_, "metric_for_best_model");
    if (!metric.empty() && metric != "loss" && metric != "eval_loss")
      refuse("metric_for_best_model", "found " + io::in_quotes(metric) + ", allowed: loss, eval_loss, null");
    if (is_true(json_, "greater_is_better"))
      refuse("greater_is_better", "found true, allowed: false, null; the lower loss is the better one");
  }

  const io::Json& json_;
  const io::Json all_;  ///< with defaults
  std::string source_;
  Findings& out_;
};

}  // namespace

Findings check_training_arguments(const io::Json& json, const std::string& source) {
  const std::string where = io::printable(source, 4096);
  Findings found;
  found.problems = key_problems(json, where, training_argument_keys());
  if (!json.is_object()) return found;
  Rules rules(json, where, found);
  rules.gaudi();
  rules.transformers();
  rules.train();
  rules.notes();
  return found;
}

}  // namespace fp8::configs
