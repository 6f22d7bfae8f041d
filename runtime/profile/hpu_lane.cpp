// SPDX-License-Identifier: Apache-2.0
// An activity profiler of Kineto's. A trace is kept in memory until it is written: beside the log's 56 bytes a leaf is
// two activities of 32, and a third where the bytes in use change; their text is made when it is written.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <unistd.h>

#include "fp8/runtime/device/device.h"
#include "fp8/runtime/io/json/json.h"
#include "fp8/runtime/profile/hpu_profiler.h"

namespace fp8::runtime {
namespace {

using libkineto::ActivityType;

constexpr const char *kModules = "fp8:modules", *kNumbers = "fp8:numbers", *kMemory = "fp8:memory";

/// How far the clocks of a leaf and its op may differ: beyond that the op is another's.
constexpr std::int64_t kSkewNs = 5000;

std::string text(const std::string& value) { return '"' + trace_text(value) + '"'; }

bool within(const LoggedLeaf& leaf, const libkineto::ITraceActivity& op) {
  return leaf.begin_ns >= op.timestamp() - kSkewNs && leaf.end_ns <= op.timestamp() + op.duration() + kSkewNs;
}

/// "[\"Float\", ..]", "[[8, 32], ..]".
std::string types_of(const std::vector<LeafTensor>& list) {
  std::string out;
  for (const LeafTensor& t : list) out += (out.empty() ? "\"" : ", \"") + std::string(c10::toString(t.type)) + "\"";
  return "[" + out + "]";
}

std::string sizes_of(const std::vector<LeafTensor>& list) {
  std::string out;
  for (const LeafTensor& t : list) out += fmt::format("{}[{}]", out.empty() ? "" : ", ", fmt::join(t.sizes, ", "));
  return "[" + out + "]";
}

class Activity : public libkineto::ITraceActivity {
 public:
  /// number: of the leaf in its trace, from 1. op: null where none is known.
  Activity(const LoggedLeaf& leaf, std::uint32_t number, const libkineto::ITraceActivity* op)
      : leaf_(leaf), op_(op), number_(number) {}

  int64_t deviceId() const override { return leaf_.kind->device; }
  int64_t resourceId() const override { return 0; }
  int32_t getThreadId() const override { return static_cast<int32_t>(leaf_.thread); }
  /// The op's clock is another than the leaf's, and brought to this one by a straight line: within some 100 ns.
  int64_t timestamp() const override {
    return op_ == nullptr ? leaf_.begin_ns : std::clamp(leaf_.begin_ns, op_->timestamp(), end_of_op());
  }
  int64_t duration() const override {
    return (op_ == nullptr ? leaf_.end_ns : std::clamp(leaf_.end_ns, op_->timestamp(), end_of_op())) - timestamp();
  }
  int64_t correlationId() const override { return static_cast<int64_t>(leaf_.correlation); }
  int flowType() const override { return libkineto::kLinkAsyncCpuGpu; }
  int64_t flowId() const override { return op_ == nullptr ? 0 : number_; }
  bool flowStart() const override { return false; }
  ActivityType type() const override { return ActivityType::HPU_OP; }
  const std::string name() const override { return trace_text(leaf_.kind->op); }
  const ITraceActivity* linkedActivity() const override { return op_; }
  const libkineto::TraceSpan* traceSpan() const override { return nullptr; }
  void log(libkineto::ActivityLogger& logger) const override { logger.handleActivity(*this); }
  const std::string metadataJson() const override;

 protected:
  const LoggedLeaf& leaf() const { return leaf_; }
  const ITraceActivity& op() const { return *op_; }

 private:
  int64_t end_of_op() const { return op_->timestamp() + op_->duration(); }

  const LoggedLeaf& leaf_;
  const ITraceActivity* op_;
  std::uint32_t number_;
};

const std::string Activity::metadataJson() const {
  const LeafKind& kind = *leaf_.kind;
  std::string out = fmt::format(
      R"("module": {}, "phase": {}, "backward": {}, "Input type": {}, "Input Dims": {}, "Output type": {}, )"
      R"("Output Dims": {}, "bytes": {}, "flops": {}, "stream": 0, "device": {})",
      text(kind.module), text(kind.phase), kind.backward, types_of(kind.inputs), sizes_of(kind.inputs),
      types_of(kind.outputs), sizes_of(kind.outputs), kind.bytes, kind.flops, static_cast<int>(kind.device));
  if (kind.host) out += R"(, "host": true)";
  if (leaf_.amax >= 0) out += fmt::format(R"(, "amax": {})", io::Json(leaf_.amax).dump());
  if (leaf_.saturated >= 0) out += fmt::format(R"(, "saturated": {})", io::Json(leaf_.saturated).dump());
  if (leaf_.saturated_2 >= 0) out += fmt::format(R"(, "saturated_2": {})", io::Json(leaf_.saturated_2).dump());
  return out;
}

/// The moment at which an op hands over: the arrow's beginning.
class Launch : public Activity {
 public:
  using Activity::Activity;
  int64_t deviceId() const override { return op().deviceId(); }
  int64_t resourceId() const override { return op().resourceId(); }
  int64_t duration() const override { return 0; }
  bool flowStart() const override { return true; }
  ActivityType type() const override { return ActivityType::PRIVATEUSE1_RUNTIME; }
  const std::string name() const override { return "hpuLaunch"; }
  const std::string metadataJson() const override { return ""; }
};

/// Bytes in use after a leaf.
class InUse : public Activity {
 public:
  explicit InUse(const LoggedLeaf& leaf) : Activity(leaf, 0, nullptr) {}
  int64_t timestamp() const override { return leaf().end_ns; }
  int64_t duration() const override { return 0; }
  int64_t correlationId() const override { return 0; }
  int flowType() const override { return 0; }
  ActivityType type() const override { return ActivityType::MTIA_COUNTERS; }
  const std::string name() const override { return "memory in use"; }
  const std::string metadataJson() const override { return ""; }
  /// Until the next one is asked.
  const std::vector<std::pair<std::string, double>>& counterValues() const override {
    thread_local std::vector<std::pair<std::string, double>> values(1, {"bytes", 0});
    values[0].second = static_cast<double>(leaf().in_use);
    return values;
  }
};

/// Keeps the activities of a trace as long as Kineto keeps the trace. It is none itself.
struct Kept : libkineto::GenericTraceActivity {
  std::shared_ptr<const LeafLog> log;
  std::deque<Activity> leaves;
  std::deque<Launch> launches;
  std::deque<InUse> counters;
};

struct Last {
  std::mutex mutex;
  std::shared_ptr<const LeafLog> log;
};

Last& last() {
  static Last& last = *new Last;
  return last;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(LeafLogOptions options) : log_(std::make_shared<LeafLog>(options)) {}

  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    listening_.emplace(*log_);
    const std::lock_guard lock(last().mutex);
    last().log = log_;
  }
  void stop() override {
    listening_.reset();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger&) override {}  // the other one is called
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback op_of, int64_t,
                    int64_t) override;

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{0, libkineto::kExceedMaxPid, name_of_device(0), "hpu"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> streams;
    for (int device = 0; device < device_count(); ++device) streams.push_back({0, 0, device, "stream 0"});
    return streams;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { open_correlations().push_back(id); }
  void popCorrelationId() override { pop(); }
  void pushUserCorrelationId(uint64_t id) override { open_correlations().push_back(id); }
  void popUserCorrelationId() override { pop(); }

 private:
  static void pop() {
    if (!open_correlations().empty()) open_correlations().pop_back();
  }
  static std::string name_of_device(int device) {
    return fmt::format("hpu {} (emulated {})", device, name_of(device_kind()));
  }

  std::shared_ptr<LeafLog> log_;
  std::optional<Listening> listening_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

void Session::processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback op_of, int64_t,
                           int64_t) {
  auto kept = std::make_unique<Kept>();
  kept->log = log_;
  std::int64_t in_use = -1;
  std::uint32_t number = 0;
  static const std::deque<LoggedLeaf> none;
  for (const LoggedLeaf& leaf : log_->on_hpu() ? log_->leaves() : none) {
    const auto* op = leaf.correlation == 0 ? nullptr : op_of(static_cast<int32_t>(leaf.correlation));
    if (op != nullptr && !within(leaf, *op)) op = nullptr;
    logger.handleActivity(kept->leaves.emplace_back(leaf, ++number, op));
    if (op != nullptr) logger.handleActivity(kept->launches.emplace_back(leaf, number, op));
    if (leaf.in_use != in_use) logger.handleActivity(kept->counters.emplace_back(leaf));
    in_use = leaf.in_use;
  }
  for (int device = 1; device < device_count(); ++device)
    logger.handleDeviceInfo({device, libkineto::kExceedMaxPid + device, name_of_device(device), "hpu"}, 0);
  if (log_->dropped() > 0)
    TORCH_WARN("[profiler] ", log_->dropped(), " leaves beyond the first ", log_->leaves().size(),
               " are not in the trace, nor is what follows their step");
  buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
  buffer_->activities.push_back(std::move(kept));
}

class Lane final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "hpu";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types = {ActivityType::HPU_OP};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    if (!types.contains(ActivityType::HPU_OP)) return nullptr;
    const auto asked = [&](const char* word) { return config.getCustomConfig().find(word) != std::string::npos; };
    return std::make_unique<Session>(LeafLogOptions{asked(kModules), asked(kNumbers), asked(kMemory)});
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

[[maybe_unused]] const bool g_registered = [] {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Lane>(); });
  return true;
}();

}  // namespace

std::string trace_text(std::string value) {
  for (char& c : value)
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20) c = c == '"' ? '\'' : '/';
  const std::string quoted = io::Json(value).dump(-1, ' ', false, io::Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

void add_to_trace(const std::string& key, std::int64_t value) {
  libkineto::api().activityProfiler().addMetadata(key, std::to_string(value));
}

std::string lane_words(const LeafLogOptions& options) {
  std::string words;
  for (const auto& [wanted, word] :
       {std::pair(options.modules, kModules), std::pair(options.numbers, kNumbers), std::pair(options.memory, kMemory)})
    if (wanted) words += (words.empty() ? "" : " ") + std::string(word);
  return words;
}

std::shared_ptr<const LeafLog> last_leaf_log() {
  const std::lock_guard lock(last().mutex);
  return last().log;
}

}  // namespace fp8::runtime
