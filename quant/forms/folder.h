// SPDX-License-Identifier: Apache-2.0
// What every checkpoint writer does alike: the folder that appears whole or not at all, the files carried through. No
// torch here.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "fp8/quant/forms/form.h"
#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// DIR/config.json of a high precision checkpoint. Throws io::Error if it is missing or says that the model is
/// quantized already, unless that is what `form` needs.
io::Json read_model_config(const std::filesystem::path& model, const CheckpointForm* form = nullptr);

/// Bytes of a tensor to be written.
std::uint64_t bytes_of(const io::SafetensorsWriter::Entry& entry);

/// An output folder in the making.
class OutputFolder {
 public:
  /// source: what it is made of, which says who may read it; may be empty.
  OutputFolder(const std::filesystem::path& out, bool overwrite, const std::filesystem::path& source,
               io::Partial partial = io::Partial::never)
      : directory_(out, overwrite, partial, source) {}
  io::OutputDirectory& path() { return directory_; }
  void write_json(const std::string& name, const io::Json& value);
  /// config.json: the text of `source` (empty: of an object without members) with the members of `edits` set, or
  /// removed where they are null. Every other byte stays: order of keys, spelling of numbers, indentation.
  void write_config(const std::filesystem::path& source, const io::Json& edits);
  /// Copies what carry_through.h names. Returns warnings.
  std::vector<std::string> carry_through(const std::filesystem::path& source);
  void commit() { directory_.commit(); }

 private:
  io::OutputDirectory directory_;
};

}  // namespace fp8::quant
