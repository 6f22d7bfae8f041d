// SPDX-License-Identifier: Apache-2.0
// Paths that users give for a model, and advice where none can be read: a folder with config.json and
// safetensors (or pytorch_model.bin) is. No torch here.
//
//   hub name, no such folder            the command that downloads it
//   adapter_config.json, no config.json a LoRA adapter: the command that merges it into its base model
//   model_index.json                    a diffusers pipeline: none of its readers loads these forms
//   *.gguf, or the file itself          llama.cpp's: the original checkpoint
//   one .safetensors / .bin file        its folder
//   gptq, awq, bitsandbytes, ...        whole numbers already: the original checkpoint
#pragma once

#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/tensors/safetensors.h"

namespace fp8::quant {

/// Throws io::Error naming path, what was found and what to do instead, for what is no folder of a transformers model.
void require_model_folder(const std::filesystem::path& model);

/// The name of a model without the way to it: "org/name" in a hub's cache, else the folder's own.
std::string model_name(const std::filesystem::path& model);

/// Files of a model's folder that are not used: weights that are not read, an adapter, what is left of a
/// quantization's config; one line each.
std::vector<std::string> notices_beside(const io::Checkpoint& checkpoint);

/// "; a model of a hub: hf download ..." for a path that is not there and reads like a hub's name; empty for others.
std::string advice_on_name(const std::filesystem::path& model);

/// Advice on a checkpoint whose quantization_config says whole numbers ("gptq", "awq", "bitsandbytes", ...);
/// empty for other methods.
std::string advice_on_method(const io::Json& quantization_config);

// Experts that a checkpoint holds in MXFP4 (OCP Microscaling Formats v1.0: 32 E2M1 codes share an E8M0 scale), as
// gpt_oss is published. They are carried through, never decoded. No torch here.
//
//   P.experts.gate_up_proj_blocks   U8 [E, 2 I, H/32, 16]   two codes a byte, the first in the low half
//   P.experts.gate_up_proj_scales   U8 [E, 2 I, H/32]       2^(byte - 127)

/// The message of a form that needs_mxfp4() on any other source.
inline constexpr char kNeedsMxfp4[] =
    "quark is written for checkpoints of gpt_oss whose experts are in MXFP4, found none; compressed-tensors has a "
    "place for all else";

/// True for the config.json of gpt_oss as it is published.
bool says_mxfp4(const io::Json& model_config);

/// The names of the tensors of codes, in file order. Throws io::Error naming one whose scales do not fit it.
std::vector<std::string> mxfp4_stacks(const io::Checkpoint& checkpoint);

}  // namespace fp8::quant
