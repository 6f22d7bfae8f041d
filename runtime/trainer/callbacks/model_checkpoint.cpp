// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/callbacks/model_checkpoint.h"

#include "fp8/runtime/trainer/trainer.h"

namespace fp8::trainer {
namespace {

[[noreturn]] void refuse_checkpoint(const char* name, const std::string& found, const std::string& allowed) {
  io::fail<std::invalid_argument>("[ModelCheckpoint] {}: found {}, allowed: {}", name, found, allowed);
}

constexpr const char* kFilename =
    "text with {NAME} or {NAME:FORMAT} as Python formats numbers ({epoch:02d}, {val_loss:.2f})";

/// One {NAME} or {NAME:FORMAT} of a filename, or the text between two.
struct Piece {
  std::string text;    ///< written as it is
  std::string name;    ///< empty: text alone
  std::string format;  ///< "02d", ".2f", as printf has it; empty: as many digits as say the number
};

/// Flags, width, precision and kind that Python and printf have in common.
bool is_format(const std::string& format, bool whole) {
  std::size_t at = 0;
  const auto digits = [&](std::size_t most) {
    const auto from = at;
    while (at < format.size() && format[at] >= '0' && format[at] <= '9') ++at;
    return at - from <= most;
  };
  if (at < format.size() && format[at] == '+') ++at;
  if (!digits(2)) return false;
  if (at < format.size() && format[at] == '.' && (++at, !digits(2))) return false;
  return at + 1 == format.size() && (std::string_view("feEgG").find(format[at]) != std::string_view::npos ||
                                     (format[at] == 'd' && whole && format.find('.') == std::string::npos));
}

std::vector<Piece> pieces_of(const std::string& filename) {
  const auto wrong = [&] {
    refuse_checkpoint("filename", "'" + filename + "'", kFilename + std::string(", without / and not a name of dots"));
  };
  if (filename.empty() || filename[0] == '.') wrong();
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < filename.size();) {
    const auto open = filename.find('{', at), close = filename.find('}', at);
    pieces.push_back({filename.substr(at, std::min(open, close) - at), {}, {}});
    if (pieces.back().text.find_first_of("/\\") != std::string::npos) wrong();
    if (open == std::string::npos && close == std::string::npos) break;
    if (close == std::string::npos || open == std::string::npos || close < open) wrong();
    Piece piece{{}, filename.substr(open + 1, close - open - 1), {}};
    if (const auto colon = piece.name.find(':'); colon != std::string::npos) {
      piece.format = piece.name.substr(colon + 1);
      piece.name.resize(colon);
      if (!is_format(piece.format, piece.name == "epoch" || piece.name == "step")) wrong();
    }
    if (piece.name.empty()) wrong();
    pieces.push_back(std::move(piece));
    at = close + 1;
  }
  return pieces;
}

template <class Number>
std::string formatted(std::string format, Number number) {
  if (format.back() == 'd') format.insert(format.size() - 1, "ll");
  std::string text(512, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), ("%" + format).c_str(), number)));
  return text;
}

/// Of epoch and step, which are whole.
std::string text_of(std::int64_t value, const std::string& format) {
  if (format.empty()) return std::to_string(value);
  return format.back() == 'd' ? formatted(format, static_cast<long long>(value))
                              : formatted(format, static_cast<double>(value));
}
std::string text_of(double value, const std::string& format) {
  return format.empty() || !std::isfinite(value) ? io::number_text(value) : formatted(format, value);
}

/// Names sort as batches do.
std::string name_of_batch(const Trainer& trainer, std::int64_t index) {
  const auto& group = trainer.options().group;
  char text[64];
  if (group == nullptr || group->size() == 1 || trainer.options().strategy.use_distributed_sampler)
    std::snprintf(text, sizeof text, "batch.%08lld.", static_cast<long long>(index));
  else
    std::snprintf(text, sizeof text, "rank.%05d.batch.%08lld.", group->rank(), static_cast<long long>(index));
  return text;
}

/// Every rank's on rank 0.
void gather(std::map<std::string, at::Tensor>& tensors, runtime::distributed::ProcessGroup& group) {
  io::Json own = io::Json::object();
  for (const auto& [name, tensor] : tensors) own[name] = runtime::distributed::form_of(tensor);
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto text = runtime::distributed::broadcast_text(group.rank() == rank ? own.dump() : "", group, rank);
    const auto theirs = io::parse_json(text, "predictions");
    for (const auto& [name, form] : theirs.items()) {
      const auto tensor = group.rank() == rank ? tensors.at(name) : runtime::distributed::empty_of_form(form);
      if (tensor.numel() > 0) group.broadcast(tensor, rank);
      if (group.rank() == 0) tensors[name] = tensor;
    }
  }
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  const auto& o = options_;
  if (o.dirpath.empty()) refuse_checkpoint("dirpath", "none", "a folder");
  pieces_of(o.filename);
  if (o.monitor && o.monitor->empty()) refuse_checkpoint("monitor", "''", "the name of a number that a step logs");
  if (o.save_top_k < -1 || (!o.monitor && o.save_top_k > 1))
    refuse_checkpoint("save_top_k", std::to_string(o.save_top_k),
                      o.monitor ? "-1 (all), 0 (none) or more" : "-1 (all), 0 (none) or 1, without a monitor");
  if (o.every_n_train_steps < 0)
    refuse_checkpoint("every_n_train_steps", std::to_string(o.every_n_train_steps), "0 or more");
  if (o.every_n_epochs < 1) refuse_checkpoint("every_n_epochs", std::to_string(o.every_n_epochs), "1 or more");
}

std::string ModelCheckpoint::state_key() const {
  return io::message("ModelCheckpoint.{}.{}.{}", options_.dirpath.filename().string(), options_.monitor.value_or(""),
                     options_.filename);
}

io::Json ModelCheckpoint::state() const {
  io::Json kept = io::Json::array();
  for (const auto& k : kept_)
    kept.push_back({{"folder", k.folder}, {"score", io::number_or_text(k.score)}, {"step", k.step}});
  return {{"kept", std::move(kept)}};
}

void ModelCheckpoint::load_state(const io::Json& state) {
  kept_.clear();
  for (const auto& k : state.at("kept")) {
    Kept kept{k.at("folder").get<std::string>(), io::number_or_nan(k.at("score")), k.at("step").get<std::int64_t>()};
    if (kept.folder.find('/') != std::string::npos || kept.folder.starts_with("."))
      refuse_checkpoint("state", "folder '" + kept.folder + "'", "a name below dirpath");  // it will be removed one day
    kept_.push_back(std::move(kept));
  }
}

void ModelCheckpoint::begin_anew() {
  kept_.clear();
  epoch_ = 0;
}

void ModelCheckpoint::on_fit_start(Trainer& trainer, std::int64_t) {
  const auto& root = trainer.options().checkpoint_root;
  if (!root.empty() && options_.dirpath.lexically_normal() == root.lexically_normal())
    refuse_checkpoint("dirpath", options_.dirpath.string() + ", where the trainer's own checkpoints are",
                      "another folder");
}

void ModelCheckpoint::on_step_end(Trainer& trainer, const StepReport& report) {
  epoch_ = report.epoch;
  if (options_.every_n_train_steps > 0) {
    if (report.step % options_.every_n_train_steps == 0) save(trainer, report.epoch, report.step);
  } else if (report.val_loss && (report.epoch + 1) % options_.every_n_epochs == 0) {
    save(trainer, report.epoch, report.step);
  }
}

void ModelCheckpoint::on_train_epoch_end(Trainer& trainer, std::int64_t epoch) {
  if (options_.every_n_train_steps > 0 || trainer.validates() || (epoch + 1) % options_.every_n_epochs != 0) return;
  save(trainer, epoch, trainer.global_step());
}

std::string ModelCheckpoint::name_for(const Trainer& trainer, std::int64_t epoch, std::int64_t step) const {
  std::string name;
  for (const auto& piece : pieces_of(options_.filename)) {
    name += piece.text;
    if (piece.name.empty()) continue;
    if (options_.auto_insert_metric_name) name += piece.name + "=";
    if (piece.name == "epoch" || piece.name == "step")
      name += text_of(piece.name == "epoch" ? epoch : step, piece.format);
    else
      name += text_of(monitored(trainer, piece.name, "ModelCheckpoint", "filename"), piece.format);
  }
  std::replace(name.begin(), name.end(), '/', '_');  // of a number's name
  return name;
}

/// NaN is worse than any number; of two that are as good the older one stays.
bool ModelCheckpoint::better(const Kept& a, const Kept& b) const {
  if (!options_.monitor) return a.step > b.step;
  if (std::isnan(a.score) || std::isnan(b.score)) return !std::isnan(a.score);
  return options_.mode == MonitorMode::min ? a.score < b.score : a.score > b.score;
}

void ModelCheckpoint::keep(Trainer& trainer, std::int64_t epoch, std::int64_t step) {
  if (options_.save_top_k == 0) return;
  const std::string name = name_for(trainer, epoch, step);
  Kept one{name, 0, step};
  if (options_.monitor) one.score = monitored(trainer, *options_.monitor, "ModelCheckpoint");
  const bool all = options_.save_top_k < 0;
  const bool full = !all && kept_.size() >= static_cast<std::size_t>(options_.save_top_k);
  if (full && !better(one, kept_.back())) return;
  std::optional<Kept> goes;
  if (full) {
    goes = kept_.back();
    kept_.pop_back();
  }
  for (int version = 1; std::ranges::any_of(kept_, [&](const auto& k) { return k.folder == one.folder; }); ++version)
    one.folder = name + "-v" + std::to_string(version);
  kept_.insert(
      std::upper_bound(kept_.begin(), kept_.end(), one, [&](const Kept& a, const Kept& b) { return better(a, b); }),
      one);
  trainer.save_checkpoint(options_.dirpath / one.folder);  // with this in its own list
  if (goes && goes->folder != one.folder && trainer.is_first_rank())
    HPUCheckpointIO().remove_checkpoint(options_.dirpath / goes->folder);
}

void ModelCheckpoint::save(Trainer& trainer, std::int64_t epoch, std::int64_t step) {
  keep(trainer, epoch, step);
  if (options_.save_last) trainer.save_checkpoint(options_.dirpath / "last");
}

std::filesystem::path ModelCheckpoint::best_model_path() const {
  return kept_.empty() ? std::filesystem::path() : options_.dirpath / kept_.front().folder;
}

std::optional<double> ModelCheckpoint::best_model_score() const {
  if (kept_.empty() || !options_.monitor) return std::nullopt;
  return kept_.front().score;
}

OnExceptionCheckpoint::OnExceptionCheckpoint(std::filesystem::path dirpath, const std::string& filename)
    : folder_(dirpath / filename) {
  if (dirpath.empty()) throw std::invalid_argument("[OnExceptionCheckpoint] dirpath: found none, allowed: a folder");
  if (!io::is_file_name(filename))
    io::fail<std::invalid_argument>(
        "[OnExceptionCheckpoint] filename: found '{}', allowed: a name without '/' that is not '..'", filename);
}

void OnExceptionCheckpoint::on_fit_start(Trainer& trainer, std::int64_t) {
  const auto& group = trainer.options().group;
  if (group != nullptr && group->size() > 1)
    io::fail<std::invalid_argument>(
        "[OnExceptionCheckpoint] ranks: found {}, allowed: 1; checkpoints of several are written on the way "
        "(save_every_n_steps)",
        group->size());
}

void OnExceptionCheckpoint::on_exception(Trainer& trainer, const std::exception&) { trainer.save_checkpoint(folder_); }

PredictionWriter::PredictionWriter(std::filesystem::path file) : file_(std::move(file)) {
  if (file_.empty()) throw std::invalid_argument("[PredictionWriter] file: found none, allowed: a path");
}

void PredictionWriter::on_predict_start(Trainer&) { tensors_.clear(); }

void PredictionWriter::on_predict_batch_end(Trainer& trainer, const Batch&, std::int64_t index,
                                            const std::vector<at::Tensor>& outputs) {
  const auto name = name_of_batch(trainer, index);
  char number[16];
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::snprintf(number, sizeof number, outputs.size() > 10 ? "%04zu" : "%zu", i);
    tensors_[name + number] = outputs[i]
                                  .detach()
                                  .to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)
                                  .contiguous();  // the module's may change
  }
}

void PredictionWriter::write() const {
  if (file_.has_parent_path()) std::filesystem::create_directories(file_.parent_path());
  write_tensors(file_, tensors_);
}

void PredictionWriter::on_predict_end(Trainer& trainer) {
  const auto& group = trainer.options().group;
  if (group != nullptr && group->size() > 1) gather(tensors_, *group);
  runtime::distributed::on_first([&] { write(); }, group.get());
  tensors_.clear();
}

}  // namespace fp8::trainer
