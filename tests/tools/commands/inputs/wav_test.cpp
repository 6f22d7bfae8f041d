// SPDX-License-Identifier: Apache-2.0
// WAV files: values against the formulas of the formats, and everything that is refused.
#include <cmath>
#include <cstring>
#include <limits>

#include "fp8/runtime/io/base/file.h"
#include "fp8/tools/commands/inputs/script_input.h"
#include "support/matchers.h"

namespace fp8::commands {
namespace {

template <class T>
std::string bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string chunk(const std::string& id, const std::string& data) {
  return id + bytes(static_cast<std::uint32_t>(data.size())) + data +
         (data.size() % 2 == 1 ? std::string(1, '\0') : "");
}

struct Header {
  std::uint16_t format = 1, channels = 1;
  std::uint32_t rate = 16000;
  std::uint16_t bits = 16;
  int frame_bytes = -1;

  std::string text() const {
    const auto frame = static_cast<std::uint16_t>(frame_bytes >= 0 ? frame_bytes : channels * (bits / 8));
    return bytes(format) + bytes(channels) + bytes(rate) + bytes(rate * frame) + bytes(frame) + bytes(bits);
  }
};

std::string wav(const Header& header, const std::string& data, const std::string& before = "") {
  const std::string body = "WAVE" + chunk("fmt ", header.text()) + before + chunk("data", data);
  return "RIFF" + bytes(static_cast<std::uint32_t>(body.size())) + body;
}

std::string wav_error(const std::string& file) {
  try {
    parse_wav(file, "a.wav");
  } catch (const io::Error& error) {
    EXPECT_THAT(error.what(), StartsWith("a.wav: "));
    return error.what();
  }
  return "accepted";
}

TEST(Wav, SixteenBitSamplesAreMultiplesOfTwoToTheMinus15) {
  const auto file = wav(
      {}, bytes<std::int16_t>(0) + bytes<std::int16_t>(-32768) + bytes<std::int16_t>(32767) + bytes<std::int16_t>(-1));
  const Wav sound = parse_wav(file, "a.wav");
  EXPECT_EQ(sound.sample_rate, 16000);
  EXPECT_EQ(sound.channels, 1);
  EXPECT_THAT(sound.samples, ElementsAre(0.0f, -1.0f, 32767.0f / 32768.0f, -1.0f / 32768.0f));
}

TEST(Wav, OtherWidths) {
  EXPECT_THAT(parse_wav(wav({.bits = 8}, std::string("\x00\x80\xFF\x81", 4)), "").samples,
              ElementsAre(-1.0f, 0.0f, 127.0f / 128, 1.0f / 128));
  // 24 bits, low byte first: 0x000001, 0xFFFFFF = -1, 0x800000 = -2^23, 0x7FFFFF
  const std::string three("\x01\x00\x00\xFF\xFF\xFF\x00\x00\x80\xFF\xFF\x7F", 12);
  EXPECT_THAT(parse_wav(wav({.bits = 24}, three), "").samples,
              ElementsAre(0x1p-23f, -0x1p-23f, -1.0f, 8388607.0f / 8388608.0f));
  const auto four = bytes<std::int32_t>(1 << 30) + bytes<std::int32_t>(std::numeric_limits<std::int32_t>::min());
  EXPECT_THAT(parse_wav(wav({.bits = 32}, four), "").samples, ElementsAre(0.5f, -1.0f));
  EXPECT_THAT(parse_wav(wav({.format = 3, .bits = 32}, bytes(0.1f) + bytes(-3.5f)), "").samples,
              ElementsAre(0.1f, -3.5f));
}

TEST(Wav, ChannelsAreAveraged) {
  std::string data;
  for (const int value : {100, 300, -7, -8}) data += bytes(static_cast<std::int16_t>(value));
  const Wav sound = parse_wav(wav({.channels = 2, .rate = 8000}, data), "");
  EXPECT_EQ(sound.channels, 2);
  EXPECT_EQ(sound.sample_rate, 8000);
  EXPECT_THAT(sound.samples, ElementsAre(200.0f / 32768, -7.5f / 32768));
}

TEST(Wav, ExtensibleFormatNamesItsRealOne) {
  std::string guid =
      bytes<std::uint16_t>(1) + std::string("\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71", 14);
  const std::string format = Header{.format = 0xFFFE}.text() + bytes<std::uint16_t>(22) + bytes<std::uint16_t>(16) +
                             bytes<std::uint32_t>(4) + guid;
  const auto file = [](const std::string& f) {
    return "RIFF" + bytes(0u) + "WAVE" + chunk("fmt ", f) + chunk("data", bytes<std::int16_t>(16384));
  };
  EXPECT_THAT(parse_wav(file(format), "").samples, ElementsAre(0.5f));
  EXPECT_THAT(wav_error(file(format.substr(0, 26))), HasSubstr("extensible"));
}

TEST(Wav, OtherChunksArePassedOverWithTheirPadByte) {
  EXPECT_THAT(parse_wav(wav({}, bytes<std::int16_t>(16384), chunk("LIST", "abc") + chunk("junk", "")), "").samples,
              ElementsAre(0.5f));
}

TEST(Wav, WhatIsRefused) {
  const std::string two = bytes<std::int16_t>(1);
  EXPECT_THAT(wav_error(""), HasSubstr("no RIFF/WAVE header"));
  EXPECT_THAT(wav_error("RIFX0000WAVEfmt "), HasSubstr("no RIFF/WAVE header"));
  EXPECT_THAT(wav_error(wav({.format = 2}, two)), HasSubstr("found format 2"));
  EXPECT_THAT(wav_error(wav({.bits = 12}, two)), HasSubstr("of 12 bits"));
  EXPECT_THAT(wav_error(wav({.format = 3, .bits = 16}, two)), HasSubstr("found format 3 of 16 bits"));
  EXPECT_THAT(wav_error(wav({.channels = 0}, two)), HasSubstr("0 channels"));
  EXPECT_THAT(wav_error(wav({.channels = 65}, two)), HasSubstr("65 channels"));
  EXPECT_THAT(wav_error(wav({.rate = 0}, two)), HasSubstr("sampling rate of 0"));
  EXPECT_THAT(wav_error(wav({.frame_bytes = 4}, two + two)), HasSubstr("4 bytes per frame"));
  EXPECT_THAT(wav_error(wav({}, two + "x")), HasSubstr("a multiple of the frame's 2"));
  EXPECT_THAT(wav_error(wav({}, "")), HasSubstr("no samples"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("data", two)), HasSubstr("before 'fmt '"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("fmt ", "0123456789")), HasSubstr("found 10 bytes"));
  EXPECT_THAT(wav_error("RIFF0000WAVE" + chunk("fmt ", Header().text())), HasSubstr("no chunk 'data'"));
  EXPECT_THAT(wav_error(wav({.format = 3, .bits = 32}, bytes(std::numeric_limits<float>::quiet_NaN()))),
              HasSubstr("frame 0: found NaN"));
}

TEST(Wav, AFileCutAnywhereIsRefused) {
  const std::string whole = wav({}, std::string(64, 'a'), chunk("LIST", "ab"));
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(wav_error(whole.substr(0, length)), "accepted") << length;
}

TEST(Wav, AHeaderThatPromisesMoreThanTheFileHolds) {
  std::string file = wav({}, std::string(8, 'a'));
  const std::uint32_t huge = 0xFFFFFFF0u;
  std::memcpy(file.data() + file.size() - 12, &huge, 4);
  EXPECT_THAT(wav_error(file), HasSubstr("its header says 4294967280"));
}

}  // namespace
}  // namespace fp8::commands
