// SPDX-License-Identifier: Apache-2.0
// The rest of the table in environment.h: variables of the vendor's stack that scripts and containers for it set. They
// are known and their values are looked at, so that a misspelt one is told apart; nothing here asks for them, and each
// row says why.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::io {

std::span<const Variable> vendor_variables();

/// A row for every name that begins so: "PT_HPU_DISABLE_pass_*".
constexpr bool is_family(const Variable& row) { return std::string_view(row.name).ends_with('*'); }
/// Of a family: name is one of its members, "PT_HPU_DISABLE_pass_reinplace_add".
bool is_member(const Variable& row, std::string_view name);
/// Of a family: those of the process, "PT_HPU_DISABLE_pass_a=True, PT_HPU_DISABLE_pass_b=1", sorted; "": none.
std::string members_of_process(const Variable& row);

}  // namespace fp8::io
