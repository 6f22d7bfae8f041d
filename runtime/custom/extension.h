// SPDX-License-Identifier: Apache-2.0
// A shared library of operators (CustomOp), of kernels for the vendor's descriptors (host_call.h) and of models,
// data and callbacks for run files (trainer/parts.h), built by the package's fp8_add_extension(). What it has
// is registered when it is loaded and taken back when it is unloaded:
//
//   FP8_EXTENSION(m) { m.add(CustomOp("my::twice")...); }
//
// Loaded by `fp8 ... --load lib.so`, FP8_EXTENSIONS=a.so:b.so, load_extension(), torch.ops.load_library(). An error in
// it registers none of its operators; load_extension() throws it, of other loaders it is a line on stderr, since no
// exception may leave a library's start.
#pragma once
#include <filesystem>

#include "fp8/runtime/custom/custom_op.h"

namespace fp8::runtime {

/// The additions of an extension.
class ExtensionOps {
 public:
  void add(const CustomOp& op) { ops_.push_back(op.add()); }

 private:
  friend class Extension;
  std::vector<CustomOpHandle> ops_;
};

/// For the macro: its operators are there while it lives.
class Extension {
 public:
  explicit Extension(void (*define)(ExtensionOps&));
  Extension(const Extension&) = delete;
  Extension& operator=(const Extension&) = delete;
  /// Removes its additions before it goes itself.
  void take_back() { ops_.ops_.clear(); }

 private:
  ExtensionOps ops_;
};

struct LoadedExtension {
  std::string file;                     ///< absolute
  std::vector<std::string> ops;         ///< that came with it: "my::gelu_mul"
  std::vector<std::string> parts = {};  ///< that came with it: "model LitClassifier", "data ...", "callback ..."
};

/// For what registers models, data and callbacks by name: "model LitClassifier" is there from now on, or is gone.
void note_part(const std::string& part, bool registered);

/// Loads a library, once. Throws c10::Error, one line naming the file, where it can't be loaded or its FP8_EXTENSION
/// failed; a library that failed does so each time, since it may stay in the process and not start again.
LoadedExtension load_extension(const std::filesystem::path& file);
/// The files of FP8_EXTENSIONS, in order.
std::vector<std::filesystem::path> extensions_of_environment();
/// Those that load_extension() has loaded.
std::vector<LoadedExtension> extensions();

}  // namespace fp8::runtime

#define FP8_EXTENSION_AS(m, uid)                                                                             \
  static void C10_CONCATENATE(fp8_extension_, uid)(::fp8::runtime::ExtensionOps & m);                        \
  static ::fp8::runtime::Extension C10_CONCATENATE(fp8_loaded_, uid){&C10_CONCATENATE(fp8_extension_, uid)}; \
  static void C10_CONCATENATE(fp8_extension_, uid)([[maybe_unused]] ::fp8::runtime::ExtensionOps & m)
#define FP8_EXTENSION(m) FP8_EXTENSION_AS(m, C10_UID)

// The shared library that an address lies in.

namespace fp8::runtime {

/// Its file; "the program" where it is none.
std::string library_of(const void* address);

/// It stays in memory for the life of the process, also when it is closed.
void keep_library(const void* address);

}  // namespace fp8::runtime
