// SPDX-License-Identifier: Apache-2.0
// What a run file names: callbacks, loggers, models and data by class_path, with arguments of their own. No torch
// here.
//
//   callbacks:                                               Part{"lightning.pytorch.callbacks.EarlyStopping",
//   - class_path: lightning.pytorch.callbacks.EarlyStopping       {"monitor": "val_loss", "patience": 3}}
//     init_args: {monitor: val_loss, patience: 3}
#pragma once
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

struct Part {
  std::string class_path;
  io::Json init_args = io::Json::object();
  std::string place = {};                          ///< of class_path, "run.yaml:12: trainer.callbacks.0"
  std::map<std::string, std::string> places = {};  ///< of arguments
};

/// Modules of Python that this program stands for.
inline constexpr std::string_view kModules[] = {
    "lightning", "pytorch_lightning", "lightning_habana", "habana_frameworks", "fp8", "torch"};

/// "EarlyStopping" of "lightning.pytorch.callbacks.EarlyStopping"; whole where it is nobody's that we stand for.
inline std::string own_name(const std::string& class_path) {
  const std::string_view first = std::string_view(class_path).substr(0, class_path.find('.'));
  const bool ours = first.size() < class_path.size() && std::ranges::find(kModules, first) != std::end(kModules);
  return ours ? class_path.substr(class_path.rfind('.') + 1) : class_path;
}

}  // namespace fp8::trainer
