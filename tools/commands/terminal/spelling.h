// SPDX-License-Identifier: Apache-2.0
// The word that somebody meant who typed another.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fp8::commands {

/// The one of `allowed` that `found` was meant to be: it begins so and no other does, or few letters differ (two that
/// changed places count once, case does not). "" where none is near. Leading dashes don't count; only the first 64
/// bytes of `found` are looked at.
std::string meant(std::string_view found, const std::vector<std::string>& allowed);

/// ", did you mean 'quantize'?", or "".
std::string did_you_mean(std::string_view found, const std::vector<std::string>& allowed);

}  // namespace fp8::commands
