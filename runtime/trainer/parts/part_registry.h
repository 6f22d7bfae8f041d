// SPDX-License-Identifier: Apache-2.0
// The names that a run file may use, and the functions that make an object of each. Those built in:
//
//   callbacks   EarlyStopping ModelCheckpoint LearningRateMonitor DeviceStatsMonitor StochasticWeightAveraging ...
//   loggers     CSVLogger TensorBoardLogger JsonlLogger
//
// by their own name, or as Lightning's files have them (lightning.pytorch.callbacks.EarlyStopping,
// pytorch_lightning..., lightning_habana...). Models and data are your own, made known for as long as an object lives,
// in a program or in a library that `fp8 train --load` loads:
//
//   const trainer::PartRegistration<trainer::TrainingModule> net("LitClassifier", [](trainer::PartArguments& a) {
//     return std::make_shared<LitClassifier>(a.integer("hidden", 128, 1));
//   });
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/registry.h"
#include "fp8/runtime/trainer/batch_source.h"
#include "fp8/runtime/trainer/parts/part.h"
#include "fp8/runtime/trainer/trainer_callback.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

template <class T>
using MakePart = std::function<std::shared_ptr<T>(PartArguments&)>;

/// T: TrainerCallback, TrainingModule or DataModule. Any thread.
template <class T>
class PartRegistration {
 public:
  /// Throws std::invalid_argument for a name that is taken or empty.
  PartRegistration(std::string name, MakePart<T> make);
  ~PartRegistration();
  PartRegistration(const PartRegistration&) = delete;
  PartRegistration& operator=(const PartRegistration&) = delete;

 private:
  std::string name_;
  typename io::Registry<MakePart<T>>::Entry entry_;
};

/// The names there are, in alphabetical order.
template <class T>
std::vector<std::string> part_names();

/// Returns true if make_part() knows the name.
template <class T>
bool is_part(const std::string& class_path);

/// Throws io::Error naming the place, for a name that is not registered (with the nearest, and for a class of a Python
/// program the line that runs the file there), and for unknown arguments.
template <class T>
std::shared_ptr<T> make_part(const Part& part, const PartContext& context);

// The callbacks and loggers that run files know, with Lightning's arguments. Not for users.

std::map<std::string, MakePart<TrainerCallback>> callback_parts();

}  // namespace fp8::trainer
