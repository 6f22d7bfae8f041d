// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/form_table.h"

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"

namespace fp8::quant {
namespace {

using Forms = io::Registry<CheckpointForm>;

Forms& form_table() {
  static auto& table = *new Forms([] {
    std::vector<Forms::Named> rows;  // in the order of messages and help
    for (const auto form : {compressed_tensors_form, inc_form, inc_vllm_form, fp8_form, modelopt_form, quark_form})
      rows.push_back({form().name(), Forms::Pointer(std::shared_ptr<void>(), &form())});
    return rows;
  }());
  return table;
}

Forms::Entry entry_of(Forms::Pointer form) {
  if (form == nullptr) throw std::invalid_argument("FormRegistration: found no form");
  const std::string name = form->name(), quoted = io::in_quotes(name);
  if (!io::is_name(name, "-"))
    io::fail<std::invalid_argument>("form: found the name {}, allowed: lower case letters, digits and '-'", quoted);
  return {form_table(), name, std::move(form), io::message("form {}: the name is taken", quoted)};
}

}  // namespace

FormList checkpoint_forms() {
  FormList forms;
  for (auto& row : form_table().rows()) forms.push_back(std::move(row.row));
  return forms;
}

std::vector<std::string> form_names(const std::function<bool(const CheckpointForm&)>& wanted) {
  std::vector<std::string> names;
  for (const auto& form : checkpoint_forms())
    if (!wanted || wanted(*form)) names.emplace_back(form->name());
  return names;
}

const CheckpointForm& form_named(std::string_view name) {
  for (const auto& form : checkpoint_forms())
    if (form->name() == name) return *form;
  io::fail<std::invalid_argument>("form: found {}, allowed: {}", io::in_quotes(name), io::joined(form_names()));
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
  io::fail_at(where, "key 'quant_method': found {}, built are: {}and INC's form without that key{}",
              form_parts::in_message(found), methods, advice.empty() ? "" : "; " + advice);
}

FormRegistration::FormRegistration(std::unique_ptr<const CheckpointForm> form) : entry_(entry_of(std::move(form))) {}

}  // namespace fp8::quant
