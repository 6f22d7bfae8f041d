// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/optim/fused_adam.h"
#include "fp8/runtime/optim/fused_sgd.h"
#include "fp8/tools/commands/train/run_module.h"

namespace fp8::commands {
namespace {

using trainer::PartArguments;
using Optimizer = std::shared_ptr<torch::optim::Optimizer>;

std::tuple<double, double> betas(PartArguments& a) {
  const io::Json* value = a.find("betas");
  if (value == nullptr) return {0.9, 0.999};
  if (!value->is_array() || value->size() != 2 || !(*value)[0].is_number() || !(*value)[1].is_number())
    a.fail("betas", "two numbers");
  return {(*value)[0].get<double>(), (*value)[1].get<double>()};
}

/// Arguments without an effect on a result: they choose among torch's loops.
void accept_loops(PartArguments& a) {
  for (const char* name : {"foreach", "fused", "capturable"}) a.accept(name);
  a.only("maximize", false, "losses are made small");
  a.only("differentiable", false, "a step has no gradient");
}

Optimizer adam(PartArguments& a, std::vector<at::Tensor> p) {
  accept_loops(a);
  return std::make_shared<torch::optim::Adam>(std::move(p), torch::optim::AdamOptions(a.number("lr", 1e-3))
                                                                .betas(betas(a))
                                                                .eps(a.number("eps", 1e-8))
                                                                .weight_decay(a.number("weight_decay", 0))
                                                                .amsgrad(a.flag("amsgrad", false)));
}
Optimizer adamw(PartArguments& a, std::vector<at::Tensor> p) {
  accept_loops(a);
  return std::make_shared<torch::optim::AdamW>(std::move(p), torch::optim::AdamWOptions(a.number("lr", 1e-3))
                                                                 .betas(betas(a))
                                                                 .eps(a.number("eps", 1e-8))
                                                                 .weight_decay(a.number("weight_decay", 1e-2))
                                                                 .amsgrad(a.flag("amsgrad", false)));
}
Optimizer sgd(PartArguments& a, std::vector<at::Tensor> p) {
  accept_loops(a);
  return std::make_shared<torch::optim::SGD>(std::move(p), torch::optim::SGDOptions(a.number("lr", 1e-3))
                                                               .momentum(a.number("momentum", 0))
                                                               .dampening(a.number("dampening", 0))
                                                               .weight_decay(a.number("weight_decay", 0))
                                                               .nesterov(a.flag("nesterov", false)));
}
Optimizer fused_adamw(PartArguments& a, std::vector<at::Tensor> p) {
  namespace optim = runtime::optim;
  return std::make_shared<optim::FusedAdamW>(std::move(p), optim::FusedAdamWOptions(a.number("lr", 1e-3))
                                                               .betas(betas(a))
                                                               .eps(a.number("eps", 1e-6))
                                                               .weight_decay(a.number("weight_decay", 0))
                                                               .bias_correction(a.flag("bias_correction", true)));
}
Optimizer fused_sgd(PartArguments& a, std::vector<at::Tensor> p) {
  namespace optim = runtime::optim;
  return std::make_shared<optim::FusedSGD>(std::move(p), optim::FusedSGDOptions(a.number("lr", 1e-3))
                                                             .momentum(a.number("momentum", 0))
                                                             .dampening(a.number("dampening", 0))
                                                             .weight_decay(a.number("weight_decay", 0))
                                                             .nesterov(a.flag("nesterov", false)));
}

constexpr std::pair<const char*, Optimizer (*)(PartArguments&, std::vector<at::Tensor>)> kOptimizers[] = {
    {"Adam", adam}, {"AdamW", adamw}, {"SGD", sgd}, {"FusedAdamW", fused_adamw}, {"FusedSGD", fused_sgd}};

void schedule(trainer::Optimizers& optimizers, const trainer::Part& part, const trainer::PartContext& context) {
  PartArguments a(part, context);
  const std::string name = trainer::own_name(part.class_path);
  if (name == "StepLR") {
    const auto size = a.integer("step_size", 1, 1, 1 << 30);
    a.only("last_epoch", -1, "a resumed run goes on by itself");
    optimizers.schedulers.push_back({std::make_shared<torch::optim::StepLR>(
        *optimizers.optimizers[0], static_cast<unsigned>(size), a.number("gamma", 0.1))});
  } else if (name == "CosineWithWarmup") {
    const auto steps = a.integer("steps", 0, 1);
    if (steps == 0) throw io::Error(a.place("steps") + ": is required");
    optimizers.lr_factor = trainer::cosine_with_warmup(a.integer("warmup", 0, 0), steps, a.number("min_factor", 0));
  } else {
    throw io::Error(part.place + ": found " + io::in_quotes(part.class_path) + ", allowed: StepLR, CosineWithWarmup");
  }
  a.finish();
}

}  // namespace

std::optional<trainer::Optimizers> optimizers_of(const torch::nn::Module& network,
                                                 const std::optional<trainer::Part>& optimizer,
                                                 const std::optional<trainer::Part>& lr_scheduler,
                                                 const trainer::PartContext& context) {
  if (!optimizer && lr_scheduler)
    throw io::Error(lr_scheduler->place +
                    ": found without optimizer:, allowed: beside one, else the model's own has both");
  if (!optimizer) return std::nullopt;
  const std::string name = trainer::own_name(optimizer->class_path);
  std::vector<std::string> names;
  for (const auto& [known, make] : kOptimizers) {
    names.emplace_back(known);
    if (name != known) continue;
    PartArguments arguments(*optimizer, context);
    trainer::Optimizers made;
    std::vector<at::Tensor> trained;
    for (const auto& p : network.parameters())
      if (p.requires_grad()) trained.push_back(p);
    made.optimizers.push_back(make(arguments, std::move(trained)));
    arguments.finish();
    if (lr_scheduler) schedule(made, *lr_scheduler, context);
    return made;
  }
  throw io::Error(optimizer->place + ": found " + io::in_quotes(optimizer->class_path) +
                  ", allowed: " + io::joined(names) + "; " + io::the_nearest(name, names));
}

}  // namespace fp8::commands
