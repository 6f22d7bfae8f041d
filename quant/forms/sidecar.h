// SPDX-License-Identifier: Apache-2.0
// fp8.json, beside a checkpoint we wrote: what its format has no words for. Other readers ignore it.
//
//   {"tool": "fp8 0.1.0", "dialect": "ocp", "convention": "own", "scale_method": "amax", "hp_dtype": null | "bf16",
//    "measurements": null | fingerprint, "skipped": {module: reason}, "nonfinite": {tensor: {"nan": 3, "inf": 0}},
//    "run": mark}
//
// nonfinite: tensors that were copied with NaN or Inf, as the user allowed; absent else. run: what the run was asked to
// do, as a checksum, by which --resume knows its finished output. Beside a checkpoint converted to high precision:
// "tool", "converted" and those two.
#pragma once
#include <string>

#include "fp8/quant/plan/plan.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {

inline constexpr char kSidecarName[] = "fp8.json";

io::Json make_sidecar(const Plan& plan, const Scheme& scheme);
/// Of a checkpoint in high precision: "tool" alone.
io::Json make_note();

/// Dialect, convention and hp_dtype as a Scheme. Throws io::Error naming file and key.
Scheme read_sidecar(const io::Json& sidecar, const std::string& name);

/// Parses "gaudi2", "gaudi3", "ocp". Throws io::Error "WHERE: found ..., allowed: gaudi2, gaudi3, ocp".
recipes::Dialect dialect_from_name(const std::string& text, const std::string& where);

}  // namespace fp8::quant
