// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/stream/run.h"

#include "fp8/quant/forms/nonfinite.h"
#include "fp8/runtime/io/json/json_edit.h"
#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant::stream {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCopyBytes = std::uint64_t{8}
                                     << 20;  // at once within the kernel; then they are read, to be checked
constexpr std::uint64_t kProgressSteps = 400;

/// Another worker failed: this one ends without a word.
struct Cancelled {};

}  // namespace

struct Run::State {
  std::atomic<std::size_t> tasks_left{1};
  std::mutex mutex;
  std::map<std::string, Written> written;
};

/// The buffers and marks of one thread.
class Run::Worker final : public UnitContext {
 public:
  explicit Worker(Run& run) : run_(run) {}

  void begin(std::size_t unit) {
    unit_ = unit;
    tracks_.clear();
  }
  /// Adds what this task wrote to what the unit's others did.
  void end(std::map<std::string, Written>& written) {
    for (auto& [name, track] : tracks_) {
      Written& all = written.try_emplace(name, Written{PieceSums(track.size)}).first->second;
      all.bytes += track.written.bytes;
      all.sums.take(track.written.sums);
    }
    tracks_.clear();
  }

  void write(const std::string& tensor, const void* data, std::uint64_t offset, std::uint64_t size) override {
    const Place& place = place_of(tensor);
    io::check_within(place.slot, tensor, offset, size, run_.folder_.path().path());
    if (size == 0) return;
    place.file->write(place.slot.begin + offset, data, size);
    track(tensor, place).add(data, offset, size);
  }

  void advance(std::uint64_t bytes) override { run_.advance(bytes); }

  void copy(const io::Checkpoint& source, const std::string& from, const std::string& to, std::uint64_t offset,
            std::uint64_t size) override {
    const Place& place = place_of(to);
    const auto& info = source.info(from);
    io::check_within(place.slot, to, offset, size, run_.folder_.path().path());
    const bool allowed = run_.options_.nonfinite.contains(from);
    auto origin = source.place(from);
    for (std::uint64_t at = offset, end = offset + size; at < end;) {
      const std::uint64_t span = std::min(kCopyBytes, end - at);
      const bool copied =
          origin.has_value() && place.file->copy(origin->fd, origin->offset + at, place.slot.begin + at, span);
      if (!copied) origin.reset();
      for (const std::uint64_t stop = at + span; at < stop;) {
        const std::uint64_t chunk = std::min(io::kChunkBytes, stop - at);
        in.resize(chunk);
        source.read(from, in.data(), at, chunk);
        if (!allowed &&
            has_nonfinite(in.data(), info.dtype, static_cast<std::int64_t>(chunk) / io::size_of(info.dtype)))
          refuse_nonfinite(source, from);
        if (!copied) place.file->write(place.slot.begin + at, in.data(), chunk);
        track(to, place).add(in.data(), at, chunk);
        at += chunk;
        advance(chunk);
      }
    }
    if (size == 0) advance(0);
  }

  /// The sum of a piece of a tensor as it stands in the file.
  std::string sum_of(const Place& place, std::size_t i) {
    const std::uint64_t begin = i * kPieceBytes;
    in.resize(std::min(kPieceBytes, place.slot.size - begin));
    place.file->read(place.slot.begin + begin, in.data(), in.size());
    advance(0);
    io::Checksum sum;
    sum.update(in.data(), in.size());
    return io::checksum_text(sum.value());
  }

 private:
  /// Sums of the pieces that are written from front to back.
  struct Track {
    explicit Track(std::uint64_t bytes) : size(bytes), written{PieceSums(bytes)} {}
    std::uint64_t size;
    Written written;
    io::Checksum sum;
    std::uint64_t end = 0;
    bool whole = true;  ///< `sum` has the piece from its begin to `end`

    void add(const void* data, std::uint64_t offset, std::uint64_t count) {
      const auto* bytes = static_cast<const char*>(data);
      written.bytes += count;
      if (offset != end) start(offset);
      while (count > 0) {
        const std::uint64_t n = std::min(count, kPieceBytes - end % kPieceBytes);
        if (whole) sum.update(bytes, n);
        bytes += n, count -= n, end += n;
        if (end % kPieceBytes != 0 && end != size) continue;
        if (whole) written.sums.set((end - 1) / kPieceBytes, io::checksum_text(sum.value()));
        start(end);
      }
    }
    void start(std::uint64_t at) {
      end = at;
      whole = at % kPieceBytes == 0;
      sum = {};
    }
  };

  Track& track(const std::string& tensor, const Place& place) {
    return tracks_.try_emplace(tensor, place.slot.size).first->second;
  }

  const Place& place_of(const std::string& tensor) const {
    const auto found = run_.places_.find(tensor);
    if (found == run_.places_.end() || found->second.unit != unit_)
      io::fail<io::Error>("{}: unit {} has no tensor {} to write", run_.folder_.path().path().string(),
                          io::in_quotes(run_.units_[unit_].name), io::in_quotes(tensor));
    return found->second;
  }

  Run& run_;
  std::size_t unit_ = 0;
  std::unordered_map<std::string, Track> tracks_;
};

Run::Run(OutputFolder& folder, const std::vector<Unit>& units, const std::vector<File>& files,
         const StreamOptions& options)
    : folder_(folder), units_(units), options_(options), states_(units.size()) {
  for (const auto& file : files) {
    if (file.rank != options.rank) continue;
    for (const std::size_t unit : file.units) {
      mine_.push_back(unit);
      states_[unit] = std::make_unique<State>();
      states_[unit]->tasks_left = std::max<std::size_t>(1, units[unit].parts.size());
      total_ += units[unit].source_bytes;
    }
  }
  read_journal();
  clean_folder(files);
  open_files(files);
}

Run::~Run() = default;

void Run::read_journal() {
  journal_ = std::make_unique<io::Journal>(folder_.path().file(kJournalName));
  const io::Json identity = {{"identity", whole_identity(units_, options_)}};
  const auto& found = journal_->entries();
  const bool ours = !found.empty() && found[0].is_object() && found[0].contains("identity");
  if (!ours) {  // its first line was never finished: so was nothing else
    journal_->clear();
    journal_->append(identity);
    return;
  }
  if (const std::string text = io::difference(found[0], identity); !text.empty())
    io::fail<io::Error>(
        "{}: can't resume, the run that was cut short did something else: {}{}; without {} it begins anew",
        folder_.path().path().string(), text.substr(0, text.find("identity: ")),
        text.substr(text.find("identity: ") == std::string::npos ? 0 : text.find("identity: ") + 10),
        io::option("resume"));
  std::unordered_map<std::string, std::size_t> by_name;
  for (const std::size_t unit : mine_) by_name.emplace(units_[unit].name, unit);
  for (const auto& entry : found) {
    if (!entry.is_object() || !entry.contains("unit") || !entry["unit"].is_string() || !entry.contains("pieces"))
      continue;
    const auto unit = by_name.find(entry["unit"].get<std::string>());
    if (unit != by_name.end()) left_[unit->second] = entry["pieces"];
  }
}

// A killed run's own temporary files have names that are not used a second time.
void Run::clean_folder(const std::vector<File>& files) const {
  if (!folder_.path().continued()) return;
  std::error_code error;
  std::vector<fs::path> strays;
  for (const auto& entry : fs::directory_iterator(folder_.path().temporary())) {
    const std::string name = entry.path().filename().string();
    const bool known = std::ranges::any_of(files, [&](const File& f) { return f.name == name; });
    if (name != kJournalName && !known) strays.push_back(entry.path());
  }
  for (const auto& path : strays) fs::remove_all(path, error);
}

void Run::open_files(const std::vector<File>& files) {
  for (const auto& file : files) {
    if (file.rank != options_.rank) continue;
    const fs::path final_path = folder_.path().path() / file.name;
    const auto layout = layout_of(file, units_, final_path);
    files_.push_back(std::make_unique<io::PlacedFile>(folder_.path().file(file.name), layout.file_bytes, final_path));
    files_.back()->write(0, layout.head.data(), layout.head.size());
    for (const std::size_t unit : file.units) {
      for (const auto& e : units_[unit].entries)
        if (!places_.emplace(e.name, Place{unit, files_.back().get(), layout.slots.at(e.name)}).second)
          io::fail(final_path, "two tensors are named {}", io::in_quotes(e.name));
    }
  }
}

void Run::advance(std::uint64_t bytes) {
  if (failed_.load(std::memory_order_relaxed)) throw Cancelled{};
  const std::lock_guard lock(mutex_);
  if (failed_) throw Cancelled{};
  done_ = std::min(done_ + bytes, total_);
  if (options_.stop && options_.stop()) {
    failed_ = true;  // stop() is not asked a second time
    error_ = std::make_exception_ptr(io::Error("interrupted"));
    throw Cancelled{};
  }
  if (!options_.progress || (done_ - shown_ < total_ / kProgressSteps && done_ < total_) ||
      (done_ == shown_ && done_ > 0))
    return;
  shown_ = done_;
  options_.progress(done_, total_);
}

// A queue of our own instead of ranges: the largest come first, so that no thread is left alone with one of them at the
// end.
void Run::on_all_threads(std::size_t count, const std::function<void(Worker&, std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  const auto threads =
      static_cast<std::int64_t>(std::min<std::size_t>(count, static_cast<std::size_t>(kernels::num_threads())));
  kernels::parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Worker worker(*this);
      try {
        for (std::size_t item; !failed_ && (item = next.fetch_add(1)) < count;) body(worker, item);
      } catch (const Cancelled&) {
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
  });
  if (error_) std::rethrow_exception(error_);
}

void Run::work() {
  std::vector<std::pair<std::size_t, io::Json>> left(std::make_move_iterator(left_.begin()),
                                                     std::make_move_iterator(left_.end()));
  left_.clear();
  on_all_threads(left.size(), [&](Worker& worker, std::size_t i) {
    if (!verify(worker, left[i].first, left[i].second)) return;
    note_finished(left[i].first, left[i].second);
    states_[left[i].first].reset();
    ++kept_;
    advance(units_[left[i].first].source_bytes);
  });
  const auto list = tasks();
  on_all_threads(list.size(), [&](Worker& worker, std::size_t i) { run_task(worker, list[i]); });
}

std::vector<Run::Task> Run::tasks() const {
  std::vector<Task> list;
  for (const std::size_t unit : mine_) {
    if (!states_[unit]) continue;
    const std::size_t parts = units_[unit].parts.size();
    for (std::size_t i = 0; i < std::max<std::size_t>(parts, 1); ++i)
      list.push_back({unit, i, units_[unit].source_bytes / std::max<std::size_t>(parts, 1)});
  }
  std::ranges::stable_sort(list, [](const Task& a, const Task& b) { return a.cost > b.cost; });
  return list;
}

void Run::run_task(Worker& worker, const Task& task) {
  const Unit& unit = units_[task.unit];
  State& state = *states_[task.unit];
  worker.begin(task.unit);
  if (task.part < unit.parts.size()) {
    unit.parts[task.part](worker);
    const std::lock_guard lock(state.mutex);
    worker.end(state.written);
  }
  if (--state.tasks_left > 0) return;
  if (unit.run) unit.run(worker);
  worker.end(state.written);
  finish_unit(worker, task.unit);
}

void Run::finish_unit(Worker& worker, std::size_t unit) {
  io::Json pieces = io::Json::object();
  for (const auto& e : units_[unit].entries) {
    const Place& place = places_.at(e.name);
    Written& written = states_[unit]->written.try_emplace(e.name, Written{PieceSums(place.slot.size)}).first->second;
    if (written.bytes != place.slot.size)
      io::fail<io::Error>("{}: tensor {}: {} of {} bytes written", folder_.path().path().string(),
                          io::in_quotes(e.name), written.bytes, place.slot.size);
    for (std::size_t i = 0; i < written.sums.size(); ++i)  // what came in several runs of bytes
      if (!written.sums.has(i)) written.sums.set(i, worker.sum_of(place, i));
    pieces[e.name] = written.sums.text();
  }
  note_finished(unit, pieces);
  journal_->append({{"unit", units_[unit].name}, {"pieces", std::move(pieces)}});
  states_[unit].reset();
}

void Run::note_finished(std::size_t unit, const io::Json& pieces) {
  const std::lock_guard lock(mutex_);
  finished_[units_[unit].name] = pieces;
}

bool Run::verify(Worker& worker, std::size_t unit, const io::Json& pieces) {
  if (!pieces.is_object() || pieces.size() != units_[unit].entries.size()) return false;
  return std::ranges::all_of(units_[unit].entries, [&](const auto& e) {
    const Place& place = places_.at(e.name);
    const auto noted = PieceSums::of(pieces.value(e.name, io::Json()), place.slot.size);
    for (std::size_t i = 0; noted.has_value() && i < noted->size(); ++i)
      if ((*noted)[i] != worker.sum_of(place, i)) return false;
    return noted.has_value();
  });
}

void Run::remove_journal() {
  journal_.reset();
  std::error_code error;
  fs::remove(folder_.path().file(kJournalName), error);
  if (error) io::fail_errno(folder_.path().path(), "remove the journal", error.value());
}

}  // namespace fp8::quant::stream
