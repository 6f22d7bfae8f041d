// SPDX-License-Identifier: Apache-2.0
// The forms, one file each. Everybody else asks form_of() (form.h). No torch here.
#pragma once
#include "fp8/quant/forms/form.h"

namespace fp8::quant {

const CheckpointForm& compressed_tensors_form();
/// compressed_tensors of one static scale per tensor: what INC calls its "vllm" form.
const CheckpointForm& inc_vllm_form();
const CheckpointForm& fp8_form();
const CheckpointForm& modelopt_form();
const CheckpointForm& inc_form();
const CheckpointForm& quark_form();

}  // namespace fp8::quant
