// SPDX-License-Identifier: Apache-2.0
// Changes within a file that keep what is around them right, so that more than the first check of a reader is met: the
// length before a safetensors header, the shape of a JSON, a zip's directory and checksums, the lengths of a protobuf.
#pragma once
#include <functional>
#include <random>
#include <string>
#include <string_view>

namespace fp8::fuzz {

/// Changes bytes without knowledge of their form.
using ChangeBytes = std::function<std::string(std::string bytes)>;

/// `data`, an input of `target`, with one change; where it is no file of that form, or now and then, by change() alone.
std::string changed(const std::string& target, std::string_view data, std::mt19937& random, const ChangeBytes& change);

}  // namespace fp8::fuzz
