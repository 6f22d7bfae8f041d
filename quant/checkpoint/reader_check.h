// SPDX-License-Identifier: Apache-2.0
// Reads an fp8 checkpoint with the eyes of the programs that load its form, by their rules on names and schemes: what
// does each make of every module? A verdict is by form, scheme and family. No torch here.
//
//   in fp8, and an entry of the list of kept modules fits      its codes would be read as values
//   in high precision, and nothing in the list fits            the reader builds an fp8 module and looks for a scale
//   in fp8, and no target of the config fits                   the reader builds a module in high precision
//   modules that run as one product, halved                    vLLM refuses the file
//   a table of embeddings in fp8                               no reader decodes it
//   single experts of a family whose reader takes stacks       transformers has no names for them
//   a module that is split on load, in a form without a way   transformers fails, or drops its scales
//   scales of caches that no attention of transformers takes   transformers drops them
//   a family whose experts transformers can't join             transformers refuses the file
//   MXFP8 in a model that is not bfloat16                      transformers decodes it to bfloat16, and products fail
//   a stack of experts, and no entry for their layer           vLLM builds fp8 experts and looks for their scales
//   a scheme that the reader has no product of                 codes would be read as values, or refused
//   experts in a scheme that the reader can't join             the same (CheckpointForm::problem_of_reader)
//   in fp8, outside of the language model's blocks             vLLM builds plain modules there
//   a layer, projection, norm, head or embedding is missing    random values in its place
//
// For a family without a row it is not known what its classes need and build, nor if its file loads; the same goes for
// a model that the reader's release has no class of (names/readers.h). Names are those of the file and those after the
// changes that readers make on load (model_names.h).
#pragma once

#include "fp8/quant/checkpoint/modules.h"
namespace fp8::quant {

struct ReaderVerdict {
  std::string reader;                 ///< "transformers", "vLLM", "neural-compressor"
  std::string rules;                  ///< whose rules these are: "transformers 5.23.0"; release: the same for sentences
  std::string release;                ///< "transformers 5.23"
  std::vector<std::string> problems;  ///< why it would refuse or misread the file, module first; empty: it loads
  std::string not_known;              ///< why there are no rules for this model; empty: there are

  /// True if the rules accept the file, false if they do not; nothing where there are none that would.
  std::optional<bool> loads() const {
    return !problems.empty() ? std::optional(false) : not_known.empty() ? std::optional(true) : std::nullopt;
  }
};

/// One verdict for each program that reads the folder's form. Throws io::Error for what is no fp8 checkpoint, or
/// damaged. spelling: what problems call options.
std::vector<ReaderVerdict> check_readers(const std::filesystem::path& checkpoint, io::Spelling spelling = nullptr);

// A checkpoint has all that its class needs: checked by names alone.
//
//   blocks     as many as config.json counts, each with what its sisters have: those for which all lists of the config
//              with one entry per layer (layer_types, ...) say the same
//   words      an embedding; a file that holds the head that is tied to it is read by transformers alone
//   norm       the one behind the last block, where blocks have norms
//   head       of a class that is a language model: a tensor, or tied to the embedding
//
// Which of these a family without a row needs is not known.

/// The tensors that are missing or left over, tensor first: "model.layers.2.mlp.up_proj.weight: missing, 3 blocks like
/// it have one". Empty where the model's blocks are not known.
std::vector<std::string> incomplete_parts(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules);

/// Throws io::Error for names that no class has: those of a module wrapped by torch.compile or data parallelism, of a
/// layer under an adapter that was not merged. Says what takes them away.
void require_plain_names(const io::Checkpoint& checkpoint);

/// Throws io::Error for such names, and for the first thing that incomplete_parts() finds of a family with a row;
/// returns a warning for one without.
std::vector<std::string> require_complete(const io::Checkpoint& checkpoint, const io::Json& config,
                                          const CheckpointModules& modules);

}  // namespace fp8::quant
