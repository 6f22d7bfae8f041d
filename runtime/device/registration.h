// SPDX-License-Identifier: Apache-2.0
// Registrations of our libraries with LibTorch when they are loaded: FP8_LIBRARY and its kin instead of TORCH_LIBRARY,
// as
//
//   at exit     nothing is taken back: a thread that outlives main() finds its operators, as it finds the CPU's
//   copies      a second copy of the library in the process registers nothing and says so on stderr, where upstream's
//               macros end the process in a static initialiser
//
//   FP8_LIBRARY_FRAGMENT(fp8, m) { m.def("twice(Tensor x) -> Tensor"); }
//   FP8_LIBRARY_IMPL(fp8, HPU, m) { m.impl("twice", &twice); }
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>

namespace fp8::runtime {

/// True where the library that `inside` lies in (the address of any function of it) may register. False for a second
/// copy, in a process where another file's library of that name, or another backend of the hpu device, was loaded
/// before: the first such answer is a line on stderr, "fp8: error: ...".
bool may_register(const void* inside);

/// Throws c10::Error where this copy of the runtime registered nothing: its allocator, books and device are not in use.
void require_registered();

/// For the macros: runs `define` on a torch::Library that stays for the life of the process, and where that defines
/// operators what after_definitions() was given. Returns may_register().
bool add_library(torch::Library::Kind kind, const char* name, std::optional<c10::DispatchKey> key, const char* file,
                 std::uint32_t line, void (*define)(torch::Library&));

/// Defines the operators of a text of schemas, each with ";" behind it; spaces and line ends count as one space.
void define(torch::Library& library, std::string_view schemas);

/// Runs `act` now, and after each definition of operators from now on. One for all: runtime/autocast has it.
void after_definitions(void (*act)());

/// A boxed kernel of an operator, for the life of the process: what torch::Library::impl does for a name that has been
/// read already, which is a third of its instructions. For two thousand kernels at a time, where may_register().
void add_kernel(const c10::OperatorName& op, c10::DispatchKey key, c10::BoxedKernel kernel);

}  // namespace fp8::runtime

#define FP8_ADD_LIBRARY(kind, name, key, m, uid)                                                     \
  static void C10_CONCATENATE(fp8_define_, uid)(torch::Library&);                                    \
  [[maybe_unused]] static const bool C10_CONCATENATE(fp8_added_, uid) = ::fp8::runtime::add_library( \
      torch::Library::kind, #name, key, __FILE__, __LINE__, &C10_CONCATENATE(fp8_define_, uid));     \
  static void C10_CONCATENATE(fp8_define_, uid)([[maybe_unused]] torch::Library & m)

/// The namespace's one definition, more operators of it, kernels of a dispatch key.
#define FP8_LIBRARY(name, m) FP8_ADD_LIBRARY(DEF, name, std::nullopt, m, C10_UID)
#define FP8_LIBRARY_FRAGMENT(name, m) FP8_ADD_LIBRARY(FRAGMENT, name, std::nullopt, m, C10_UID)
#define FP8_LIBRARY_IMPL(name, key, m) FP8_ADD_LIBRARY(IMPL, name, c10::DispatchKey::key, m, C10_UID)

// Random numbers on hpu are the CPU's: the default generator wraps the CPU's default one, so torch::manual_seed (which
// knows nothing of hpu) seeds both, and randn or dropout give the same numbers on either device.

namespace fp8::runtime {

const at::Generator& default_generator(c10::DeviceIndex device = -1);
/// A new one with its own state, default seed.
at::Generator make_generator(c10::DeviceIndex device = -1);
/// The CPU generator below an hpu one; others are returned as they are.
at::Generator cpu_generator(const at::Generator& generator);

// Pinned host memory: the CPU's, remembered, so that is_pinned() tells what pin_memory() did.

c10::Allocator* pinned_allocator();
/// True if `pointer` lies in memory that pinned_allocator() gave and that was not freed.
bool is_pinned(const void* pointer);

// ATen's questions to the accelerator of the process: is it there, how many, its generator. at::getAccelerator() asks
// the hooks of each kind whether LibTorch was built for it, and with two of them each backward ends in an error, a CPU
// tensor's too.

/// Makes room for hpu where LibTorch was built for CUDA and this process sees no GPU: from then on it is as one that
/// was built for the CPU. False where CUDA has to stay: it sees a GPU, or its hooks are not as those of LibTorch 2.13.
bool make_room();

}  // namespace fp8::runtime
