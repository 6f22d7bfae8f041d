// SPDX-License-Identifier: Apache-2.0
// The files that a command needs, as the options, the environment and the user's own files name them.
#pragma once
#include <memory>

#include "fp8/runtime/io/atomic/output_place.h"
#include "fp8/tools/commands/cli/options.h"

namespace fp8::commands {

/// Makes what outputs need at their places, and has the sandbox keep the process to all that is named; context.sandbox
/// says what is in force. While the command runs; what nobody has used goes with it.
class NamedPlaces {
 public:
  NamedPlaces(const Options& options, const Sandbox& sandbox, Context& context);

 private:
  void add(io::Reach reach, const std::filesystem::path& path);
  void add_read(const std::filesystem::path& path);
  void add_config(const std::filesystem::path& path, bool has_output);
  void add_output(const std::filesystem::path& path, io::OutputPlace::Kind kind);

  bool beside_;              ///< a folder that is written needs all of the folder that it stands in
  std::string any_because_;  ///< why the process is kept to no places; empty: it is
  std::vector<Place> places_;
  std::vector<std::unique_ptr<io::OutputPlace>> outputs_;
};

}  // namespace fp8::commands
