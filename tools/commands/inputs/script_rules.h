// SPDX-License-Identifier: Apache-2.0
// What the code of a TorchScript file may call: operators on tensors and values, none that reaches a file, a process, a
// network or a library. A TorchScript file is a program of whoever wrote it.
//
// Compiling runs code: the default values of arguments and the constants of classes. So there are two looks:
//   check_source   at the text, before it is compiled: no default value and no constant is computed, and every
//                  `ops.NAMESPACE.NAME` and `__torch__.torch.classes.NAMESPACE.NAME` in it is one that may be called
//   check_code     at the compiled graphs, before the first of them runs: every operator in them, by whatever name the
//                  text called it
#pragma once
#include <ATen/core/jit_type_base.h>
#include <ATen/core/symbol.h>

#include <memory>
#include <string>

namespace torch::jit {
struct CompilationUnit;
struct Source;
}  // namespace torch::jit

namespace fp8::commands {

/// True for an operator of a namespace below that takes no name of a file, and for those of loaded extensions (--load).
/// True too for a name that LibTorch has no operator of: it can't be called.
bool may_call(const c10::Symbol& op);

/// False for classes in C++ ("__torch__.torch.classes.NAMESPACE.NAME") of other namespaces than scripts use.
bool may_use(const std::string& class_name);

/// Throws io::Error "FILE: FUNCTION calls OPERATOR, ..". As above.
void check_source(const std::shared_ptr<torch::jit::Source>& source, const std::string& file);
void check_code(const torch::jit::CompilationUnit& code, const std::string& file);

}  // namespace fp8::commands
