// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/form_table.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::quant {
namespace {

using BuiltIn = const CheckpointForm& (*)();

/// In the order of messages and help.
constexpr BuiltIn kBuiltIn[] = {compressed_tensors_form, inc_form, inc_vllm_form, fp8_form, modelopt_form, quark_form};

/// The forms that FormRegistrations added.
struct RegisteredForms {
  std::mutex mutex;
  FormList forms;
};

RegisteredForms& registered_forms() {
  static RegisteredForms table;
  return table;
}

}  // namespace

FormList checkpoint_forms() {
  FormList forms;
  for (const BuiltIn form : kBuiltIn) forms.emplace_back(std::shared_ptr<void>(), &form());
  const std::lock_guard lock(registered_forms().mutex);
  const auto& own = registered_forms().forms;
  forms.insert(forms.end(), own.begin(), own.end());
  return forms;
}

std::vector<std::string> form_names(const std::function<bool(const CheckpointForm&)>& wanted) {
  std::vector<std::string> names;
  for (const auto& form : checkpoint_forms()) {
    if (!wanted || wanted(*form)) names.emplace_back(form->name());
  }
  return names;
}

const CheckpointForm& form_named(std::string_view name) {
  for (const auto& form : checkpoint_forms()) {
    if (form->name() == name) return *form;
  }
  throw std::invalid_argument("form: found " + io::in_quotes(name) + ", allowed: " + io::joined(form_names()));
}

const CheckpointForm& form_of_config(const io::Json& config, const std::string& where) {
  std::string methods;  // each once: inc-vllm says compressed-tensors
  for (const auto& form : checkpoint_forms()) {
    if (form->recognizes(config)) return *form;
    const std::string method = form->quant_method(), quoted = "\"" + method + "\", ";
    if (!method.empty() && methods.find(quoted) == std::string::npos) methods += quoted;
  }
  const io::Json found = config.is_object() ? config.value("quant_method", io::Json()) : config;
  const std::string advice = advice_on_method(config);
  io::fail_at(where, "key 'quant_method': found " + form_parts::in_message(found) + ", built are: " + methods +
                         "and INC's form without that key" + (advice.empty() ? "" : "; " + advice));
}

FormRegistration::FormRegistration(std::unique_ptr<const CheckpointForm> form) : form_(std::move(form)) {
  if (form_ == nullptr) throw std::invalid_argument("FormRegistration: found no form");
  const std::string name = form_->name();
  if (!io::is_name(name, "-")) {
    throw std::invalid_argument("form: found the name " + io::in_quotes(name) +
                                ", allowed: lower case letters, digits and '-'");
  }
  auto& [mutex, own] = registered_forms();
  const std::lock_guard lock(mutex);
  const auto is_taken = [&](const CheckpointForm& other) { return other.name() == name; };
  if (std::any_of(std::begin(kBuiltIn), std::end(kBuiltIn), [&](BuiltIn other) { return is_taken(other()); }) ||
      std::any_of(own.begin(), own.end(), [&](const auto& other) { return is_taken(*other); })) {
    throw std::invalid_argument("form " + io::in_quotes(name) + ": the name is taken");
  }
  own.push_back(form_);
}

FormRegistration::~FormRegistration() {
  const std::lock_guard lock(registered_forms().mutex);
  std::erase(registered_forms().forms, form_);
}

}  // namespace fp8::quant
