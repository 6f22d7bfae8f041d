// SPDX-License-Identifier: Apache-2.0
// What the commands do where a launcher (torchrun, mpirun, srun) has started several processes of the program.
#pragma once
#include <cstdint>
#include <string>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/tools/commands/cli/context.h"

namespace fp8::commands {

enum class Ranks : std::uint8_t {
  any,                    ///< it makes no difference, or the command sees to it itself: its share, files of its own
  first,                  ///< rank 0 does all of the work; the others say so and end with 0, nothing on stdout
  first_unless_measures,  ///< the same, but where QUANT_CONFIG asks for measurements each rank makes its own
  share_unless_measures   ///< each does a part (shares_work()), but where QUANT_CONFIG asks for measurements as above
};

/// True: this process runs `command`. Throws io::Error for variables that make no sense.
bool takes_part(Ranks ranks, const std::string& command, const Context& context, const io::GetVariable& get);
/// By this process' environment.
bool takes_part(Ranks ranks, const std::string& command, const Context& context);

/// Of a command of Ranks::share_unless_measures: this process has a part of the work, not all of it.
bool shares_work(const io::GetVariable& get);
bool shares_work();
/// True in rank 0, and where there is one process; the others say that it does the work alone.
bool is_first(const std::string& command, const Context& context);

/// Warns, where there are several, that each rank measures all of the samples into files of its own. separate_files: as
/// the config says; false: rank 0 alone writes, and this returns false in the others.
bool measures_as_rank(bool separate_files, const Context& context);

}  // namespace fp8::commands
