// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/form_table.h"

#include <stdexcept>

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::quant {
namespace {

using BuiltIn = const CheckpointForm& (*)();

/// In the order of messages and help.
constexpr BuiltIn kBuiltIn[] = {compressed_tensors_form, inc_form, inc_vllm_form, fp8_form, modelopt_form, quark_form};

}  // namespace

std::vector<const CheckpointForm*> checkpoint_forms() {
  std::vector<const CheckpointForm*> forms;
  for (const BuiltIn form : kBuiltIn) forms.push_back(&form());
  return forms;
}

std::vector<std::string> form_names(const std::function<bool(const CheckpointForm&)>& wanted) {
  std::vector<std::string> names;
  for (const auto* form : checkpoint_forms()) {
    if (!wanted || wanted(*form)) names.emplace_back(form->name());
  }
  return names;
}

std::string list_of_forms(const std::function<bool(const CheckpointForm&)>& wanted) {
  std::string list;
  for (const auto& name : form_names(wanted)) list += (list.empty() ? "" : ", ") + name;
  return list;
}

const CheckpointForm& form_named(std::string_view name) {
  for (const auto* form : checkpoint_forms()) {
    if (form->name() == name) return *form;
  }
  throw std::invalid_argument("form: found " + io::in_quotes(name) + ", allowed: " + list_of_forms());
}

const CheckpointForm& form_of_config(const io::Json& config, const std::string& where) {
  std::string methods;  // each once: inc-vllm says compressed-tensors
  for (const auto* form : checkpoint_forms()) {
    if (form->recognizes(config)) return *form;
    const std::string method = form->quant_method(), quoted = "\"" + method + "\", ";
    if (!method.empty() && methods.find(quoted) == std::string::npos) methods += quoted;
  }
  const io::Json found = config.is_object() ? config.value("quant_method", io::Json()) : config;
  const std::string advice = advice_on_method(config);
  form_parts::fail(where, "key 'quant_method': found " + form_parts::shown(found) + ", built are: " + methods +
                              "and INC's form without that key" + (advice.empty() ? "" : "; " + advice));
}

}  // namespace fp8::quant
