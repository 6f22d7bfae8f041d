// SPDX-License-Identifier: Apache-2.0
// Instead of late.cpp in the static program (FP8_STATIC), which can load no library: what would need one is wrong usage
// of this program.
#include "fp8/tools/commands/cli/context.h"
#include "fp8/version.h"

namespace fp8::commands {

void load_program() { fail_not_provided(); }
void load_training() { fail_not_provided(); }
std::vector<std::filesystem::path> library_folders() { return {}; }

void fail_not_provided() {
  throw UsageError(
      "LibTorch is needed here, and this program has none: run the full program, fp8, with the same arguments "
      "(fp8-" FP8_VERSION "-linux-x86_64.tar.zst)");
}

}  // namespace fp8::commands
