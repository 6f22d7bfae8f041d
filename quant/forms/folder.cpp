// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/folder.h"

#include "fp8/quant/forms/carry_through.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/mxfp4.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/io/json/json_edit.h"

namespace fp8::quant {
namespace fs = std::filesystem;

io::Json read_model_config(const fs::path& model, const CheckpointForm* form) {
  const fs::path path = model / io::kConfigFile;
  require_model_folder(model);
  io::Json config = io::read_python_json(io::source_file(model, io::kConfigFile));
  if (!config.is_object()) throw io::Error(path.string() + ": expected an object, found " + config.type_name());
  const io::Json quantization = read_quantization_config(model);
  if (!quantization.is_null() && !(form != nullptr && form->needs_mxfp4() && says_mxfp4(config))) {
    const std::string advice = advice_on_method(quantization);
    throw io::Error(
        path.string() +
        ": key 'quantization_config': the model is quantized already; expected a high precision checkpoint" +
        (advice.empty() ? "" : ": " + advice));
  }
  config.erase("quantization_config");
  return config;
}

std::uint64_t bytes_of(const io::SafetensorsWriter::Entry& e) {
  std::uint64_t n = static_cast<std::uint64_t>(io::size_of(e.dtype));
  for (auto d : e.shape) n *= static_cast<std::uint64_t>(d);
  return n;
}

void OutputFolder::write_json(const std::string& name, const io::Json& value) {
  io::write_json(directory_.file(name), value);
}

void OutputFolder::write_config(const fs::path& source, const io::Json& edits) {
  io::JsonEdit config = source.empty() ? io::JsonEdit("{}\n", io::kConfigFile)
                                       : io::read_json_edit(io::source_file(source.parent_path(), source.filename()));
  config.apply(edits);
  for (const char* key : {"quantization_config", "compression_config"}) config.erase_below(key);
  config.erase("compression_config");
  io::AtomicFile file(directory_.file(io::kConfigFile), config.text().size());
  file.append(config.text());
  file.commit();
}

std::vector<std::string> OutputFolder::carry_through(const fs::path& source) { return carry_files(source, directory_); }

}  // namespace fp8::quant
