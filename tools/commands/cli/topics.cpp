// SPDX-License-Identifier: Apache-2.0
// What `fp8 help TOPIC` explains beside the commands: each text is made of the table that the program itself reads.

#include "fp8/quant/forms/form_table.h"
#include "fp8/tools/commands/cli/command.h"

namespace fp8::commands {
namespace {

std::string exit_code_text(std::size_t width) {
  std::string text = "Exit codes:\n";
  for (const ExitCode& row : kExitCodes) text += definition(row.code, row.meaning, width);
  return text;
}

std::string environment_text(std::size_t width) {
  std::string text = "Environment variables that have an effect (fp8 doctor shows those that are set):\n";
  text = wrapped(text, width, 0);
  for (const io::Variable& row : io::variables()) {
    if (!row.in_effect) continue;
    text += definition(row.name, io::message("{}; {} (default {})", row.effect, row.allowed, row.fallback), width);
  }
  return text;
}

std::string readers_of(const quant::CheckpointForm& form) {
  std::vector<std::string> names;
  for (const auto& reader : enum_names<quant::CheckpointReader>)
    if (form.is_read_by(reader.value)) names.emplace_back(reader.name);
  return names.empty() ? "" : "; read by " + io::joined(names);
}

std::string format_text(std::size_t width) {
  std::string text = "Forms of fp8 checkpoints (quantize --format, convert --format):\n";
  for (const auto& form : quant::checkpoint_forms())
    text += definition(form->name(), form->help() + readers_of(*form), width);
  text += "\nTypes (convert --format, --dtype):\n";
  for (const auto& type : enum_names<kernels::FloatType>)
    text += definition(type.name, io::message("{} bits", 8 * kernels::size_of(type.value)), width);
  text += "\nNumbers of 8 bits, and the largest (--dialect):\n";
  for (const auto& dialect : enum_names<kernels::Dialect>)
    text += definition(
        dialect.name,
        io::message("E4M3 {}, E5M2 {}", static_cast<int>(kernels::fp8_max(kernels::Format::E4M3, dialect.value)),
                    static_cast<int>(kernels::fp8_max(kernels::Format::E5M2, dialect.value))),
        width);
  return text;
}

}  // namespace

const std::vector<Topic>& topics() {
  static const std::vector<Topic> table = {
      {"presets", "What quantize --preset is short for", preset_text},
      {"formats", "Forms of checkpoints, and formats of numbers", format_text},
      {"environment", "Variables that have an effect", environment_text},
      {"exit-codes", "What the program ends with", exit_code_text},
  };
  return table;
}

}  // namespace fp8::commands
