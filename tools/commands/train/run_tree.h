// SPDX-License-Identifier: Apache-2.0
// The settings of a run from all their sources, with the place of each value:
//
//   default  <  PL_FIT__TRAINER__MAX_STEPS=5  <  --config a.yaml  <  --config b.yaml  <  --trainer.max_steps=5
//            <  options of fp8 train (train_options.h)
//
// Objects merge key by key; lists are replaced, and so is {class_path, init_args} by one of another class. No torch
// here.
#pragma once

#include "fp8/runtime/io/yaml/yaml.h"
#include "fp8/runtime/trainer/registry.h"

namespace fp8::commands {

/// The loops that a run file can be started with.
enum class Stage : std::uint8_t { fit, validate, test, predict };
FP8_ENUM_NAMES(Stage, {fit, "fit"}, {validate, "validate"}, {test, "test"}, {predict, "predict"});

class RunTree {
 public:
  /// A file's values. What stands under the name of a stage is that stage's alone.
  void merge(const io::LocatedJson& file, const std::string& stage);
  /// key: "trainer.max_steps", of model, data, optimizer and lr_scheduler also "model.hidden" for
  /// "model.init_args.hidden". Throws io::Error "SOURCE: ..." where something on the way is no object.
  void set(std::string_view key, io::Json value, const std::string& source);

  bool empty() const { return value_.empty(); }
  const io::Json& value() const { return value_; }
  /// Null: it is not there, or null.
  const io::Json* find(std::string_view key) const;
  bool contains(std::string_view key) const;  ///< null counts
  /// "run.yaml:3" of a key, or of what encloses it.
  std::string source(std::string_view key) const;
  /// "run.yaml:3: trainer.max_steps", for messages.
  std::string place(std::string_view key) const;
  /// {class_path, init_args}, or a class_path alone, that stands at `key`. Throws io::Error for anything else.
  trainer::Part part(const std::string& key) const;
  /// With the source of each value behind it.
  std::string text() const;

 private:
  void put(const std::string& pointer, io::Json& target, const io::Json& value,
           const std::map<std::string, std::string>& sources);
  void note(const std::string& pointer, const io::Json& value, const std::map<std::string, std::string>& sources);
  void forget(const std::string& pointer);

  io::Json value_ = io::Json::object();
  std::map<std::string, std::string> sources_;  ///< by JSON pointer, of what is no object
};

/// "--trainer.max_steps=5" of a command line.
bool is_dotted(std::string_view argument);

/// All of it but the options. environment: "NAME=VALUE", sorted. dotted: "--KEY=VALUE". Throws io::Error naming file
/// and line, variable or argument.
RunTree read_run(const std::vector<std::filesystem::path>& files, const std::string& stage,
                 const std::vector<std::string>& environment, const std::vector<std::string>& dotted);

}  // namespace fp8::commands
