// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: each function reads arbitrary bytes as one kind of file and returns; io::Error is an answer,
// everything else (a crash, a hang, an allocation without limit, another exception) is a finding.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp8::fuzz {

/// Whatever is accepted, nlohmann's own parser must read as the same value.
void json(const std::uint8_t* data, std::size_t size);
/// What is accepted must survive being written and read again.
void yaml(const std::uint8_t* data, std::size_t size);
/// Reads every tensor of what is accepted.
void safetensors(const std::uint8_t* data, std::size_t size);
/// What is accepted must survive being written and read again.
void idx(const std::uint8_t* data, std::size_t size);
/// PNG and JPEG: the pixels of what is accepted are as many as its sizes say, and at most 2^16.
void image(const std::uint8_t* data, std::size_t size);
/// A file of torch.save: reads every tensor of what is accepted, whole and in parts.
void torch_file(const std::uint8_t* data, std::size_t size);
/// What is accepted must survive being written and read again.
void npz(const std::uint8_t* data, std::size_t size);
/// A JSON that is a QUANT_CONFIG: what is accepted must describe itself and choose modules.
void quant_config(const std::uint8_t* data, std::size_t size);
/// A JSON that is a training recipe: what is accepted must survive being written and read again, and choose for
/// modules.
void recipe(const std::uint8_t* data, std::size_t size);
/// A JSON as DeepSpeed's, as a strategy's arguments, as a gaudi_config and as training arguments: every message is one
/// line, and what is made of a strategy is right.
void training_config(const std::uint8_t* data, std::size_t size);
/// A measurement as .json or (from "PK" on) .npz: what is accepted must survive being written and read in both forms.
void measurement(const std::uint8_t* data, std::size_t size);
/// The same of a scale file.
void scales(const std::uint8_t* data, std::size_t size);
/// {"config": a model's config.json, "quantized": names, "kept": names, "ignore": entries}: what a form lists of that
/// must match every kept module and no quantized one.
void model_config(const std::uint8_t* data, std::size_t size);
/// A tokenizer.json: what is accepted must encode and decode, or refuse the text.
void tokenizer(const std::uint8_t* data, std::size_t size);
/// The same of the other files that make a tokenizer: as vocab.txt, as ranks of tiktoken and as a sentencepiece model.
void vocabulary(const std::uint8_t* data, std::size_t size);
/// The same of Mistral's tekken.json.
void tekken(const std::uint8_t* data, std::size_t size);
/// A chat template: what is accepted must render, or refuse, within its limits.
void chat_template(const std::uint8_t* data, std::size_t size);
/// A file of rows: each is text, or refused.
void data_rows(const std::uint8_t* data, std::size_t size);
/// A trace of profilers: the sums of what is accepted must count every event once.
void trace(const std::uint8_t* data, std::size_t size);
/// The pickle alone, past the zip's checksum.
void pickle(const std::uint8_t* data, std::size_t size);

}  // namespace fp8::fuzz
