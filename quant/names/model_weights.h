// SPDX-License-Identifier: Apache-2.0
// Which parameters of a model in memory are weights of products, told by the kinds, sizes and places of its modules,
// not by their names. No torch here.
//
// A module is described so, in the order of PyTorch's named_modules(); keys that are false or empty may be left out:
//
//   name, class              "model.layers.0.mlp", "LlamaMLP"
//   children                 the places of its own modules in this list
//   kind                     the type that it counts as ("Linear"); empty: its class is not known
//   weight, transposed       the attribute that is its weight, and whether that is [inputs, outputs]
//   holds                    what that attribute is: "parameter", "tensor" (something computes it); empty: neither
//   registered               the user said what its class is
//   is                       any of "list", "convolution", "recurrent", "parametrization"
//   adapter                  it is a base_layer and what LoRA adds to it
//   computes                 it has a forward() of its own
//   numbers                  its attributes that are integers from 2 on
//   is_transposed            what its attribute of this name says
//   parameters               [[name, sizes, true for floating point, a number for the tensor], ..] of its own
#pragma once
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

/// {"weights": [{"name", "key", "kind", "parameter", "transposed", "module": its place}, ..], "left": [{"name",
/// "reason", "parameter", "module"}, ..]}: the weights, and the matrices that stay in high precision, whatever a config
/// says. Of tied ones each module stands for itself. A stack of experts is a MoeMatmul where a router is beside it.
/// allowlist: a config's, {"types", "names"}, which alone puts tables of words into fp8; what shares its tensor with a
/// table or with a matrix that is left is left too. null: nothing is. Throws io::Error or Json::exception.
io::Json weights_of_model(const io::Json& modules, const io::Json& allowlist);

}  // namespace fp8::quant
