// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/parts.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "fp8/runtime/custom/extension.h"
#include "fp8/runtime/io/base/fail.h"

namespace fp8::trainer {

const io::Json* PartArguments::find(const std::string& name) {
  known_.insert(name);
  const auto found = part_.init_args.find(name);
  return found == part_.init_args.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t PartArguments::integer(const std::string& name, std::int64_t fallback, std::int64_t low,
                                    std::int64_t high) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  const bool fits =
      value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
  if (!fits || value->get<std::int64_t>() < low || value->get<std::int64_t>() > high)
    fail(name, low == INT64_MIN    ? "an integer"
               : high == INT64_MAX ? "an integer, at least " + std::to_string(low)
                                   : "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  return value->get<std::int64_t>();
}

std::optional<double> PartArguments::number(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) fail(name, "a number");
  return value->get<double>();
}

double PartArguments::number(const std::string& name, double fallback) { return number(name).value_or(fallback); }

bool PartArguments::flag(const std::string& name, bool fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(name, "true, false");
  return value->get<bool>();
}

std::optional<std::string> PartArguments::text(const std::string& name) {
  const io::Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(name, "a text");
  return value->get<std::string>();
}

std::string PartArguments::text(const std::string& name, const std::string& fallback) {
  return text(name).value_or(fallback);
}

std::optional<std::string> PartArguments::file_name(const std::string& name) {
  auto value = text(name);
  if (value && !io::is_file_name(*value)) fail(name, "a name without '/' that is not '..'");
  return value;
}

std::string PartArguments::choice(const std::string& name, const std::vector<std::string>& allowed,
                                  const std::string& fallback) {
  const io::Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string() || std::ranges::find(allowed, value->get<std::string>()) == allowed.end())
    fail(name, io::joined(allowed));
  return value->get<std::string>();
}

void PartArguments::only(const std::string& name, const io::Json& only, const std::string& why) {
  const io::Json* value = find(name);
  if (value != nullptr && *value != only) fail(name, (only.is_null() ? "nothing" : only.dump()) + ": " + why);
}

void PartArguments::finish() const {
  for (const auto& [name, value] : part_.init_args.items())
    if (!known_.contains(name)) {
      const std::vector<std::string> names(known_.begin(), known_.end());
      io::fail<io::Error>("{}: found an argument that {} does not have, allowed: {}{}", place(name), part_.class_path,
                          names.empty() ? "none" : io::joined(names),
                          names.empty() ? "" : "; " + io::the_nearest(name, names));
    }
}

void PartArguments::fail(const std::string& name, const std::string& allowed) const {
  io::fail<io::Error>("{}: found {}, allowed: {}", place(name), io::printable(part_.init_args.at(name).dump()),
                      allowed);
}

std::string PartArguments::place(const std::string& name) const {
  const auto found = part_.places.find(name);
  return (found != part_.places.end() ? found->second
          : part_.place.empty()       ? part_.class_path
                                      : part_.place) +
         (found != part_.places.end() ? "" : ": " + name);
}

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

/// Never destroyed: registrations of libraries end when the process does.
template <class T>
io::Registry<MakePart<T>>& part_table() {
  static auto& table = *[] {
    if constexpr (std::is_same_v<T, TrainerCallback>) return new io::Registry<MakePart<T>>(callback_parts());
    return new io::Registry<MakePart<T>>;
  }();
  return table;
}

template <class T>
MakePart<T> find_part(const std::string& class_path) {
  for (const auto& name : {class_path, own_name(class_path)})
    if (const auto found = part_table<T>().find(name)) return *found;
  return nullptr;
}

/// A module of Python stands in front of it: "my_project.models.Net".
bool is_python(const std::string& class_path) {
  return own_name(class_path) == class_path && class_path.find('.') != std::string::npos;
}

template <class T>
typename io::Registry<MakePart<T>>::Entry entry_of(const std::string& name, MakePart<T> make) {
  const std::string taken = io::message("[PartRegistration] {}: found the name {}, allowed: one that is not taken",
                                        kKind<T>.what, io::in_quotes(name));
  if (name.empty() || make == nullptr) throw std::invalid_argument(taken);
  return {part_table<T>(), name, std::make_shared<const MakePart<T>>(std::move(make)), taken};
}

}  // namespace

template <class T>
PartRegistration<T>::PartRegistration(std::string name, MakePart<T> make)
    : name_(std::move(name)), entry_(entry_of<T>(name_, std::move(make))) {
  runtime::note_part(kKind<T>.listed + (" " + name_), true);
}

template <class T>
PartRegistration<T>::~PartRegistration() {
  runtime::note_part(kKind<T>.listed + (" " + name_), false);
}

template <class T>
std::vector<std::string> part_names() {
  auto names = part_table<T>().names();
  std::ranges::sort(names);
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
      io::fail<io::Error>(
          "{}a class of Python: python your_training.py fit --config FILE runs it (torch there loads "
          "libfp8_runtime.so); allowed here: {}",
          found, names.empty() ? "none" : io::joined(names));
    io::fail<io::Error>("{}which is not {} that is known, allowed: {}", found, kKind<T>.what,
                        names.empty() ? "what a library that --load loads makes known"
                                      : io::joined(names) + "; " + io::the_nearest(own_name(part.class_path), names));
  }
  PartArguments arguments(part, context);
  try {
    auto made = make(arguments);
    arguments.finish();
    return made;
  } catch (const std::invalid_argument& error) {  // of a constructor
    io::fail<io::Error>("{}: {}", part.place, io::raw_message(error));
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
