// SPDX-License-Identifier: Apache-2.0
// See pattern.h. PCRE2 knows the script of each character; what Unicode has changed since version 9 stands here.
#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>

#include "fp8/runtime/io/base/text.h"
#include "fp8/tools/text/pattern.h"

namespace fp8::text {
namespace {

// Those of Unicode 9 but Han, the frequent ones first.
constexpr const char* kScripts =
    "Latin Common Cyrillic Greek Arabic Hebrew Devanagari Thai Hangul Inherited Bopomofo Coptic Armenian Syriac "
    "Thaana Nko Samaritan Mandaic Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala Lao "
    "Tibetan Myanmar Georgian Ethiopic Cherokee Canadian_Aboriginal Ogham Runic Tagalog Hanunoo Buhid Tagbanwa "
    "Khmer Mongolian Limbu Tai_Le New_Tai_Lue Buginese Tai_Tham Balinese Sundanese Batak Lepcha Ol_Chiki Braille "
    "Glagolitic Tifinagh Yi Lisu Vai Bamum Syloti_Nagri Phags_Pa Saurashtra Kayah_Li Rejang Javanese Cham "
    "Tai_Viet Meetei_Mayek Linear_B Lycian Carian Old_Italic Gothic Old_Permic Ugaritic Old_Persian Deseret "
    "Shavian Osmanya Osage Elbasan Caucasian_Albanian Linear_A Cypriot Imperial_Aramaic Palmyrene Nabataean "
    "Hatran Phoenician Lydian Meroitic_Hieroglyphs Meroitic_Cursive Kharoshthi Old_South_Arabian "
    "Old_North_Arabian Manichaean Avestan Inscriptional_Parthian Inscriptional_Pahlavi Psalter_Pahlavi Old_Turkic "
    "Old_Hungarian Brahmi Kaithi Sora_Sompeng Chakma Mahajani Sharada Khojki Multani Khudawadi Grantha Newa "
    "Tirhuta Siddham Modi Takri Ahom Warang_Citi Pau_Cin_Hau Bhaiksuki Marchen Cuneiform Egyptian_Hieroglyphs "
    "Anatolian_Hieroglyphs Mro Bassa_Vah Pahawh_Hmong Miao Tangut Duployan SignWriting Mende_Kikakui Adlam";

struct Range {
  std::uint32_t first, last;
};

// Characters that Unicode has had since version 9; what lies between is none.
constexpr Range kLater[] = {
    {0x560, 0x560},     {0x588, 0x588},     {0x5EF, 0x5EF},     {0x61D, 0x61D},     {0x7FD, 0x7FF},
    {0x860, 0x89F},     {0x8B5, 0x8B5},     {0x8BE, 0x8D3},     {0x9FC, 0x9FE},     {0xA76, 0xA76},
    {0xAFA, 0xAFF},     {0xB55, 0xB55},     {0xC04, 0xC04},     {0xC3C, 0xC3C},     {0xC5D, 0xC5D},
    {0xC77, 0xC77},     {0xC84, 0xC84},     {0xCDD, 0xCDD},     {0xD00, 0xD00},     {0xD04, 0xD04},
    {0xD3B, 0xD3C},     {0xD81, 0xD81},     {0xE86, 0xE86},     {0xE89, 0xE89},     {0xE8C, 0xE8C},
    {0xE8E, 0xE93},     {0xE98, 0xE98},     {0xEA0, 0xEA0},     {0xEA8, 0xEA9},     {0xEAC, 0xEAC},
    {0xEBA, 0xEBA},     {0x170D, 0x170D},   {0x1715, 0x171F},   {0x180F, 0x180F},   {0x1878, 0x1878},
    {0x1ABF, 0x1ACE},   {0x1B4C, 0x1B4C},   {0x1B7D, 0x1B7E},   {0x1C90, 0x1CBF},   {0x1CF7, 0x1CF7},
    {0x1CFA, 0x1CFA},   {0x1DF6, 0x1DFA},   {0x20BF, 0x20C0},   {0x23FF, 0x23FF},   {0x2B97, 0x2B97},
    {0x2BBA, 0x2BBC},   {0x2BC9, 0x2BC9},   {0x2BD2, 0x2BEB},   {0x2BF0, 0x2BFF},   {0x2C2F, 0x2C2F},
    {0x2C5F, 0x2C5F},   {0x2E45, 0x2E5D},   {0x312E, 0x312F},   {0x31BB, 0x31BF},   {0x32FF, 0x32FF},
    {0x4DB6, 0x4DBF},   {0x9FD6, 0x9FFF},   {0xA7AF, 0xA7AF},   {0xA7B8, 0xA7F6},   {0xA82C, 0xA82C},
    {0xA8FE, 0xA8FF},   {0xAB66, 0xAB6B},   {0xFBC2, 0xFBC2},   {0xFD40, 0xFD4F},   {0xFDCF, 0xFDCF},
    {0xFDFE, 0xFDFF},   {0x1019C, 0x1019C}, {0x1032D, 0x1032F}, {0x10570, 0x105BC}, {0x10780, 0x107BA},
    {0x10A34, 0x10A35}, {0x10A48, 0x10A48}, {0x10D00, 0x10D39}, {0x10E80, 0x10FF6}, {0x11070, 0x11075},
    {0x110C2, 0x110CD}, {0x11144, 0x11147}, {0x111CE, 0x111CF}, {0x1133B, 0x1133B}, {0x1145A, 0x1145A},
    {0x1145E, 0x11461}, {0x116B8, 0x116B9}, {0x1171A, 0x1171A}, {0x11740, 0x1183B}, {0x11900, 0x11ABF},
    {0x11D00, 0x11FFF}, {0x12F90, 0x12FF2}, {0x13430, 0x13438}, {0x16A70, 0x16AC9}, {0x16E40, 0x16E9A},
    {0x16F45, 0x16F4F}, {0x16F7F, 0x16F87}, {0x16FE1, 0x16FF1}, {0x187ED, 0x187F7}, {0x18AF3, 0x1AFFE},
    {0x1B002, 0x1B2FB}, {0x1CF00, 0x1CFC3}, {0x1D1E9, 0x1D1EA}, {0x1D2E0, 0x1D2F3}, {0x1D372, 0x1D378},
    {0x1DF00, 0x1DF1E}, {0x1E100, 0x1E7FE}, {0x1E94B, 0x1E94B}, {0x1EC71, 0x1ED3D}, {0x1F10D, 0x1F10F},
    {0x1F12F, 0x1F12F}, {0x1F16C, 0x1F16F}, {0x1F1AD, 0x1F1AD}, {0x1F260, 0x1F265}, {0x1F6D3, 0x1F6DF},
    {0x1F6F7, 0x1F6FC}, {0x1F7D5, 0x1F7F0}, {0x1F8B0, 0x1F90F}, {0x1F91F, 0x1F91F}, {0x1F928, 0x1F92F},
    {0x1F931, 0x1F932}, {0x1F93F, 0x1F93F}, {0x1F94C, 0x1F94F}, {0x1F95F, 0x1F97F}, {0x1F992, 0x1F9BF},
    {0x1F9C1, 0x1FBF9}, {0x2A6D7, 0x2A6DF}, {0x2B735, 0x2B738}, {0x2CEB0, 0x2EBE0}, {0x30000, 0x3134A}};

// Hiragana and Katakana are Han. Two of the same stand in the text.
std::string expression() {
  std::string result = R"(\A(?:[\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}]{2})";
  std::istringstream names(kScripts);
  for (std::string name; names >> name;) result += "|\\p{sc:" + name + "}{2}";
  return result + ")";
}

Pattern make_pattern() {
  static const io::Json nothing;
  return Pattern::regex(expression(), JsonPart(nothing, "UnicodeScripts"));
}

bool is_later(std::uint32_t c) {
  const auto* const found =
      std::find_if(std::begin(kLater), std::end(kLater), [c](Range range) { return c <= range.last; });
  return found != std::end(kLater) && c >= found->first;
}

// A character that has now the script that `c` had in Unicode 9.
std::uint32_t as_in_unicode_9(std::uint32_t c) {
  if (c == 0x589 || c == 0x61C) return '!';
  if (c == 0x953 || c == 0x954) return 0x905;  // Devanagari
  return c == 0x30FC ? 0x4E00 : c;             // the mark of long vowels counts as Han
}

bool is_latin(std::uint32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

}  // namespace

Scripts::Scripts() : same_(make_pattern()) {}

bool Scripts::same(std::uint32_t a, std::uint32_t b) const {
  if (a == ' ' || b == ' ') return false;
  if (a < 0x80 && b < 0x80) return is_latin(a) == is_latin(b);
  if (is_later(a) || is_later(b)) return false;
  std::string text;
  io::utf8_append(text, static_cast<char32_t>(as_in_unicode_9(a)));
  io::utf8_append(text, static_cast<char32_t>(as_in_unicode_9(b)));
  return same_.found_in(text);
}

}  // namespace fp8::text
