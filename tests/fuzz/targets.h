// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: each target reads arbitrary bytes as one kind of file and returns; io::Error is an answer,
// everything else (a crash, a hang, an allocation without limit, another exception) is a finding.
#pragma once
#include <map>
#include <string>
#include <string_view>

namespace fp8::fuzz {

using Target = void (*)(std::string_view);
/// By name.
const std::map<std::string, Target>& targets();

void run(const std::string& target, std::string_view data);

}  // namespace fp8::fuzz
