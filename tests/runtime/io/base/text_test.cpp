// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/base/text.h"

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/base/registry.h"
#include "support/throws_with.h"

namespace fp8::io {
namespace {

using Words = std::vector<std::string>;
using Numbers = Registry<int>;

TEST(Joined, PutsASeparatorBetweenWords) {
  EXPECT_EQ(joined(Words{}), "");
  EXPECT_EQ(joined(Words{"tensor"}), "tensor");
  EXPECT_EQ(joined(Words{"tensor", "channel", "block"}), "tensor, channel, block");
  EXPECT_EQ(joined(Words{"a", "b"}, " or "), "a or b");
}

TEST(Joined, EmptyWordsKeepTheirPlace) { EXPECT_EQ(joined(Words{"", "b", ""}), ", b, "); }

TEST(Joined, TakesAnyRange) {
  const std::initializer_list<const char*> literals = {"SCALAR", "CONST"};
  EXPECT_EQ(joined(literals), "SCALAR, CONST");
  EXPECT_EQ(joined(std::set<std::string_view>{"b", "a"}), "a, b");
  EXPECT_EQ(joined(std::vector<std::int64_t>{-1, 0, 12}), "-1, 0, 12");
  struct Row {
    const char* name;
    int bytes;
  };
  constexpr Row kRows[] = {{"BF16", 2}, {"F32", 4}, {"F64", 8}};
  EXPECT_EQ(joined(kRows | std::views::transform(&Row::name)), "BF16, F32, F64");
  const auto large = [](const Row& row) { return row.bytes > 2; };
  EXPECT_EQ(joined(kRows | std::views::filter(large) | std::views::transform(&Row::bytes)), "4, 8");
}

TEST(Joined, OfTheFirstEndsInDotsWhereMoreFollow) {
  EXPECT_EQ(joined_first({"a", "b", "c"}, 2), "a, b, ...");
  EXPECT_EQ(joined_first({"a", "b"}, 2), "a, b");
  EXPECT_EQ(joined_first({}, 2), "");
}

TEST(ShellWord, IsInSingleQuotes) {
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b$c"), "'a b$c'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
  EXPECT_EQ(shell_word("it's", R"(\')"), R"('it\'s')");
}

TEST(ShapeText, IsAListInBrackets) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({2, 0, 3}), "[2, 0, 3]");
}

TEST(IsName, TakesLettersDigitsAndTheOthersNamed) {
  EXPECT_TRUE(is_name("kv_cache", "_"));
  EXPECT_TRUE(is_name("2by4", ""));
  EXPECT_FALSE(is_name("", "_"));
  EXPECT_FALSE(is_name("a-b", "_"));
  EXPECT_FALSE(is_name("Max", ""));
  EXPECT_FALSE(is_name("\xC3\xA4", ""));
}

TEST(IsFileName, TakesNothingThatLeadsElsewhere) {
  for (const char* name : {"a", "a.b", "..a", "a..", "{epoch}-{step}", "\xC3\xA4"})
    EXPECT_TRUE(is_file_name(name)) << name;
  for (const char* name : {"", ".", "..", "/", "a/b", "../a", "/a", "a/", "a\\b"})
    EXPECT_FALSE(is_file_name(name)) << name;
  EXPECT_FALSE(is_file_name(std::string_view("a\0b", 3)));
}

TEST(Case, IsThatOfAsciiLettersAlone) {
  EXPECT_EQ(lower("MaxAbs_HW 2 \xC3\x84@[`{"), "maxabs_hw 2 \xC3\x84@[`{");
  EXPECT_EQ(upper("MaxAbs_HW 2 \xC3\xA4@[`{"), "MAXABS_HW 2 \xC3\xA4@[`{");
}

// RFC 3629's definition the long way round: every code point has exactly one encoding, by its number of bits.
std::string encode(std::uint32_t code) {
  std::string out;
  const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const std::uint32_t lead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(lead[extra] + code / (1u << (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) out += static_cast<char>(0x80 + code / (1u << (6 * i)) % 64);
  return out;
}

TEST(Utf8, EveryCodePointGoesThereAndBack) {
  for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    const std::string text = encode(code);
    std::string ours;
    utf8_append(ours, code);
    ASSERT_EQ(ours, text) << code;
    ASSERT_EQ(utf8_length(text, 0), text.size()) << code;
    ASSERT_EQ(utf8_decode(text, 0, text.size()), code);
  }
}

TEST(Utf8, NothingElseOfUpToThreeBytesIsValid) {
  std::vector<bool> valid(1 << 24, false);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::uint32_t key = 0;
    const std::string text = encode(code);
    for (const char c : text) key = key << 8 | static_cast<unsigned char>(c);
    if (text.size() == 3) valid[key] = true;
  }
  for (std::uint32_t key = 0; key < 1 << 24; ++key) {
    const std::string text = {static_cast<char>(key >> 16), static_cast<char>(key >> 8), static_cast<char>(key)};
    ASSERT_EQ(utf8_length(text, 0) == 3, valid[key]) << std::hex << key;
  }
}

TEST(Utf8, Refuses) {
  const char* bad[] = {"\x80",
                       "\xc0\x80",
                       "\xc1\xbf",
                       "\xe0\x80\x80",
                       "\xed\xa0\x80",
                       "\xf0\x80\x80\x80",
                       "\xf4\x90\x80\x80",
                       "\xf5\x80\x80\x80",
                       "\xff",
                       "\xc3",
                       "\xe2\x82",
                       "\xf0\x9f\x98"};
  for (const char* text : bad) EXPECT_FALSE(is_utf8(text));
  EXPECT_TRUE(
      is_utf8("gr\xc3\xb6\xc3\x9f"
              "e \xf0\x9f\x98\x80"));
}

Numbers::Pointer number(int value) { return std::make_shared<const int>(value); }

TEST(Registry, RowsAreThoseBuiltInThenThoseThatLive) {
  Numbers table(std::map<std::string, int>{{"one", 1}, {"two", 2}});
  Numbers::Pointer kept;
  {
    const Numbers::Entry three(table, "three", number(3));
    EXPECT_THAT(table.names(), ElementsAre("one", "two", "three"));
    EXPECT_EQ(three.row(), 3);
    kept = table.find("three");
  }
  EXPECT_EQ(table.find("three"), nullptr);
  EXPECT_EQ(*kept, 3);
  EXPECT_EQ(*table.find_if([](const auto& row) { return *row.row > 1; }), 2);
}

TEST(Registry, ANameStandsOnce) {
  Numbers table;
  const Numbers::Entry one(table, "one", number(1));
  EXPECT_EQ(
      test::error_of<std::invalid_argument>([&] { const Numbers::Entry entry(table, "one", number(2), "taken"); }),
      "taken");
  const auto refuse = [](const auto& rows) { throw std::invalid_argument(rows[0].name + " stands before"); };
  EXPECT_EQ(test::error_of([&] { const Numbers::Entry entry(table, "two", number(2), "", refuse); }),
            "one stands before");
  EXPECT_THAT(table.names(), ElementsAre("one"));
}

// Against the numbers of the reference library (libxxhash 0.8.1, XXH64 with seed 0).

/// Byte i is (i * i + 7 * i) mod 251.
std::string pattern(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i * i + 7 * i) % 251);
  return bytes;
}

constexpr std::pair<std::size_t, const char*> kSums[] = {
    {0, "ef46db3751d8e999"},    {1, "e934a84adb052768"},    {3, "bb3a592908a981a8"},  {4, "798a8b758de10b9c"},
    {7, "c524fe6186d68234"},    {8, "628b254fd17d4862"},    {31, "7d36fafd7e8f54d5"}, {32, "8ca809248427ab85"},
    {33, "701316fef6f836d3"},   {63, "abdc7bc152c8c7f4"},   {64, "134758ba0f580486"}, {100, "3553324796eea83a"},
    {1000, "e83f2963bc234754"}, {65541, "7222e51c39c60f9a"}};

TEST(Checksum, IsXxh64) {
  EXPECT_EQ(checksum_text(checksum("abc")), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_text(checksum("Nobody inspects the spammish repetition")), "fbcea83c8a378bf1");
  for (const auto& [size, sum] : kSums) EXPECT_EQ(checksum_text(checksum(pattern(size))), sum) << size;
}

TEST(Checksum, PiecesMakeNoDifference) {
  const std::string bytes = pattern(1000);
  for (std::size_t piece : {1u, 5u, 31u, 32u, 33u, 64u, 999u}) {
    Checksum sum;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      sum.value();  // may be asked at any time
      sum.update(bytes.data() + at, std::min(piece, bytes.size() - at));
    }
    EXPECT_EQ(checksum_text(sum.value()), "e83f2963bc234754") << piece;
  }
}

TEST(Checksum, OneBitOrTheOrderMatters) {
  const std::string text = "sixteen bytes..., and five";
  for (std::size_t i = 0; i < text.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      auto other = text;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_NE(checksum(other), checksum(text));
    }
  EXPECT_NE(checksum("aaaaaaaabbbbbbbb"), checksum("bbbbbbbbaaaaaaaa"));
}

// Against the test vectors of FNV's authors (Fowler, Noll, Vo).

std::string of_bytes(std::string_view bytes) {
  Fnv hash;
  hash.add(bytes.data(), bytes.size());
  return hash.text();
}

TEST(Fnv, IsFnv1a) {
  EXPECT_EQ(of_bytes(""), "cbf29ce484222325");
  EXPECT_EQ(of_bytes("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(of_bytes("foobar"), "85944171f73967e8");
}

TEST(Fnv, TextsEndInAZero) {
  Fnv hash;
  hash.add("foobar");
  EXPECT_EQ(hash.text(), "34531ca7168b8f38");
  Fnv parts, whole;
  parts.add("foo"), parts.add("bar"), whole.add("foobar");
  EXPECT_NE(parts.value(), whole.value());
}

TEST(Fnv, FloatsAreTheirBytes) {
  const std::vector<float> values = {1.0f, -2.5f};
  Fnv hash;
  hash.add(values);
  EXPECT_EQ(hash.text(), of_bytes({reinterpret_cast<const char*>(values.data()), 8}));
}

TEST(Fnv, AStepTakesAWholeWord) {
  Fnv hash, byte;
  hash.step('a'), byte.add("a", 1);
  EXPECT_EQ(hash.value(), byte.value());
  hash.step(0x0102030405060708u);
  EXPECT_EQ(hash.value(), (byte.value() ^ 0x0102030405060708u) * 0x100000001b3u);
}

// Against the vectors of NIST (FIPS 180-4's examples, SHA256ShortMsg, SHA256LongMsg's million) and of RFC 4231.

std::string digits_of(const std::string& bytes) {
  std::string digits;
  for (const unsigned char byte : bytes)
    for (const int shift : {4, 0}) digits += "0123456789abcdef"[byte >> shift & 15];
  return digits;
}

TEST(Sha256, IsNists) {
  EXPECT_EQ(digits_of(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digits_of(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digits_of(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digits_of(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, HmacIsRfc4231s) {
  EXPECT_EQ(hmac_sha256(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac_sha256("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace fp8::io
