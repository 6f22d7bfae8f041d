// SPDX-License-Identifier: Apache-2.0
// The base of modules that hold fp8 states of their own: save(), load() and clone() take the states along, and a
// clone's weights held in fp8 have scales of their own.
#pragma once
#include <torch/nn/cloneable.h>

#include "fp8/runtime/intercept/weight_copy.h"
#include "fp8/transformer_engine/modules/fp8_module.h"

namespace fp8::te {

template <class Derived>
class Fp8Cloneable : public torch::nn::Cloneable<Derived>, public Fp8Module {
 public:
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = torch::nn::Cloneable<Derived>::clone(device);
    clone_fp8(*copy);
    return copy;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    save_fp8(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    {
      const runtime::ScalesComeLater codes_alone;
      torch::nn::Module::load(archive);
    }
    load_fp8(archive);
  }
};

}  // namespace fp8::te
