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

#include "fp8/runtime/io/base/registry.h"
#include "fp8/runtime/trainer/registry.h"
#include "fp8/runtime/trainer/training_module.h"

namespace fp8::trainer {

// A part's arguments, as its maker asks for them.

/// The values that every part may use.
struct PartContext {
  std::filesystem::path root = ".";  ///< trainer.default_root_dir: where a part writes by default
  c10::Device device = c10::kCPU;    ///< of the network
  std::uint64_t seed = 0;
  bool checks_only = false;  ///< a part that would write something makes nothing, once its arguments are read
};

/// The arguments of a part, each asked for by name; null counts as not given. All throw io::Error "PLACE: ARGUMENT:
/// found ..., allowed: ...".
class PartArguments {
 public:
  PartArguments(const Part& part, PartContext context) : part_(part), context_(std::move(context)) {}

  const PartContext& context() const { return context_; }
  /// Null: not given.
  const io::Json* find(const std::string& name);
  std::int64_t integer(const std::string& name, std::int64_t fallback, std::int64_t low = INT64_MIN,
                       std::int64_t high = INT64_MAX);
  double number(const std::string& name, double fallback);
  std::optional<double> number(const std::string& name);
  bool flag(const std::string& name, bool fallback);
  std::string text(const std::string& name, const std::string& fallback);
  std::optional<std::string> text(const std::string& name);
  /// The name of a file or folder that is made below another: not a path, which may lead anywhere.
  std::optional<std::string> file_name(const std::string& name);
  std::string choice(const std::string& name, const std::vector<std::string>& allowed, const std::string& fallback);

  /// An argument that changes nothing here, whatever it is.
  void accept(const std::string& name) { known_.insert(name); }
  /// An argument that may only be `only` (or null) here. why: a sentence.
  void only(const std::string& name, const io::Json& only, const std::string& why);

  /// An argument that the part did not read is an error that names the nearest.
  void finish() const;
  [[noreturn]] void fail(const std::string& name, const std::string& allowed) const;
  std::string place(const std::string& name) const;

 private:
  const Part& part_;
  PartContext context_;
  std::set<std::string> known_;
};

template <class T>
using MakePart = std::function<std::shared_ptr<T>(PartArguments&)>;

/// T: TrainerCallback, TrainingModule or DataModule. Any thread.
template <class T>
class PartRegistration {
 public:
  /// Throws std::invalid_argument for a name that is taken or empty.
  PartRegistration(std::string name, MakePart<T> make);
  ~PartRegistration();
  PartRegistration& operator=(PartRegistration&&) = delete;

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

}  // namespace fp8::trainer
