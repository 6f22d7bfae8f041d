// SPDX-License-Identifier: Apache-2.0
// The table of a conversion: a line for every module, and what a plan adds to it.
//
//   converted  fc1 (Linear): fp8 training, current scaling, E4M3; operand 6.14 kB of 24.6 kB, 36.9 kflop a row,
//              error 3.61 %
//   kept       embed: type Embedding is trained in high precision
//   plan       1 of 2: 6.14 kB of 24.6 kB, 36.9 kflop for one row of each
//   warning    block[0] "attention": no module has such a name
#include <iomanip>
#include <iterator>
#include <ostream>
#include <sstream>

#include "fp8/quant/model/convert.h"

namespace fp8::quant {
namespace {

/// 1234567 -> "1.23 M"
std::string short_number(double value) {
  const char* units[] = {"", " k", " M", " G", " T", " P"};
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < std::size(units); ++unit) value /= 1000.0;
  std::ostringstream text;
  text << std::setprecision(3) << value << units[unit];
  return text.str();
}

void print_planned(const ConvertedModule& m, std::ostream& out) {
  if (m.flops_per_row == 0 && !m.expected_error.has_value()) return;
  out << "; " << (m.operand_bytes != 0 ? "operand " : "")
      << short_number(static_cast<double>(m.operand_bytes != 0 ? m.operand_bytes : m.bytes_after)) << "B of "
      << short_number(static_cast<double>(m.bytes_before)) << "B, " << short_number(m.flops_per_row) << "flop a row";
  if (m.expected_error.has_value()) out << ", error " << short_number(100.0 * *m.expected_error) << " %";
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ConversionReport& report) {
  std::int64_t before = 0, after = 0, planned = 0;
  double flops = 0;
  for (const auto& m : report.converted) {
    out << "converted  " << (m.name.empty() ? "the model itself" : m.name) << " (" << m.type << "): " << m.scheme;
    print_planned(m, out);
    out << "\n";
    before += m.bytes_before;
    after += m.operand_bytes != 0 ? m.operand_bytes : m.bytes_after;
    flops += m.flops_per_row;
    planned += m.flops_per_row != 0;
  }
  for (const auto& m : report.skipped)
    out << "kept       " << (m.name.empty() ? "the model itself" : m.name) << ": " << m.reason << "\n";
  if (planned != 0) {
    out << "plan       " << report.converted.size() << " of " << report.converted.size() + report.skipped.size() << ": "
        << short_number(static_cast<double>(after)) << "B of " << short_number(static_cast<double>(before)) << "B, "
        << short_number(flops) << "flop for one row of each\n";
  }
  for (const auto& w : report.warnings) out << "warning    " << w << "\n";
  return out;
}

}  // namespace fp8::quant
