// SPDX-License-Identifier: Apache-2.0
// Which ops a region casts, by ATen name (no overload): the vendor's tables, and files that replace them. No torch
// here.
//
//   lower     arguments to the region's dtype   (layer_norm, group_norm, instance_norm, batch_norm: the first only;
//                                                what else is float16 in a bfloat16 region, or the reverse, to float32)
//   fp32      arguments to float32
//   promote   arguments to the widest of them
//
// A name counts in the first list that has it, in this order. Names in no list are left alone.
//
// File: one name per line. Spaces around it, CRLF, blank lines, a byte order mark and # comments are passed over.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace fp8::runtime::autocast {

struct AutocastLists {
  std::vector<std::string> lower, fp32, promote;
  std::string lower_from = "default", fp32_from = "default";  ///< for print-outs: "default", or variable and file

  /// The vendor's 27, 49 and 12 names.
  static AutocastLists defaults();
  /// Files instead of the default lists; "": the default. A file that can't be read (missing, not a regular file,
  /// longer than 1 MiB) is a warning, one line, and the default list stays.
  static AutocastLists load(const std::string& lower_file, const std::string& fp32_file,
                            std::vector<std::string>& warnings);
  /// The files of PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST (if unset or empty: LOWER_LIST) and
  /// PT_HPU_AUTOCAST_FP32_OPS_LIST (FP32_LIST).
  static AutocastLists from_environment(std::vector<std::string>& warnings);
};

/// The names in a file's text, in its order, each once.
std::vector<std::string> parse_op_names(std::string_view text);

/// For messages: printable ASCII, at most 64 bytes.
std::string printable(std::string_view name);

/// Names that the vendor's lists have and ATen has not (Python's operators); they cast nothing.
bool is_python_name(std::string_view name);

}  // namespace fp8::runtime::autocast
