// SPDX-License-Identifier: Apache-2.0
// TorchScript models for measure and run: loading them, and turning a WAV or safetensors file into arguments of
// forward.
//
//   safetensors   tensors named as forward's arguments; dimension 0 counts samples, in order. A bool, int or float
//   argument takes a
//                 tensor of one element. Arguments that the file lacks take their defaults.
//   wav           chunks of --chunk frames (the remainder is dropped): the first Tensor argument is [samples, chunk],
//   an int argument
//                 called sr, sample_rate or sampling_rate is the file's rate, the others take their defaults.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <ATen/core/symbol.h>

#include "fp8/tools/commands/options/input_options.h"

namespace torch::jit {
struct CompilationUnit;
struct Module;
struct Source;
}  // namespace torch::jit

namespace fp8::commands {

/// The model in eval mode on the context's device and, floating point, in its dtype; its state as reset_states() (if it
/// has one) leaves it. Tracing writes the device of its day into the code, torch.device("cpu") or "cuda:0", and tensors
/// there: these constants become the context's device, and go to it. Throws io::Error for a missing or foreign file.
torch::jit::Module load_script(const std::filesystem::path& path, const Context& context);

/// model.forward(arguments). Throws io::Error naming `path`, with the last line of what TorchScript says, if that
/// fails.
c10::IValue call_forward(torch::jit::Module& model, std::vector<c10::IValue> arguments,
                         const std::filesystem::path& path);

/// True if a method of the model sets an attribute: what it computes depends on the calls before.
bool keeps_state(const torch::jit::Module& model);

/// The samples that `options` leave of a file.
class ScriptInputs {
 public:
  /// Throws io::Error naming file and argument: nothing for an argument, different numbers of samples, none left.
  ScriptInputs(const std::filesystem::path& data, const torch::jit::Module& model, const ScriptDataOptions& options);

  std::int64_t samples() const { return samples_; }
  std::int64_t batch() const { return batch_; }
  /// Arguments of forward for samples [first, first + count); floating point tensors in `dtype` if given.
  std::vector<c10::IValue> arguments(std::int64_t first, std::int64_t count, at::Device device,
                                     std::optional<at::ScalarType> dtype) const;

 private:
  struct Argument {
    std::string name;
    at::Tensor tensor;  ///< [samples, ...]; undefined: `value` for every call
    c10::IValue value;
  };
  void read_tensors(const std::filesystem::path& data, const torch::jit::Module& model);
  void read_sound(const std::filesystem::path& data, const torch::jit::Module& model, std::int64_t chunk);

  std::vector<Argument> arguments_;
  std::int64_t first_ = 0, samples_ = 0, batch_ = 1;
};

/// Every tensor in what forward returned, named "output", "output.0", "output.key", ... Throws io::Error for other
/// things than tensors, tuples, lists and dicts of strings; None is passed over.
std::vector<std::pair<std::string, at::Tensor>> output_tensors(const c10::IValue& value);

// Reads an untrusted TorchScript file: calls that are not allowed are refused before any of its code runs.
//
//   zip:  code/**.py                the code, in TorchScript
//         constants.pkl, data.pkl   pickles of the code's constants and of the model: objects of the code's classes
//         constants/*, data/*       the bytes of their tensors

/// The modules of a file, with none of its code run: what a class's own __setstate__ would make of a module is missing
/// in it, but for its modules by class and empty tensors. Throws io::Error.
torch::jit::Module read_script_modules(const std::filesystem::path& path);

/// The model, on the CPU. Throws io::Error.
torch::jit::Module read_script(const std::filesystem::path& path);

// The calls that the code of a TorchScript file may make: operators on tensors and values, none that reaches a file, a
// process, a network or a library. A TorchScript file is a program, and its author may be unknown.
//
// Compiling runs code: the default values of arguments and the constants of classes. So there are two looks:
//   check_source   at the text, before it is compiled: no default value and no constant is computed, and every
//                  `ops.NAMESPACE.NAME` and `__torch__.torch.classes.NAMESPACE.NAME` in it is one that may be called
//   check_code     at the compiled graphs, before the first of them runs: every operator in them, by whatever name the
//                  text called it

/// True for an operator of a namespace below that takes no name of a file, and for those of loaded extensions (--load).
/// True too for a name that LibTorch has no operator of: it can't be called.
bool may_call(const c10::Symbol& op);

/// False for classes in C++ ("__torch__.torch.classes.NAMESPACE.NAME") of other namespaces than scripts use.
bool may_use(const std::string& class_name);

/// Throws io::Error "FILE: FUNCTION calls OPERATOR, ..". As above.
void check_source(const std::shared_ptr<torch::jit::Source>& source, const std::string& file);
void check_code(const torch::jit::CompilationUnit& code, const std::string& file);

// Sound from a WAV file: RIFF, PCM of 8, 16, 24 or 32 bits or f32, mixed to one channel. No torch here.
//
//   "RIFF" u32 size "WAVE" | chunks: id[4] u32 size, data, one pad byte if size is odd
//   "fmt "  u16 format (1 PCM, 3 float, 0xFFFE: the first 16 bits of the GUID at byte 24)  u16 channels  u32 rate
//           u32 bytes per second  u16 bytes per frame  u16 bits
//   "data"  frames; every other chunk is passed over
//
// A sample of n bits is its integer / 2^(n-1), exactly (8 bits are unsigned: (u - 128) / 128); channels are averaged.

struct Wav {
  std::int64_t sample_rate = 0;
  std::int64_t channels = 0;  ///< of the file; `samples` is mono
  std::vector<float> samples;
};

/// Reads a file of at most 1 GiB. Throws io::Error naming the file, what was found and what is allowed.
Wav read_wav(const std::filesystem::path& path);

/// Reads a file's bytes; `name` stands in messages. Takes memory in proportion to `bytes`, whatever the header says.
Wav parse_wav(std::string_view bytes, const std::string& name);

}  // namespace fp8::commands
