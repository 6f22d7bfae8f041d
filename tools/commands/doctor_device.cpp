// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/doctor_device.h"

#include <optional>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/kernels/capabilities.h"
#include "fp8/tools/commands/cli/table.h"

namespace fp8::commands {
namespace {

using kernels::DeviceKind;
using kernels::Dtype;
using kernels::DtypeUse;

/// What the environment says; none where it can't be meant, which is among doctor's problems.
std::optional<DeviceKind> kind_in_use() {
  if (!io::environment_problem("FP8_HPU_DEVICE").empty()) return std::nullopt;
  return kernels::kind_from_environment();
}
io::Json devices_in_use() {
  if (!io::environment_problem("FP8_HPU_DEVICES").empty()) return nullptr;
  const char* text = io::environment_value("FP8_HPU_DEVICES");
  return text == nullptr ? io::Json(1) : io::Json(io::parse_integer(text, 1, 16).value());
}

std::vector<std::string> uses_of(DeviceKind kind, Dtype dtype) {
  std::vector<std::string> names;
  for (const auto& use : enum_names<DtypeUse>)
    if (kernels::takes(kind, dtype, use.value)) names.emplace_back(use.name);
  return names;
}

}  // namespace

DeviceReport device_report() {
  const auto in_use = kind_in_use();
  const auto has = [&](Dtype dtype) {
    return in_use ? io::Json(kernels::takes(*in_use, dtype, DtypeUse::tensors)) : io::Json(nullptr);
  };
  DeviceReport report;
  report.json = {{"name", in_use ? io::Json(name_of(*in_use)) : io::Json(nullptr)},
                 {"devices", devices_in_use()},
                 {"lazy", false},
                 {"fp8", has(Dtype::float8_e4m3fn)},
                 {"fp16", has(Dtype::float16)},
                 {"dtypes", io::Json::object()}};
  std::vector<std::string> headers = {"dtype"};
  for (const auto& kind : enum_names<DeviceKind>)
    headers.push_back(kind.name + std::string(in_use == kind.value ? " (in use)" : ""));
  headers.emplace_back("on the vendor's list");
  Table table(headers);
  for (const auto& dtype : enum_names<Dtype>) {
    std::vector<std::string> cells = {dtype.name};
    io::Json row = {{"emulation_only", dtype.emulation_only}};
    for (const auto& kind : enum_names<DeviceKind>) {
      const auto uses = uses_of(kind.value, dtype.value);
      row[kind.name] = uses;
      cells.push_back(uses.empty() ? "no" : io::joined(uses));
    }
    cells.emplace_back(dtype.emulation_only ? "no, emulation only" : "yes");
    table.row(std::move(cells));
    report.json["dtypes"][dtype.name] = std::move(row);
  }
  report.text = table.text();
  return report;
}

}  // namespace fp8::commands
