// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/pickle/pickle.h"

#include <cmath>

#include "fp8/runtime/io/pickle/pickle_machine.h"
#include "runtime/io/io_test.h"

namespace fp8::io {
namespace {

// Pickles are spelled in opcodes here, as pickletools names them.
PyValue read(const std::string& opcodes) { return read_pickle("\x80\x04" + opcodes, "f"); }
std::string opcodes_error(const std::string& opcodes) {
  return test::one_line_error<Error>([&] { read(opcodes); });
}
std::string bytes(const char* text, std::size_t size) { return {text, size}; }

TEST(PyValue, NamesItsType) {
  EXPECT_STREQ(PyValue().type_name(), "None");
  EXPECT_STREQ(PyValue(true).type_name(), "bool");
  EXPECT_STREQ(PyValue(1).type_name(), "int");
  EXPECT_STREQ(PyValue(1.0).type_name(), "float");
  EXPECT_STREQ(PyValue("x").type_name(), "str");
  EXPECT_STREQ(PyValue(PyList{}).type_name(), "list");
  EXPECT_STREQ(PyValue(PyTuple{}).type_name(), "tuple");
  EXPECT_STREQ(PyValue(PyDict{}).type_name(), "dict");
  EXPECT_STREQ(PyValue(NdArray{}).type_name(), "ndarray");
}

TEST(PyValue, Equality) {
  EXPECT_EQ(PyValue(1), PyValue(1));
  EXPECT_FALSE(PyValue(1) == PyValue(1.0));
  EXPECT_FALSE(PyValue(PyList{{1}}) == PyValue(PyTuple{{1}}));
  EXPECT_FALSE((PyValue(NdArray{{1, 2}, {1, 2}}) == PyValue(NdArray{{2, 1}, {1, 2}})));
  EXPECT_FALSE(PyValue(std::nan("")) == PyValue(std::nan("")));
}

TEST(PyDict, FindsFewAndManyKeysAndKeepsTheirOrder) {
  PyDict dict;
  for (int i = 0; i < 1000; ++i) {
    dict.insert("k" + std::to_string(i), i);
    dict.insert(std::int64_t{i}, -i);
    for (const int known : {0, i / 2, i}) {
      ASSERT_EQ(dict.at("k" + std::to_string(known)), PyValue(known));
      ASSERT_EQ(dict.at(std::int64_t{known}), PyValue(-known));
    }
    ASSERT_EQ(dict.find(std::int64_t{i + 1}), nullptr);
  }
  EXPECT_EQ(dict.size(), 2000u);
  EXPECT_EQ(dict.items()[1998].key, PyKey("k999"));
  EXPECT_IO_ERROR(dict.insert("k7", 0), "duplicate key 'k7'");
  EXPECT_IO_ERROR(dict.at(std::int64_t{1000}), "no key 1000");
}

TEST(Half, EveryFiniteCode) {
  for (int code = 0; code < 0x7c00; ++code) {
    // m * 2^-24 below 2^-14, else (1 + m / 1024) * 2^(e - 15)
    const int e = code >> 10, m = code & 1023;
    const double expected = e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
    ASSERT_EQ(half_to_float(static_cast<std::uint16_t>(code)), expected) << code;
    ASSERT_EQ(half_to_float(static_cast<std::uint16_t>(code | 0x8000)), -expected) << code;
  }
  EXPECT_TRUE(std::signbit(half_to_float(0x8000)));
  EXPECT_EQ(half_to_float(0x7c00), INFINITY);
  EXPECT_EQ(half_to_float(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(half_to_float(0x7e00)));
}

TEST(PickleRead, Numbers) {
  EXPECT_EQ(read("K\xff."), PyValue(255));
  EXPECT_EQ(read("M\xff\xff."), PyValue(65535));
  EXPECT_EQ(read("J\xfe\xff\xff\xff."), PyValue(-2));
  EXPECT_EQ(read(bytes("\x8a\x00.", 3)), PyValue(0));
  EXPECT_EQ(read("\x8a\x01\xff."), PyValue(-1));
  EXPECT_EQ(read(bytes("\x8a\x02\xff\x00.", 5)), PyValue(255));
  EXPECT_EQ(read(bytes("\x8a\x08\0\0\0\0\0\0\0\x80.", 11)), PyValue(std::numeric_limits<std::int64_t>::min()));
  EXPECT_EQ(read(bytes("G\x3f\xf8\0\0\0\0\0\0.", 10)), PyValue(1.5));
  EXPECT_EQ(read("\x88."), PyValue(true));
  EXPECT_EQ(read("\x89."), PyValue(false));
  EXPECT_EQ(read("N."), PyValue());
}

TEST(PickleRead, Containers) {
  EXPECT_EQ(read("(K\x01K\x02l."), PyValue(PyList{{1, 2}}));
  EXPECT_EQ(read("](K\x01K\x02"
                 "e."),
            PyValue(PyList{{1, 2}}));
  EXPECT_EQ(read("]K\x01"
                 "a."),
            PyValue(PyList{{1}}));
  EXPECT_EQ(read("K\x01K\x02\x86."), PyValue(PyTuple{{1, 2}}));
  EXPECT_EQ(read(")."), PyValue(PyTuple{}));
  PyDict dict;
  dict.insert("a", 1);
  dict.insert(std::int64_t{2}, PyValue());
  EXPECT_EQ(read("}(\x8c\x01"
                 "aK\x01K\x02Nu."),
            PyValue(dict));
  EXPECT_EQ(read("(\x8c\x01"
                 "aK\x01K\x02N"
                 "d."),
            PyValue(dict));
  EXPECT_EQ(read("}\x8c\x01"
                 "aK\x01sK\x02Ns."),
            PyValue(dict));
}

TEST(PickleRead, AnObjectNamedTwiceIsThereTwice) {
  EXPECT_EQ(read("]\x94(]\x94K\x07"
                 "ah\x01"
                 "e."),
            PyValue(PyList{{PyList{{7}}, PyList{{7}}}}));
}

TEST(PickleRefuses, EveryGlobalButNumpys) {
  const auto global = [](const std::string& module, const std::string& name) {
    return opcodes_error("c" + module + "\n" + name + "\n.");
  };
  EXPECT_EQ(global("os", "system"), "f: pickle byte 2: asks for 'os.system', which is not allowed (numpy arrays only)");
  EXPECT_THAT(global("posix", "system"), HasSubstr("'posix.system'"));
  EXPECT_THAT(global("builtins", "eval"), HasSubstr("'builtins.eval'"));
  EXPECT_THAT(global("builtins", "getattr"), HasSubstr("'builtins.getattr'"));
  EXPECT_THAT(global("numpy", "load"), HasSubstr("'numpy.load'"));
  EXPECT_THAT(global("numpy.core.multiarray", "fromfile"), HasSubstr("'numpy.core.multiarray.fromfile'"));
  EXPECT_THAT(global("numpy", "ndarray.tofile"), HasSubstr("'numpy.ndarray.tofile'"));
  EXPECT_THAT(opcodes_error("\x8c\x02os\x8c\x06system\x93."), HasSubstr("asks for 'os.system'"));
  EXPECT_THAT(opcodes_error("K\x01K\x02\x93."), HasSubstr("STACK_GLOBAL of something other than two strings"));
}

TEST(PickleRefuses, EveryOtherOpcodeByName) {
  const std::pair<const char*, const char*> refused[] = {
      {"ios\nsystem\n", "opcode INST (0x69)"}, {"o", "opcode OBJ (0x6f)"},
      {"\x81", "opcode NEWOBJ (0x81)"},        {"\x92", "opcode NEWOBJ_EX (0x92)"},
      {"\x82\x01", "opcode EXT1 (0x82)"},      {"Pid\n", "opcode PERSID (0x50)"},
      {"Q", "opcode BINPERSID (0x51)"},        {"\x8f", "opcode EMPTY_SET (0x8f)"},
      {"I1\n", "opcode INT (0x49)"},           {"U\x01x", "opcode SHORT_BINSTRING (0x55)"},
      {"\x97", "opcode NEXT_BUFFER (0x97)"},   {"\xff", "unknown opcode (0xff)"}};
  for (const auto& [opcodes, name] : refused)
    EXPECT_EQ(opcodes_error(std::string(opcodes) + "."),
              std::string("f: pickle byte 2: ") + name +
                  " is not allowed, expected dict, list, tuple, str, int, float, bool, None and numpy arrays only");
}

TEST(PickleRefuses, WhatNumpysGlobalsCouldBeMisusedFor) {
  const std::string ndarray = "cnumpy\nndarray\n", dtype = "cnumpy\ndtype\n",
                    reconstruct = "cnumpy.core.multiarray\n_reconstruct\n";
  EXPECT_THAT(opcodes_error(ndarray + ")R."), HasSubstr("a call of numpy.ndarray is not allowed"));
  EXPECT_THAT(opcodes_error(reconstruct + dtype + "NN\x87R."),
              HasSubstr("_reconstruct of something other than ndarray"));
  EXPECT_THAT(opcodes_error(reconstruct + ndarray + "NN\x87R."), HasSubstr("an array without its data"));
  EXPECT_THAT(opcodes_error(dtype + "\x8c\x03V99\x85R."),
              HasSubstr("dtype 'V99' is not allowed, expected one of f2, f4, f8, i4, i8"));
  EXPECT_THAT(opcodes_error(dtype + "\x8c\x02"
                                    "f4\x85R(K\x03\x8c\x01>tb."),
              HasSubstr("byte order '>' is not allowed"));
  EXPECT_THAT(opcodes_error(dtype + "."), HasSubstr("holds a function or class"));
  EXPECT_THAT(opcodes_error(dtype + "\x8c\x02"
                                    "f4\x85R."),
              HasSubstr("holds a dtype"));
  EXPECT_THAT(opcodes_error("C\x01x."), HasSubstr("holds bytes"));
  EXPECT_THAT(opcodes_error("K\x01)R."), HasSubstr("REDUCE of something that can't be called"));
  EXPECT_THAT(opcodes_error("}(K\x01ub."), HasSubstr("a key without its value"));
  EXPECT_THAT(opcodes_error("}}b."), HasSubstr("BUILD without a tuple"));
  EXPECT_THAT(opcodes_error("})b."), HasSubstr("BUILD of something other than an array or dtype"));
  EXPECT_THAT(opcodes_error("c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R."),
              HasSubstr("a call of bytes with arguments is not allowed"));
  EXPECT_THAT(opcodes_error("c_codecs\nencode\n\x8c\x01x\x8c\x03hex\x86R."),
              HasSubstr("_codecs.encode other than of a string to latin1"));
}

// _reconstruct(ndarray, (0,), b'b') with the given state.
std::string array(const std::string& shape, const std::string& data, const std::string& fortran = "\x89") {
  return "cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" +
         bytes(
             "K\0\x85"
             "C\x01"
             "b\x87R(K\x01",
             11) +
         shape +
         "cnumpy\ndtype\n\x8c\x02"
         "f4\x89\x88\x87R(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" +
         bytes("\0tb", 3) + fortran + data + "tb.";
}

TEST(PickleRead, Arrays) {
  EXPECT_EQ(read(array("K\x02\x85", bytes("C\x08\0\0\x80\x3f\0\0\0\x40", 10))), PyValue(NdArray{{2}, {1, 2}}));
  EXPECT_EQ(read(array(")", bytes("C\x04\0\0\x80\x3f", 6))), PyValue(NdArray{{}, {1}}));
  EXPECT_EQ(read(array(bytes("K\0K\x05\x86", 5), bytes("C\0", 2))), PyValue(NdArray{{0, 5}, {}}));
  // Columns first: 2 x 2 of 1 2 3 4 is [[1, 3], [2, 4]].
  EXPECT_EQ(read(array("K\x02K\x02\x86", bytes("C\x10\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 18), "\x88")),
            PyValue(NdArray{{2, 2}, {1, 3, 2, 4}}));
}

TEST(PickleRefuses, ArraysWhoseShapeLies) {
  EXPECT_THAT(opcodes_error(array("K\x03\x85", bytes("C\x04\0\0\x80\x3f", 6))),
              HasSubstr("an array of 4 bytes, its shape asks for 12"));
  EXPECT_THAT(opcodes_error(array("J\xff\xff\xff\xff\x85", bytes("C\0", 2))),
              HasSubstr("holds something other than sizes"));
  const std::string large = bytes("\x8a\x08\0\0\0\0\0\0\0\x40", 10);
  EXPECT_THAT(opcodes_error(array(large + large + "\x86", bytes("C\0", 2))), HasSubstr("shape overflows"));
  EXPECT_THAT(opcodes_error(array("K\x01", bytes("C\x04\0\0\0\0", 6))), HasSubstr("an array without its shape"));
  EXPECT_THAT(opcodes_error(array("K\x01\x85", "]")), HasSubstr("an array without its bytes"));
}

TEST(PickleRefuses, DamagedStreams) {
  EXPECT_IO_ERROR(read_pickle("", "f"), "f: pickle byte 0: ends within an opcode (cut short?)");
  EXPECT_IO_ERROR(read_pickle("N.", "f"), HasSubstr("does not start with PROTO (0x80)"));
  EXPECT_IO_ERROR(read_pickle("\x80\x01N.", "f"), HasSubstr("protocol 1, expected 2 to 5"));
  EXPECT_IO_ERROR(read_pickle("\x80\x06N.", "f"), HasSubstr("protocol 6, expected 2 to 5"));
  EXPECT_THAT(opcodes_error("."), HasSubstr("takes an object from an empty stack"));
  EXPECT_THAT(opcodes_error("NN."), HasSubstr("STOP with objects left on the stack"));
  EXPECT_THAT(opcodes_error("N.x"), HasSubstr("1 bytes after STOP"));
  EXPECT_THAT(opcodes_error("t."), HasSubstr("no MARK before it"));
  EXPECT_THAT(opcodes_error("](a."), HasSubstr("takes an object from an empty stack"));
  EXPECT_THAT(opcodes_error("NNa."), HasSubstr("APPEND to something other than a list"));
  EXPECT_THAT(opcodes_error("NNNs."), HasSubstr("SETITEM on something other than a dict"));
  EXPECT_THAT(opcodes_error("h\x07."), HasSubstr("memo entry 7 was never stored"));
  EXPECT_THAT(opcodes_error("Nr\xff\xff\xff\xff."), HasSubstr("memo entry 4294967295, expected at most 0"));
  EXPECT_THAT(opcodes_error("X\xff\xff\xff\xffx."), HasSubstr("ends within an opcode"));
  EXPECT_THAT(opcodes_error("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx."), HasSubstr("ends within an opcode"));
  EXPECT_THAT(opcodes_error("\x8c\x01\xff."), HasSubstr("a string that is not UTF-8"));
  EXPECT_THAT(opcodes_error("\x8a\x09"
                            "123456789."),
              HasSubstr("integer of 9 bytes, allowed at most 8"));
  EXPECT_THAT(opcodes_error("c" + std::string(300, 'x')), HasSubstr("GLOBAL without the end of its name"));
  EXPECT_THAT(opcodes_error("}(K\x01NK\x01Nu."), HasSubstr("duplicate key 1"));
  EXPECT_THAT(opcodes_error("}(NNu."), HasSubstr("a dict key that is neither str nor int"));
}

TEST(PickleRefuses, WhatWouldFillTheMemory) {
  std::string deep, bomb = "]\x94";
  for (int i = 0; i < 100'000; ++i) deep += ']';
  for (int i = 0; i < 99'999; ++i) deep += 'a';
  EXPECT_THAT(opcodes_error(deep + "."), HasSubstr("nested deeper than 64 levels"));
  EXPECT_THAT(opcodes_error("]\x94h" + bytes("\0", 1) + "a."),
              HasSubstr("nested deeper than 64 levels"));  // a list within itself
  // Each list holds the one before it eight times: 8^20 in all.
  for (char i = 0; i < 20; ++i) {
    bomb += "]\x94(";
    for (int j = 0; j < 8; ++j) bomb += std::string("h") + i;
    bomb += 'e';
  }
  // All 21 lists are on the stack; one more takes them in.
  EXPECT_THAT(opcodes_error("(" + bomb + "l."), HasSubstr("names the same objects so often"));
  const std::string many(std::size_t{9} << 20, 'N');
  EXPECT_THAT(opcodes_error("(" + many + "l."), HasSubstr("more than 8388608 objects"));
  std::string again = "N\x94(";
  for (std::size_t i = 0; i < (std::size_t{1} << 25); ++i) again += bytes("h\0", 2);
  EXPECT_THAT(opcodes_error(again + "l."), HasSubstr("more than 33554432 opcodes"));
}

PyValue everything() {
  PyDict inner, dict;
  inner.insert(std::int64_t{0}, NdArray{{2, 3}, {1, 2, 3, 4, 5, 6}});
  inner.insert(std::int64_t{-1}, NdArray{{0}, {}});
  dict.insert("None", PyValue());
  dict.insert("true", true);
  dict.insert("false", false);
  PyList numbers;
  for (const std::int64_t n :
       {0LL, 255LL, 256LL, -1LL, 2147483647LL, -2147483648LL, 2147483648LL, -9223372036854775807LL - 1})
    numbers.items.push_back(n);
  dict.insert("ints", numbers);
  dict.insert("floats", PyTuple{{0.1, -0.0, 1e300, std::numeric_limits<double>::infinity()}});
  dict.insert(
      "gr\xc3\xb6\xc3\x9f"
      "e",
      std::string("zero \0 inside", 13));
  dict.insert("arrays", inner);
  dict.insert("scalar", NdArray{{}, {0.25f}});
  dict.insert("empty", PyList{{PyList{}, PyTuple{}, PyDict{}, ""}});
  return dict;
}

TEST(PickleWrite, WhatIsWrittenIsRead) { EXPECT_EQ(read_pickle(write_pickle(everything(), "f"), "f"), everything()); }

TEST(PickleWrite, Refuses) {
  const auto refused = [](const PyValue& value) {
    return test::one_line_error<Error>([&] { write_pickle(value, "f"); });
  };
  EXPECT_EQ(refused("\xff"), "f: can't write '\\xff', which is not UTF-8");
  EXPECT_EQ(refused(NdArray{{3}, {1, 2}}), "f: array of 2 values, its shape asks for 3");
  EXPECT_EQ(refused(NdArray{{-1}, {}}), "f: array of an impossible shape");
  PyValue deep = PyList{};
  for (int i = 0; i < 100; ++i) deep = PyList{{deep}};
  EXPECT_EQ(refused(deep), "f: can't write values nested deeper than 64 levels");
}

}  // namespace
}  // namespace fp8::io
