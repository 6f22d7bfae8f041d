// SPDX-License-Identifier: Apache-2.0
// The base of modules that hold fp8 states of their own: clone() is torch's, save() and load() take the states along.
#pragma once
#include <torch/nn/cloneable.h>

#include "fp8/transformer_engine/fp8_module.h"

namespace fp8::te {

template <class Derived>
class Fp8Cloneable : public torch::nn::Cloneable<Derived>, public Fp8Module {
 public:
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    save_fp8(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::nn::Module::load(archive);
    load_fp8(archive);
  }
};

}  // namespace fp8::te
