# SPDX-License-Identifier: Apache-2.0
# fp8::pcre2: PCRE2 with 8-bit code units; it runs the tokenizers' regular expressions.
find_path(FP8_PCRE2_INCLUDE_DIR pcre2.h)
find_library(FP8_PCRE2_LIBRARY pcre2-8)
if(NOT FP8_PCRE2_INCLUDE_DIR OR NOT FP8_PCRE2_LIBRARY)
  message(FATAL_ERROR "fp8: PCRE2 (pcre2.h, libpcre2-8) not found; run ./tools/setup or install libpcre2-dev")
endif()
add_library(fp8::pcre2 INTERFACE IMPORTED GLOBAL)
target_include_directories(fp8::pcre2 SYSTEM INTERFACE ${FP8_PCRE2_INCLUDE_DIR})
target_link_libraries(fp8::pcre2 INTERFACE ${FP8_PCRE2_LIBRARY})
