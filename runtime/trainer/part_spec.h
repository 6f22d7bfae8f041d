// SPDX-License-Identifier: Apache-2.0
// What a run file names: callbacks, loggers, models and data by class_path, with arguments of their own. No torch
// here.
//
//   callbacks:                                               Part{"lightning.pytorch.callbacks.EarlyStopping",
//   - class_path: lightning.pytorch.callbacks.EarlyStopping       {"monitor": "val_loss", "patience": 3}}
//     init_args: {monitor: val_loss, patience: 3}
#pragma once
#include <map>
#include <string>

#include "fp8/runtime/io/json/json.h"

namespace fp8::trainer {

struct Part {
  std::string class_path;
  io::Json init_args = io::Json::object();
  std::string place = {};                          ///< of class_path, "run.yaml:12: trainer.callbacks.0"
  std::map<std::string, std::string> places = {};  ///< of arguments
};

}  // namespace fp8::trainer
