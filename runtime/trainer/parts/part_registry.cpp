// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/parts/part_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/trainer/parts/callback_parts.h"

namespace fp8::trainer {
namespace {

/// In messages, and in the list of what an extension adds.
struct Kind {
  const char *what, *listed;
};
template <class T>
constexpr Kind kKind = {"a part", "part"};
template <>
constexpr Kind kKind<TrainerCallback> = {"a callback or logger", "callback"};
template <>
constexpr Kind kKind<TrainingModule> = {"a model", "model"};
template <>
constexpr Kind kKind<DataModule> = {"a data module", "data"};

template <class T>
std::map<std::string, MakePart<T>> built_in() {
  if constexpr (std::is_same_v<T, TrainerCallback>) return callback_parts();
  return {};
}

template <class T>
struct Known {
  std::mutex mutex;
  std::map<std::string, MakePart<T>> parts = built_in<T>();
};

/// Never destroyed: registrations of libraries end when the process does.
template <class T>
Known<T>& known() {
  static auto* const all = new Known<T>;
  return *all;
}

template <class T>
MakePart<T> find_part(const std::string& class_path) {
  auto& all = known<T>();
  const std::lock_guard lock(all.mutex);
  for (const auto& name : {class_path, own_name(class_path)}) {
    const auto found = all.parts.find(name);
    if (found != all.parts.end()) return found->second;
  }
  return nullptr;
}

/// A module of Python stands in front of it: "my_project.models.Net".
bool is_python(const std::string& class_path) {
  return own_name(class_path) == class_path && class_path.find('.') != std::string::npos;
}

}  // namespace

template <class T>
PartRegistration<T>::PartRegistration(std::string name, MakePart<T> make) : name_(std::move(name)) {
  auto& all = known<T>();
  const std::lock_guard lock(all.mutex);
  if (name_.empty() || make == nullptr || !all.parts.emplace(name_, std::move(make)).second)
    throw std::invalid_argument("[PartRegistration] " + std::string(kKind<T>.what) + ": found the name " +
                                io::in_quotes(name_) + ", allowed: one that is not taken");
  runtime::note_part(kKind<T>.listed + (" " + name_), true);
}

template <class T>
PartRegistration<T>::~PartRegistration() {
  auto& all = known<T>();
  const std::lock_guard lock(all.mutex);
  all.parts.erase(name_);
  runtime::note_part(kKind<T>.listed + (" " + name_), false);
}

template <class T>
std::vector<std::string> part_names() {
  auto& all = known<T>();
  const std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, make] : all.parts) names.push_back(name);
  return names;
}

template <class T>
bool is_part(const std::string& class_path) {
  return find_part<T>(class_path) != nullptr;
}

template <class T>
std::shared_ptr<T> make_part(const Part& part, const PartContext& context) {
  const auto make = find_part<T>(part.class_path);
  if (make == nullptr) {
    const auto names = part_names<T>();
    const std::string found = part.place + ": found " + io::in_quotes(part.class_path) + ", ";
    if (is_python(part.class_path))
      throw io::Error(found +
                      "a class of Python: python your_training.py fit --config FILE runs it (torch there loads " +
                      "libfp8_runtime.so); allowed here: " + (names.empty() ? "none" : io::joined(names)));
    throw io::Error(found + "which is not " + kKind<T>.what + " that is known, allowed: " +
                    (names.empty() ? "what a library that --load loads makes known"
                                   : io::joined(names) + "; " + io::the_nearest(own_name(part.class_path), names)));
  }
  PartArguments arguments(part, context);
  try {
    auto made = make(arguments);
    arguments.finish();
    return made;
  } catch (const std::invalid_argument& error) {  // of a constructor
    throw io::Error(part.place + ": " + error.what());
  }
}

template class PartRegistration<TrainerCallback>;
template class PartRegistration<TrainingModule>;
template class PartRegistration<DataModule>;
template std::vector<std::string> part_names<TrainerCallback>();
template std::vector<std::string> part_names<TrainingModule>();
template std::vector<std::string> part_names<DataModule>();
template bool is_part<TrainerCallback>(const std::string&);
template bool is_part<TrainingModule>(const std::string&);
template bool is_part<DataModule>(const std::string&);
template std::shared_ptr<TrainerCallback> make_part(const Part&, const PartContext&);
template std::shared_ptr<TrainingModule> make_part(const Part&, const PartContext&);
template std::shared_ptr<DataModule> make_part(const Part&, const PartContext&);

}  // namespace fp8::trainer
