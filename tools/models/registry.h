// SPDX-License-Identifier: Apache-2.0
// The families of models that load: a row for each model_type of config.json. Commands, the loader and layer streaming
// take any that is here.
//
// Your own family, in force while the registration lives:
//
//   fp8::models::ModelRegistration mine({.model_type = "mine", .read_config = read_mine, .make = make_mine});
#pragma once

#include "fp8/runtime/io/base/registry.h"
#include "fp8/tools/models/base/causal_lm.h"

namespace fp8::models {

/// The rows in force: those built in, then registered ones.
std::vector<ModelFamily> model_families();

/// A config.json that was read: its family and its values.
struct FamilyConfig {
  ModelFamily family;
  std::unique_ptr<ModelConfig> values;
  std::shared_ptr<CausalLM> make() const { return family.make(*values); }
};

/// Reads `json`, the content of a config.json; `name` stands in messages: "[models] DIR/config.json: key
/// 'hidden_act': found \"gelu\", allowed: silu". Throws io::Error, also for a model_type without a row.
FamilyConfig parse_config(const io::Json& json, const std::string& name);

/// Reads DIR/config.json; EOS ids also from DIR/generation_config.json, which wins as it does in transformers.
/// json: receives the whole file. Throws io::Error.
FamilyConfig read_config(const std::filesystem::path& folder, io::Json* json = nullptr);

/// Adds a row while it lives; any thread. Throws std::invalid_argument for a model_type that is taken, and for a row
/// with an empty cell.
class ModelRegistration {
 public:
  explicit ModelRegistration(ModelFamily family);

 private:
  io::Registry<ModelFamily>::Entry entry_;
};

}  // namespace fp8::models
