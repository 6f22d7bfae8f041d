// SPDX-License-Identifier: Apache-2.0
// `fp8 inspect --plot`: one picture of what the page of report_page.h shows.
#pragma once
#include <string>
#include <utility>

#include "fp8/runtime/io/json/json.h"
#include "fp8/tools/commands/inspect/picture.h"

namespace fp8::commands {

/// The layer that a module's name has a number of, and what it is called there: {3, "self_attn.q_proj"}; -1 and the
/// whole name outside of layers. Numbers in the rest are folded: {3, "mlp.experts.*.up_proj"}.
std::pair<std::int64_t, std::string> layer_of(const std::string& module);

/// Layers across, modules down, of a report of kind "damage" (SQNR in dB, or without one saturation) or "measurement"
/// (amax of the inputs, of the weights where there are none); of folded modules the worst. Throws io::Error where no
/// module has that number.
Picture heat_map(const io::Json& report);

/// Of one module of a report of kind "damage": its values per power of two and what fp8 can hold. Throws io::Error for
/// a name that the report has not, or a module without a histogram.
Picture histogram(const io::Json& report, const std::string& module);

}  // namespace fp8::commands
