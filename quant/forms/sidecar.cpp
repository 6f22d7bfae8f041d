// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/sidecar.h"

#include "fp8/runtime/io/base/file.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

std::string text(const io::Json& object, const char* key, const std::string& name) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string())
    throw io::Error(name + ": key '" + key + "': expected a string");
  return object[key].get<std::string>();
}

}  // namespace

io::Json make_note() {
  io::Json out = io::Json::object();
  out["tool"] = "fp8 " FP8_VERSION;
  return out;
}

io::Json make_sidecar(const Plan& plan, const Scheme& scheme) {
  io::Json out = make_note();
  out["dialect"] = recipes::name_of(scheme.dialect);
  out["convention"] = name_of(scheme.convention);
  out["scale_method"] = plan.scale_method;
  out["hp_dtype"] = scheme.convention == Convention::inc ? io::Json(recipes::name_of(scheme.hp)) : io::Json(nullptr);
  out["measurements"] = plan.measurements.empty() ? io::Json(nullptr) : io::Json(plan.measurements);
  out["skipped"] = io::Json::object();
  for (const auto& s : plan.skipped) out["skipped"][s.name] = s.reason;
  return out;
}

recipes::Dialect dialect_from_name(const std::string& found, const std::string& where) {
  for (auto dialect : {recipes::Dialect::gaudi2, recipes::Dialect::gaudi3, recipes::Dialect::ocp}) {
    if (found == recipes::name_of(dialect)) return dialect;
  }
  throw io::Error(where + ": found \"" + found + "\", allowed: gaudi2, gaudi3, ocp");
}

Scheme read_sidecar(const io::Json& sidecar, const std::string& name) {
  Scheme s;
  s.dialect = dialect_from_name(text(sidecar, "dialect", name), name + ": key 'dialect'");
  const std::string convention = text(sidecar, "convention", name);
  if (convention != "own" && convention != "inc")
    throw io::Error(name + ": key 'convention': found \"" + convention + "\", allowed: own, inc");
  s.convention = convention == "own" ? Convention::own : Convention::inc;
  if (s.convention == Convention::inc) {
    const std::string hp = text(sidecar, "hp_dtype", name);
    bool known = false;
    for (auto type : {recipes::FloatType::F32, recipes::FloatType::BF16, recipes::FloatType::F16}) {
      if (hp == recipes::name_of(type)) {
        s.hp = type;
        known = true;
      }
    }
    if (!known) throw io::Error(name + ": key 'hp_dtype': found \"" + hp + "\", allowed: f32, bf16, f16");
  }
  return s;
}

}  // namespace fp8::quant
