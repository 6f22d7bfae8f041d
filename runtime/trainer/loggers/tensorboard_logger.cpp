// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/trainer/loggers/tensorboard_logger.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::trainer {
namespace {

constexpr std::array<std::uint32_t, 256> kCrcOfByte = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

// Protocol buffers: a field is a key (number << 3 | wire type) and its value.
enum class Wire : std::uint8_t { varint = 0, bits64 = 1, bytes = 2, bits32 = 5 };

template <class T>
void put_fixed(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int number, Wire wire) {
  put_varint(out, static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(wire));
}

void put_bytes(std::string& out, int number, std::string_view value) {
  put_key(out, number, Wire::bytes);
  put_varint(out, value.size());
  out += value;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

std::string record(const std::string& event) {
  std::string out;
  put_fixed(out, static_cast<std::uint64_t>(event.size()));
  put_fixed(out, masked(crc32c(out)));
  out += event;
  put_fixed(out, masked(crc32c(event)));
  return out;
}

std::string event_at(double wall_time) {
  std::string event;
  put_key(event, 1, Wire::bits64);
  put_fixed(event, std::bit_cast<std::uint64_t>(wall_time));
  return event;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char byte : bytes) crc = kCrcOfByte[(crc ^ static_cast<std::uint8_t>(byte)) & 0xff] ^ crc >> 8;
  return ~crc;
}

std::string version_record(double wall_time) {
  std::string event = event_at(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return record(event);
}

std::string scalars_record(double wall_time, std::int64_t step,
                           const std::vector<std::pair<std::string, float>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, Wire::bits32);
    put_fixed(value, std::bit_cast<std::uint32_t>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = event_at(wall_time);
  put_key(event, 2, Wire::varint);
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, 5, summary);
  return record(event);
}

namespace {

constexpr char kPrefix[] = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

}  // namespace

TensorBoardLogger::TensorBoardLogger(std::filesystem::path folder)
    : folder_(std::move(folder)), first_rank_(io::is_first_process()) {
  std::error_code error;
  if (first_rank_ && !std::filesystem::create_directories(folder_, error) && error)
    io::fail(folder_, "can't be made: " + error.message());
}

void TensorBoardLogger::begin(const std::string& name) { file_ = std::make_unique<LogFile>(folder_ / name); }

io::Json TensorBoardLogger::state() const {
  if (file_ == nullptr) return {{"file", nullptr}, {"bytes", 0}};
  return {{"file", file_->path().filename().string()}, {"bytes", file_->size()}};
}

void TensorBoardLogger::load_state(const io::Json& state) {
  const auto& file = state.at("file");
  const auto bytes = state.at("bytes").get<std::uint64_t>();
  if (!first_rank_) return;
  const auto kept = file.is_null() ? std::string() : file.get<std::string>();
  if (!kept.empty() && (!kept.starts_with(kPrefix) || kept.find('/') != std::string::npos))
    io::fail(folder_, "checkpoint: file '" + io::printable(kept) + "', allowed: " + kPrefix + "...");
  file_.reset();
  if (kept.empty()) return;
  if (!std::filesystem::exists(folder_ / kept)) io::fail(folder_ / kept, "is not there, but the checkpoint names it");
  begin(kept);
  file_->truncate(bytes);
}

void TensorBoardLogger::log_metrics(const io::Json& metrics, std::int64_t step) {
  if (!first_rank_) return;
  std::vector<std::pair<std::string, float>> scalars;
  for (const auto& [name, value] : metrics.items())
    if (value.is_number()) scalars.emplace_back(name, value.get<float>());
  if (scalars.empty()) return;
  const double now = wall_time();
  if (file_ == nullptr) {
    begin(kPrefix + std::to_string(static_cast<std::int64_t>(now)) + "." + host_name());
    file_->append(version_record(now));
  }
  file_->append(scalars_record(now, step, scalars));
}

void TensorBoardLogger::on_save_checkpoint(Trainer&, std::int64_t) {
  if (file_ != nullptr) file_->sync();
}

}  // namespace fp8::trainer
