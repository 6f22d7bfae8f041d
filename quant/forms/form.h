// SPDX-License-Identifier: Apache-2.0
// A form of fp8 checkpoints: how its tensors are spelt and shaped, and what its config says. One class per form, one
// table of them (form_table.h). No torch here.
//
// Writers and readers of folders know no form: they ask for the entries of a module, cast or decode codes with
// scale_grid(), and hand codes and scales over. Whatever a form calls its scales ("weight_scale_inv", "scale_weight"),
// here they are scale_inv: w ~ code * scale_inv.
#pragma once

#include "fp8/quant/names/readers.h"
#include "fp8/quant/scheme/scheme.h"

namespace fp8::quant {

/// The sink of the bytes that a writer makes. Thread-safe.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  /// Bytes [offset, offset + size) of a tensor.
  virtual void write(const std::string& tensor, const void* data, std::uint64_t offset, std::uint64_t size) = 0;
};

/// A weight in fp8, upright [rows, cols] = [out, in].
struct WeightSpec {
  std::string module;
  std::int64_t rows = 0, cols = 0;
  Scheme scheme;
};

/// A weight as a checkpoint stores it.
struct StoredWeight {
  WeightSpec spec;
  std::string weight, scale;         ///< names of the tensors of codes and of scales
  bool transposed = false;           ///< codes stand as [cols, rows]
  std::vector<std::string> tensors;  ///< all that belong to it, those two among them
};

struct StoredCheckpoint {
  std::vector<StoredWeight> weights;
  std::vector<KvScales> kv;
  std::vector<std::string> kv_tensors;  ///< the names that those were read from
  /// Scales beside weights that are in high precision (transformers leaves them there, uninitialised), and marks of
  /// other tools: not to be carried through.
  std::vector<std::string> strays;
  /// Scales of queries and of attention's probabilities, which engines take and no module here: carried through to
  /// another form only.
  std::vector<std::string> attention_scales;
  std::vector<std::string> packed;  ///< stacks of experts in MXFP4, of which no other form can tell
  /// Tensors that other readers would misread, or that the config promises and the file lacks; one line each.
  std::vector<std::string> warnings;
};

/// The contents of a whole checkpoint, as its config describes them.
struct ConfigSpec {
  Scheme scheme;                       ///< that all quantized modules have
  std::vector<std::string> quantized;  ///< names of modules
  /// Those among them whose activations stay in high precision, where the scheme has scales of activations.
  std::vector<std::string> weights_only;
  std::vector<std::string>
      kept_linears;  ///< modules that stay in high precision, though a Linear, or not known to be none
  std::vector<std::string>
      kept_experts;  ///< mixtures ("model.layers.0.mlp.experts") that stay stacked, in high precision
  std::vector<std::string> packed_experts;  ///< mixtures that stay in MXFP4
  std::vector<std::string> ignore;          ///< further entries for the list of such modules, as the caller wrote them
  ModelNames names;                         ///< readers' names of modules
  std::string scale_method;                 ///< INC's spelling, "amax" otherwise
  bool qdq = false;                         ///< INC's form only: for quantize-dequantize mode
  std::vector<KvScales> kv;                 ///< empty: the cache stays in high precision
};

using NameTest = std::function<bool(const std::string& name)>;
struct AssumedWeights;  // assumed_form.h

class CheckpointForm {
 public:
  virtual ~CheckpointForm() = default;

  // Its name and its readers

  /// The name by which callers and users choose it: "compressed-tensors".
  virtual const char* name() const = 0;
  /// Its part of a sentence that tells all forms apart, in the order of the table: "for transformers and vLLM".
  virtual const char* help() const = 0;
  /// quantization_config's "quant_method"; empty: the form has none.
  virtual const char* quant_method() const = 0;
  virtual bool is_read_by(CheckpointReader) const { return false; }
  /// Why a program that reads the form refuses or misreads the weight in that place, by its rules on schemes; empty if
  /// it does not.
  virtual std::string problem_of_reader(CheckpointReader, const StoredWeight&, WeightPlace) const { return ""; }
  /// True if some modules may have activations in high precision beside others that have not.
  virtual bool holds_weights_only_beside(const ModelNames&, const Scheme&) const { return false; }
  /// True if weights may be in E5M2.
  virtual bool holds_e5m2() const { return false; }
  /// True if codes stand as [cols, rows].
  virtual bool stores_transposed() const { return false; }
  /// True if scales of INC's convention are stored in hp_dtype, which all of them have to fit then.
  virtual bool rounds_inc_scales(const Scheme&) const { return false; }

  // Its list of modules in high precision (ignore_list.h)

  /// Returns the places of the list in its config, as JSON pointers: {"/ignore"}.
  virtual std::vector<const char*> ignore_keys() const = 0;
  /// Which modules some reader takes for kept because of an entry, beside the one of that very name; empty: no others.
  /// Throws io::Error for an entry that is no regular expression where the form has them.
  virtual NameTest ignored_by(const std::string& entry) const = 0;
  /// An entry for the module of this name alone, where ignored_by() of the plain name fits others too.
  virtual std::string exact_entry(const std::string& name) const { return name; }
  /// True if patterns ("re:.*") are written beside names, for modules under any prefix that readers put before them.
  virtual bool writes_patterns() const { return false; }
  /// False if its readers build modules as the file names them, and experts one by one.
  virtual bool is_renamed_on_load() const { return true; }
  /// The entries by which the config says what is in fp8; "Linear" stands for every Linear.
  virtual std::vector<std::string> targets(const io::Json& quantization_config) const;

  // Writing

  /// True for the form that is written beside experts in MXFP4, and for nothing else (model_source.h).
  virtual bool needs_mxfp4() const { return false; }
  /// Why the form can't hold the scheme in any module; empty if it can ("fp8 holds per tensor or block scales, found
  /// channel").
  virtual std::string scheme_problem(const Scheme& scheme) const = 0;
  /// Why this weight is left in high precision, because the form's readers would misread or refuse it (ragged blocks);
  /// empty if it need not.
  virtual std::string weight_problem(const WeightSpec& weight) const = 0;
  /// The shapes that the scale of a weight may have in a file; the first is the one that is written.
  virtual std::vector<std::vector<std::int64_t>> scale_shapes(const WeightSpec& weight) const;
  /// Its tensors: codes and scales. Of most forms X.weight, X.weight_scale and, with static activations, X.input_scale.
  virtual std::vector<io::SafetensorsWriter::Entry> entries(const WeightSpec& weight, const ConfigSpec& config) const;
  /// Codes of rows [first_row, first_row + rows), [rows, weight.cols] dense.
  virtual void write_codes(TensorSink& sink, const WeightSpec& weight, const std::uint8_t* codes,
                           std::int64_t first_row, std::int64_t rows) const;
  /// All but the codes. scale_inv: scale_grid(weight.scheme, weight.rows, weight.cols).size() values.
  virtual void write_scales(TensorSink& sink, const WeightSpec& weight, const ConfigSpec& config,
                            const std::vector<float>& scale_inv) const;
  /// Why the form has no place for these scales; empty if it has.
  virtual std::string kv_problem(const KvScales& kv) const = 0;
  /// The endings after an attention module's name in the names of the scales of keys and of values.
  virtual std::array<const char*, 2> kv_names() const { return {".k_scale", ".v_scale"}; }
  /// That of the queries, in every form with a place for it.
  static constexpr char kQueryScale[] = ".q_scale";
  virtual std::vector<io::SafetensorsWriter::Entry> kv_entries(const KvScales& kv, const ConfigSpec& config) const;
  virtual void write_kv(TensorSink& sink, const KvScales& kv, const ConfigSpec& config) const;
  /// config.json's quantization_config.
  virtual io::Json config(const ConfigSpec& spec) const = 0;
  /// Further files, by name ("hf_quant_config.json"), made of what config() gave.
  virtual std::vector<std::pair<std::string, io::Json>> extra_files(const io::Json& config) const;

  // Reading

  /// True for a quantization_config of this form: by its quant_method.
  virtual bool recognizes(const io::Json& quantization_config) const;
  /// sidecar: fp8.json or null; it tells dialect and convention, without one the checkpoint is ocp, own convention
  /// (INC's form: INC's). Throws io::Error naming file, tensor or key. Scales are not read here, but their presence,
  /// dtype and shape are checked.
  virtual StoredCheckpoint read(const io::Checkpoint& checkpoint, const io::Json& quantization_config,
                                const io::Json& sidecar) const = 0;

  // Reading codes that no config explains (assumed_form.h)

  /// Why they can't be taken for this form's; empty if they can.
  virtual std::string assume_problem() const;
  bool can_be_assumed() const { return assume_problem().empty(); }
  /// The endings of a weight's scale after the module's name, the preferred one first.
  virtual std::vector<const char*> scale_endings() const { return {".weight_scale"}; }
  /// The quantization_config that names and shapes of the scales tell. Asked for if can_be_assumed().
  virtual io::Json assumed_config(const AssumedWeights& weights) const;
};

/// Why a weight is left in high precision: its own weight_problem(), or that of `through`, which readers run as one
/// product with it.
struct WeightProblem {
  std::string reason, through;  ///< through: empty for its own
};
/// By module; the weights that are not in it can be written.
std::map<std::string, WeightProblem> weight_problems(const CheckpointForm& form,
                                                     const std::vector<WeightSpec>& weights);

/// A checkpoint folder's quantization_config: config.json's, at whatever level it stands there, or what
/// hf_quant_config.json says; null for a high precision checkpoint, also where every tensor is a number and only a key
/// is left of a quantization (leftover_config). Throws io::Error for two that say different things.
io::Json read_quantization_config(const std::filesystem::path& folder);
io::Json read_quantization_config(const io::Checkpoint& checkpoint);

/// A line on the quantization_config that read_quantization_config() takes for none because no tensor is quantized;
/// empty if there is none.
std::string leftover_config(const io::Checkpoint& checkpoint);

/// Everything that the folder's config says is in fp8. Empty for a high precision checkpoint; io::Error for codes of
/// which no config says what they are (assumed_form.h).
StoredCheckpoint read_stored(const io::Checkpoint& checkpoint);

/// The scales of a stored weight in the order of its scale_grid(), whatever dtype they have in the file (F32, BF16,
/// F16, E8M0). Throws io::Error naming the tensor for values that are not finite and > 0.
std::vector<float> read_scale_inv(const io::Checkpoint& checkpoint, const StoredWeight& weight);

/// Codes of rows [first_row, first_row + rows) upright, [rows, cols] dense. Throws io::Error for NaN and Inf codes of
/// the weight's dialect, with their number in all of it, unless they are allowed.
void read_code_rows(const io::Checkpoint& checkpoint, const StoredWeight& weight, std::int64_t first_row,
                    std::int64_t rows, std::uint8_t* codes, bool allow_nonfinite = false);

}  // namespace fp8::quant
