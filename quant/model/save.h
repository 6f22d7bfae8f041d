// SPDX-License-Identifier: Apache-2.0
// A converted model in memory -> checkpoint folder.
#pragma once

#include "fp8/measure/model/module_tree.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

struct SaveOptions {
  /// The high precision checkpoint the model came from: its config.json is completed, its tokenizer files carried
  /// through. Empty: config.json holds the quantization alone.
  std::filesystem::path source{};
  bool overwrite = false;
  /// INC's form only: for quantize-dequantize mode, which is how INC runs on a CPU.
  bool use_qdq = false;
};

/// Writes codes, scales and the parameters that stayed in high precision (in the dtype they have). form: one of
/// form_names(). Throws std::invalid_argument for any other, c10::Error or io::Error: no converted module, modules of
/// different schemes, what the form can't hold (E5M2, convolutions, embeddings).
void save(const torch::nn::Module& model, const std::filesystem::path& out, const std::string& form,
          const SaveOptions& options = {});

/// Saves a model that is no torch::nn::Module. tensors: what the file holds, by name; modules: those with a
/// weight, whose tensors are "NAME.weight"; nodes: those without.
void save(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
          const std::vector<measure::WeightModule>& modules, const std::vector<measure::OpNode>& nodes,
          const std::filesystem::path& out, const std::string& form, const SaveOptions& options = {});

/// What save() writes as "quantization_config", and as fp8.json, of the same arguments. Throws as it does.
std::pair<io::Json, io::Json> quantization_config(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                                  const std::vector<measure::WeightModule>& modules,
                                                  const std::vector<measure::OpNode>& nodes, const std::string& form,
                                                  const std::filesystem::path& source = {});

}  // namespace fp8::quant
