// SPDX-License-Identifier: Apache-2.0
// Reading a TorchScript file of a stranger: what it may not call is refused (script_rules.h) before any of it runs.
//
//   zip:  code/**.py                the code, in TorchScript
//         constants.pkl, data.pkl   pickles of the code's constants and of the model: objects of the code's classes
//         constants/*, data/*       the bytes of their tensors
#pragma once
#include <filesystem>

namespace torch::jit {
struct Module;
}

namespace fp8::commands {

/// The modules of a file, with none of its code run: what a class's own __setstate__ would make of a module is missing
/// in it, but for its modules by class and empty tensors. Throws io::Error.
torch::jit::Module read_script_modules(const std::filesystem::path& path);

/// The model, on the CPU. Throws io::Error.
torch::jit::Module read_script(const std::filesystem::path& path);

}  // namespace fp8::commands
