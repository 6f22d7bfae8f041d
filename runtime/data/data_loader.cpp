// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/data_loader.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <system_error>

namespace fp8::data {

at::Generator SampleRandom::generator() { return at::make_generator<at::CPUGeneratorImpl>(next()); }

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) throw std::invalid_argument("[data] TensorDataset: found no tensor, allowed: 1 or more");
  for (const auto& tensor : tensors_)
    if (tensor.dim() < 1 || tensor.size(0) != tensors_[0].size(0))
      throw std::invalid_argument(c10::str("[data] TensorDataset: found sizes ", tensors_[0].sizes(), " and ",
                                           tensor.sizes(), ", allowed: as many samples in each"));
}

std::vector<at::Tensor> TensorDataset::get(std::int64_t index, SampleRandom&) const {
  std::vector<at::Tensor> sample;
  for (const auto& tensor : tensors_) sample.push_back(tensor.select(0, index));
  return sample;
}

namespace {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return c10::str(tensor.scalar_type(), " of sizes ", tensor.sizes(), " on ", tensor.device());
}

}  // namespace

std::vector<at::Tensor> stack_samples(const std::vector<Sample>& samples, bool pinned,
                                      const std::function<std::string(std::size_t)>& name_of) {
  const auto refuse = [&](std::size_t i, const std::string& found, const std::string& allowed) {
    io::fail<std::invalid_argument>("[data] {}: found {}, allowed: {}", name_of(i), found, allowed);
  };
  std::vector<at::Tensor> batch;
  const Sample& first = samples.at(0);
  for (std::size_t i = 1; i < samples.size(); ++i)
    if (samples[i].size() != first.size())
      refuse(i, std::to_string(samples[i].size()) + " tensors", std::to_string(first.size()) + ", as in " + name_of(0));
  for (std::size_t t = 0; t < first.size(); ++t) {
    const at::Tensor& like = first[t];
    if (!like.defined() || !like.device().is_cpu() || like.layout() != at::kStrided)
      refuse(0, text_of(like), "a dense tensor on the CPU");
    std::vector<std::int64_t> sizes = like.sizes().vec();
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(samples.size()));
    batch.push_back(at::empty(sizes, like.options().requires_grad(false).pinned_memory(pinned)));
    // By hand: at::stack would start the pool of every worker's thread.
    auto* to = static_cast<char*>(batch.back().mutable_data_ptr());
    const std::size_t bytes = like.nbytes();
    for (std::size_t i = 0; i < samples.size(); ++i, to += bytes) {
      const at::Tensor& part = samples[i][t];
      if (!part.defined() || part.scalar_type() != like.scalar_type() || part.sizes() != like.sizes() ||
          !part.device().is_cpu() || part.layout() != at::kStrided)
        refuse(i, text_of(part), text_of(like) + ", as tensor " + std::to_string(t) + " of " + name_of(0));
      if (bytes > 0) std::memcpy(to, part.contiguous().const_data_ptr(), bytes);
    }
  }
  return batch;
}

namespace {

constexpr double kLeastGrace = 5;  // seconds, at the end

[[noreturn]] void refuse(const std::string& option, const std::string& found, const std::string& allowed) {
  io::fail<std::invalid_argument>("[data] {}: found {}, allowed: {}", option, found, allowed);
}

DataLoaderOptions checked(DataLoaderOptions o) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // a dataset is smaller
  if (o.batch_size < 1 || o.batch_size > kMost) refuse("batch_size", std::to_string(o.batch_size), "1 to 2^40");
  if (o.multiple != 1 && (o.multiple < 1 || o.multiple > kMost || o.multiple % o.batch_size != 0))
    refuse("multiple", std::to_string(o.multiple), "1, or a multiple of batch_size up to 2^40");
  if (o.multiple != 1 && o.last_batch == LastBatch::keep)
    refuse("multiple", std::to_string(o.multiple), "1 where the last batch is kept");
  if (o.num_workers < 0 || o.num_workers > 1024) refuse("num_workers", std::to_string(o.num_workers), "0 to 1024");
  if (o.prefetch_factor < 1) refuse("prefetch_factor", std::to_string(o.prefetch_factor), "1 or more");
  if (!(o.timeout >= 0) || std::isinf(o.timeout))
    refuse("timeout", std::to_string(o.timeout), "seconds, 0 (any time) or more");
  if (o.persistent_workers && o.num_workers == 0)
    refuse("persistent_workers", "true with num_workers 0", "with num_workers 1 or more");
  return o;
}

std::string called(const Dataset& dataset, std::int64_t index) {
  std::string name = dataset.name_of(index);
  return "sample " + std::to_string(index) + (name.empty() ? "" : " (" + name + ")");
}

/// Within a catch: what was thrown, as a SampleError.
[[noreturn]] void rethrow(const std::string& sample, std::int64_t index) {
  std::string what = "an exception that is no std::exception";
  try {
    throw;
  } catch (const SampleError&) {
    throw;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {  // NOLINT: said above
  }
  throw SampleError("[data] " + sample + ": " + what, index, std::current_exception());
}

/// The inputs of one batch, for the thread that makes it.
struct Work {
  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const std::vector<std::int64_t>> order;
  Share share;
  std::int64_t epoch;
  std::uint64_t seed;
  bool pin_memory;
  Collate collate;

  std::int64_t index(std::int64_t i) const {
    return (*order)[static_cast<std::size_t>(share.first + i * share.step) % order->size()];
  }

  /// As many threads of LibTorch's within an operation as the training has: sums may depend on it.
  trainer::Batch make(std::atomic<std::int64_t>& at) const {
    const at::NoGradGuard no_grad;
    trainer::Batch batch;
    batch.samples = share.count;
    std::vector<Sample> samples;
    for (std::int64_t i = 0; i < share.count; ++i) {
      at = index(i);
      SampleRandom random(seed, epoch, at);
      try {
        samples.push_back(dataset->get(at, random));
        batch.tokens += dataset->tokens_of(at);
      } catch (...) {
        rethrow(called(*dataset, at), at);
      }
    }
    at = index(0);
    try {
      batch.tensors = join(samples);
    } catch (const std::invalid_argument& error) {
      if (collate) rethrow("the batch of " + called(*dataset, at), at);
      throw SampleError(error.what(), at, std::current_exception());  // it says which sample
    } catch (...) {
      rethrow("the batch of " + called(*dataset, at), at);
    }
    return batch;
  }

  std::vector<at::Tensor> join(const std::vector<Sample>& samples) const {
    if (!collate)
      return stack_samples(samples, pin_memory,
                           [&](std::size_t i) { return called(*dataset, index(static_cast<std::int64_t>(i))); });
    auto tensors = collate(samples);
    if (pin_memory)
      for (auto& tensor : tensors) tensor = tensor.pin_memory();
    return tensors;
  }
};

}  // namespace

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options)
    : dataset_(std::move(dataset)),
      options_(checked(std::move(options))),
      plan_(dataset_->size(), options_.batch_size, options_.last_batch, options_.multiple) {}

DataLoader::~DataLoader() {
  try {
    if (pool_ != nullptr) pool_->check_process();
  } catch (const std::logic_error&) {  // a forked process: its parent has the threads
    return;
  }
  try {
    close();
  } catch (const SampleError& error) {
    try {
      TORCH_WARN(error.what(), "; its thread is left alone");
    } catch (const c10::Error&) {  // where warnings are errors: not here
    }
  }
}

SampleError DataLoader::late(const Job& job, double seconds) const {
  const std::int64_t index = job.at;
  const std::string sample = index < 0 ? "a batch" : called(*dataset_, index);
  return {c10::str("[data] ", sample, ": its worker has not come back for ", seconds, " s"), index, nullptr};
}

void DataLoader::close() {
  forget();
  if (pool_ == nullptr) return;
  const auto pool = std::exchange(pool_, nullptr);
  const double seconds = std::max(options_.timeout, kLeastGrace);
  if (!pool->stop(seconds) && !pool->unfinished().empty()) throw late(*pool->unfinished()[0], seconds);
}

void DataLoader::forget() {
  for (const auto& pending : pending_) pool_->drop(pending.job);
  pending_.clear();
}

const std::shared_ptr<const std::vector<std::int64_t>>& DataLoader::order_of(std::int64_t epoch) {
  if (order_epoch_ != epoch) {
    order_ = std::make_shared<const std::vector<std::int64_t>>(
        epoch_order(dataset_->size(), options_.shuffle, options_.seed, epoch));
    order_epoch_ = epoch;
  }
  return order_;
}

void DataLoader::seek(std::int64_t epoch, std::int64_t batch) {
  // Ranks that evaluate take every so many batches: one batch after each seek.
  stride_ = since_seek_ == 1 && epoch == epoch_ && batch > last_ ? batch - last_ : 1;
  epoch_ = epoch;
  next_ = batch;
  since_seek_ = 0;
}

std::optional<trainer::Batch> DataLoader::next() {
  if (next_ >= batches()) return std::nullopt;
  if (++since_seek_ > 1) stride_ = 1;
  const Place place{epoch_, next_};
  next_ = batches();  // should it fail
  auto batch = take(place, stride_);
  last_ = place.batch;
  next_ = place.batch + 1;
  return batch;
}

std::optional<trainer::Batch> DataLoader::deal(std::int64_t epoch, std::int64_t batch, int rank, int ranks) {
  if (plan_.share(batch, rank, ranks).count == 0) return trainer::Batch{};
  return take({epoch, batch, rank, ranks}, ranks);
}

trainer::Batch DataLoader::take(const Place& place, std::int64_t step) {
  const auto& order = order_of(place.epoch);
  if (options_.num_workers == 0) {
    std::atomic<std::int64_t> at{-1};
    return finish(
        {place, nullptr,
         std::make_shared<trainer::Batch>(Work{dataset_, order, plan_.share(place.batch, place.rank, place.ranks),
                                               place.epoch, options_.seed, options_.pin_memory, options_.collate}
                                              .make(at))});
  }
  if (pool_ == nullptr) pool_ = std::make_unique<WorkerPool>(options_.num_workers);
  pool_->check_process();
  if (step != step_ || (!pending_.empty() && pending_.front().place != place)) forget();
  step_ = step;
  fill(place, step);
  Pending first = std::move(pending_.front());
  pending_.pop_front();
  Place after = place;
  after.batch += step;
  fill(after, step);
  return finish(std::move(first));
}

/// As many pending batches as there may be. from: the first, where there is none yet.
void DataLoader::fill(Place from, std::int64_t step) {
  const auto most = static_cast<std::size_t>(options_.num_workers) * static_cast<std::size_t>(options_.prefetch_factor);
  if (!pending_.empty()) {
    from = pending_.back().place;
    from.batch += step;
  }
  for (; pending_.size() < most; from.batch += step) {
    const Share share = plan_.share(from.batch, from.rank, from.ranks);
    if (share.count == 0) return;
    auto batch = std::make_shared<trainer::Batch>();
    auto job = std::make_shared<Job>();
    job->work = [batch, work = Work{dataset_, order_of(from.epoch), share, from.epoch, options_.seed,
                                    options_.pin_memory, options_.collate}](Job& of) { *batch = work.make(of.at); };
    pool_->add(job);
    pending_.push_back({from, std::move(job), std::move(batch)});
  }
}

trainer::Batch DataLoader::finish(Pending pending) {
  if (pending.job != nullptr) {
    if (!pool_->wait(*pending.job, options_.timeout)) {
      forget();
      pool_->stop(0);
      pool_.reset();
      throw late(*pending.job, options_.timeout);
    }
    if (pending.job->error) {
      forget();
      std::rethrow_exception(pending.job->error);
    }
    if (pending_.empty() && !options_.persistent_workers) pool_.reset();
  }
  if (!options_.device.is_cpu())
    for (auto& tensor : pending.batch->tensors) tensor = tensor.to(options_.device, options_.non_blocking);
  return std::move(*pending.batch);
}

std::vector<std::int64_t> epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                         static_cast<std::uint32_t>(epoch)};
  std::mt19937_64 generator(sequence);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(i, generator)]);
  return order;
}

BatchPlan::BatchPlan(std::int64_t samples, std::int64_t batch_size, LastBatch last, std::int64_t multiple)
    : batch_size_(batch_size), samples_(samples) {
  const std::int64_t whole = std::max(batch_size, multiple);
  if (last != LastBatch::keep) samples_ = (samples + (last == LastBatch::fill ? whole - 1 : 0)) / whole * whole;
  batches_ = (samples_ + batch_size - 1) / batch_size;
}

Share BatchPlan::share(std::int64_t batch, int rank, int ranks) const {
  const std::int64_t begin = std::min(batch, batches_) * batch_size_;
  const std::int64_t left = std::min(batch_size_ * ranks, samples_ - begin) - rank;
  return {begin + rank, ranks, left > 0 ? (left + ranks - 1) / ranks : 0};
}

struct PoolState {
  using JobState = Job::State;

  std::mutex mutex;
  std::condition_variable work, done;  ///< there is something to begin, or nothing more; something has ended
  std::deque<std::shared_ptr<Job>> waiting;
  std::vector<std::shared_ptr<Job>> running;
  int threads = 0;
  bool stopped = false;

  void run() {
    pthread_setname_np(pthread_self(), "fp8-data");
    std::unique_lock lock(mutex);
    for (;;) {
      work.wait(lock, [&] { return stopped || !waiting.empty(); });
      if (stopped) break;
      const std::shared_ptr<Job> job = std::move(waiting.front());
      waiting.pop_front();
      job->state = JobState::running;
      running.push_back(job);
      lock.unlock();
      try {
        job->work(*job);
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      job->state = JobState::done;
      std::erase(running, job);
      done.notify_all();
    }
    --threads;
    done.notify_all();
  }
};

WorkerPool::WorkerPool(int threads) : state_(std::make_shared<PoolState>()), process_(::getpid()) {
  try {
    for (int i = 0; i < threads; ++i) {
      {
        const std::lock_guard lock(state_->mutex);
        ++state_->threads;
      }
      try {
        threads_.emplace_back([state = state_] { state->run(); });
      } catch (...) {
        const std::lock_guard lock(state_->mutex);
        --state_->threads;
        throw;
      }
    }
  } catch (const std::system_error& error) {
    const std::size_t started = threads_.size();
    stop(1);
    io::fail<std::runtime_error>("[data] num_workers: the system gives {} threads of {} ({})", started, threads,
                                 error.what());
  }
}

WorkerPool::~WorkerPool() {
  if (is_forked()) {  // their destructors would wait for threads that are not here: left to the end of the process
    new std::shared_ptr<PoolState>(std::move(state_));
    new std::vector<std::thread>(std::move(threads_));
    return;
  }
  stop(5);
}

bool WorkerPool::is_forked() const { return ::getpid() != process_; }

void WorkerPool::check_process() const {
  if (is_forked())
    io::fail<std::logic_error>(
        "[data] this loader's threads are in process {}, from which this one was forked: make another loader here, or "
        "use num_workers 0",
        process_);
}

void WorkerPool::add(const std::shared_ptr<Job>& job) {
  check_process();
  const std::lock_guard lock(state_->mutex);
  state_->waiting.push_back(job);
  state_->work.notify_one();
}

void WorkerPool::drop(const std::shared_ptr<Job>& job) {
  check_process();
  const std::lock_guard lock(state_->mutex);
  std::erase(state_->waiting, job);
}

bool WorkerPool::wait(const Job& job, double seconds) {
  check_process();
  std::unique_lock lock(state_->mutex);
  const auto is_done = [&] { return job.state == Job::State::done; };
  if (seconds > 0) return state_->done.wait_for(lock, std::chrono::duration<double>(seconds), is_done);
  state_->done.wait(lock, is_done);
  return true;
}

bool WorkerPool::stop(double seconds) {
  check_process();
  if (threads_.empty()) return unfinished_.empty();
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->stopped = true;
    state_->waiting.clear();
    state_->work.notify_all();
    ended = state_->done.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state_->threads == 0; });
    unfinished_ = state_->running;
  }
  for (auto& thread : threads_) ended ? thread.join() : thread.detach();
  threads_.clear();
  return ended;
}

}  // namespace fp8::data
