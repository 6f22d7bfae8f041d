// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/quantize/preset.h"

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {

std::string preset_text(std::size_t width) {
  std::string text = "Presets of fp8 quantize MODEL -o OUT --preset NAME:\n";
  for (const auto& row : enum_names<Preset>)
    text += definition(row.name, io::message("{}: {}", row.options, row.what), width);
  return text + "\n" +
         wrapped(
             "A preset is its options: others go with it (--format, --scheme, --include), but for those that say "
             "otherwise.\n",
             width, 0);
}

}  // namespace fp8::commands
