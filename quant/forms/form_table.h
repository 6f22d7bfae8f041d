// SPDX-License-Identifier: Apache-2.0
// The forms in force: those built in, one file each, and one's own. No torch here.
#pragma once

#include "fp8/quant/forms/form.h"

namespace fp8::quant {

using FormList = std::vector<std::shared_ptr<const CheckpointForm>>;

/// All of them in the order of messages and help, registered ones last.
FormList checkpoint_forms();

/// The names of those of which `wanted` is true, of all without it: form_names(&CheckpointForm::holds_e5m2).
std::vector<std::string> form_names(const std::function<bool(const CheckpointForm&)>& wanted = {});

/// Throws std::invalid_argument "form: found 'gguf', allowed: compressed-tensors, inc, ...".
const CheckpointForm& form_named(std::string_view name);

/// The form of a quantization_config: the first that recognizes it. Throws io::Error "WHERE: key 'quant_method': found
/// ..., built are ...".
const CheckpointForm& form_of_config(const io::Json& quantization_config, const std::string& where);

/// A form of one's own, chosen by its name and recognized by its config while this object lives:
///
///   quant::FormRegistration mine(std::make_unique<MyForm>());
///   quant::save(model, "out", "my-form");
///
/// Any thread. No reference to the form may be in use when the object ends.
class FormRegistration {
 public:
  /// Throws std::invalid_argument for no form, a name of others than lower case letters, digits and '-', and for one
  /// that is taken.
  explicit FormRegistration(std::unique_ptr<const CheckpointForm> form);

 private:
  io::Registry<CheckpointForm>::Entry entry_;
};

// Those built in

/// transformers, vLLM.
const CheckpointForm& compressed_tensors_form();
/// Intel Neural Compressor's own ("huggingface"), which its load() reads.
const CheckpointForm& inc_form();
/// The form that it calls "vllm": compressed-tensors with one static scale per tensor.
const CheckpointForm& inc_vllm_form();
/// Fine-grained (DeepSeek) with block scales, vLLM's plain fp8 with one scale per tensor.
const CheckpointForm& fp8_form();
/// NVIDIA ModelOpt's.
const CheckpointForm& modelopt_form();
/// AMD Quark's, beside experts in MXFP4.
const CheckpointForm& quark_form();

}  // namespace fp8::quant
