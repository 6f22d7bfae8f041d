// SPDX-License-Identifier: Apache-2.0
// The commands' side of LibTorch: --device, --dtype, --threads and --seed as it takes them, its warnings and errors in
// the words of this program.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "fp8/tools/commands/cli/output.h"

namespace fp8::commands {

/// The device that --device names. Throws UsageError if this program has no hpu runtime.
c10::Device resolve_device(const Context& context);

/// Returns the dtype of --dtype; empty: the checkpoint's.
std::optional<c10::ScalarType> compute_dtype(const Context& context);

/// While it lives LibTorch's warnings are the context's. Sets LibTorch's number of threads and the seed of its
/// generator, and loads the libraries of --load and FP8_EXTENSIONS, for good.
class TorchScope final : public c10::WarningHandler {
 public:
  /// Throws c10::Error for a library that can't be loaded; with `problems` it is listed there.
  explicit TorchScope(const Context& context, std::vector<std::string>* problems = nullptr);
  void process(const c10::Warning& warning) override { context_.warn(warning.msg()); }

 private:
  const Context& context_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

/// Runs `body`; LibTorch's errors become io::Error.
template <class Body>
auto without_torch_errors(const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw io::Error(memory_message(error.what_without_backtrace()));
  }
}

/// Fills a Late function; errors that leave it are no longer LibTorch's. A global of the source that has the function.
class Provided {
 public:
  template <class R, class... A>
  Provided(Late<R(A...)>& late, R (*function)(A...)) {
    late.provide([function](A... arguments) {
      return without_torch_errors([&] { return function(std::forward<A>(arguments)...); });
    });
  }
  /// Provides a command's function, which runs in a TorchScope.
  template <class O>
  Provided(Late<void(const O&, Context&)>& late, void (*function)(const O&, Context&)) {
    late.provide([function](const O& options, Context& context) {
      without_torch_errors([&] {
        const TorchScope scope(context);
        function(options, context);
      });
    });
  }
};

}  // namespace fp8::commands
