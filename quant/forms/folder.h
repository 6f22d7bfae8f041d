// SPDX-License-Identifier: Apache-2.0
// Steps that every checkpoint writer takes: the folder that appears whole or not at all, the files carried through. No
// torch here.
#pragma once

#include "fp8/quant/forms/form.h"
#include "fp8/quant/plan/plan.h"

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
  void write_text(const std::string& name, std::string_view text);
  /// config.json: the text of `source` (empty: of an object without members) with the members of `edits` set, or
  /// removed where they are null. Every other byte stays: order of keys, spelling of numbers, indentation.
  void write_config(const std::filesystem::path& source, const io::Json& edits);
  /// Keeps the checksums of a file (checksums.h) that were made while it was written.
  void note_sums(const std::string& name, io::Json sums) { sums_.emplace(name, std::move(sums)); }
  /// fp8.json, when all else is written: with the checksums of every file that stands in the folder.
  void write_sidecar(const io::Json& value);
  /// carry_files() of `source`.
  std::vector<std::string> carry_through(const std::filesystem::path& source);
  void commit() { directory_.commit(); }

 private:
  io::OutputDirectory directory_;
  std::map<std::string, io::Json> sums_;
};

// The files that a written checkpoint copies from its source byte for byte: all that a reader needs beside weights and
// config.json.
//
//   carried      everything else, subfolders too: tokenizers, templates, processors, prompts, remote code and its data,
//                the modules of a sentence encoder with their weights
//   left behind  config.json, which is written; weights of any format and states of optimizers, but those that code or
//                configs of the folder name; indexes; quantization files; hidden files; checkpoint-*, original/ and
//                checkpoints that were written here

/// Copies such files of `source` into `out`. A link becomes the file that it leads to where io::source_file() follows
/// it (a hub's cache has nothing else). All other links, and what is no file (a dangling or looping link, a pipe), are
/// left out and named in the warnings that are returned, as are in one line the weights that are not read; but code, a
/// config or a tokenizer that lies elsewhere is an io::Error, as is a file that can't be read.
std::vector<std::string> carry_files(const std::filesystem::path& source, const io::OutputDirectory& out);

/// {"size": bytes, "modified": "seconds.nanoseconds"} of a file; null if there is none.
io::Json identity_of_file(const std::filesystem::path& path);
/// The files that carry_files() would copy, each with its identity_of_file(); throws as it does. Taken when a run
/// begins, so that it can tell at its end:
io::Json carried_identity_of(const std::filesystem::path& source);
/// Throws io::Error naming the first file of `carried` that is not as it was, or is gone; a log may have grown. What
/// has come since is carried like the rest.
void require_carried_unchanged(const std::filesystem::path& source, const io::Json& carried);

// fp8.json, beside a checkpoint we wrote: what its format has no words for. Other readers ignore it.
//
//   {"tool": "fp8 0.1.0", "dialect": "ocp", "convention": "own", "scale_method": "amax", "hp_dtype": null | "bf16",
//    "measurements": null | fingerprint, "skipped": {module: reason}, "nonfinite": {tensor: {"nan": 3, "inf": 0}},
//    "activation_method": {...}, "run": mark, "checksums": {...}}
//
// activation_method: of convention inc with dynamic activations, as configs::to_json() has it; absent else. Where
// transformers writes the files, the text is in the metadata of the safetensors, under the key "fp8.json".
//
// nonfinite: tensors that were copied with NaN or Inf, as the user allowed; absent else. run: what the run was asked to
// do, as a checksum, by which --resume knows its finished output. checksums: of what quantize and convert write
// (checksums.h). Beside a checkpoint converted to high precision: "tool", "converted" and those three.

inline constexpr char kSidecarName[] = "fp8.json";
/// Beside it while a checkpoint is made.
inline constexpr char kJournalName[] = "journal.jsonl";

io::Json make_sidecar(const Plan& plan, const Scheme& scheme);
/// Of a checkpoint in high precision: "tool" alone.
io::Json make_note();

/// True if the scales of activations are made at each call by the scheme's activation_method.
bool scheme_has_method(const Scheme& scheme);
/// Dialect, convention, hp_dtype and activation_method as a Scheme. Throws io::Error naming file and key.
Scheme read_sidecar(const io::Json& sidecar, const std::string& name);

/// Parses "gaudi2", "gaudi3", "ocp". Throws io::Error "WHERE: found ..., allowed: gaudi2, gaudi3, ocp".
recipes::Dialect dialect_from_name(const std::string& text, const std::string& where);

}  // namespace fp8::quant
