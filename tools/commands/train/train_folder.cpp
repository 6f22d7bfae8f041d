// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/train/train_folder.h"

#include <system_error>

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/train/train_log.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// Nothing in the folder but what a killed run may have left under a temporary name.
bool holds_nothing(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string()[0] != '.') return false;
  return true;
}

}  // namespace

bool open_folder(const TrainOptions& o, const io::Json& settings,
                 const std::function<bool(const fs::path& file, const io::Json& written)>& check) {
  const auto file = o.out / kTrainSettingsFile;
  std::error_code error;
  if (fs::exists(o.out, error) && !fs::is_directory(o.out, error))
    throw io::Error(o.out.string() + ": found a file, allowed: a folder");
  const bool empty = holds_nothing(o.out);
  const bool run = fs::exists(file, error);
  if (o.resume && run) {
    const auto written = io::read_json(file);
    const bool longer = check(file, written);
    TrainLog::refuse_if_locked(o.out / kTrainLogFile);
    if (longer) {
      fs::remove(o.out / io::kWeightsFile, error);
      fs::remove_all(o.out / "measurements", error);
    }
    if (written != settings) io::write_json(file, settings);
    return true;
  }
  if (!empty && !run)
    throw io::Error(o.out.string() + ": is not empty and holds no run of fp8 train, allowed: a new or empty folder");
  if (!empty && !o.overwrite)
    throw io::Error(o.out.string() + ": holds a run, allowed: --resume to go on with it, --overwrite to begin anew");
  const bool made = fs::create_directories(o.out, error);
  if (!made && error) throw io::Error(o.out.string() + ": can't be made: " + error.message());
  if (made) io::set_mode(o.out, io::OutputModes(o.model).folder());
  if (run) TrainLog::refuse_if_locked(o.out / kTrainLogFile);  // --overwrite is not meant for a run that is going on
  for (const char* name : {"checkpoints", "measurements", kBestFolder, kTensorBoardFolder})
    fs::remove_all(o.out / name);
  for (const char* name : {io::kWeightsFile, kTrainLogFile, kCsvFile}) fs::remove(o.out / name, error);
  io::write_json(file, settings);
  return false;
}

}  // namespace fp8::commands
