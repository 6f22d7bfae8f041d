# SPDX-License-Identifier: Apache-2.0
# fp8::utf8proc: Unicode's tables (categories, decompositions, lower case, graphemes) for the tokenizers.
find_path(FP8_UTF8PROC_INCLUDE_DIR utf8proc.h)
find_library(FP8_UTF8PROC_LIBRARY utf8proc)
if(NOT FP8_UTF8PROC_INCLUDE_DIR OR NOT FP8_UTF8PROC_LIBRARY)
  message(FATAL_ERROR "fp8: utf8proc (utf8proc.h, libutf8proc) not found; run ./tools/setup or install libutf8proc-dev")
endif()
add_library(fp8::utf8proc INTERFACE IMPORTED GLOBAL)
target_include_directories(fp8::utf8proc SYSTEM INTERFACE ${FP8_UTF8PROC_INCLUDE_DIR})
target_link_libraries(fp8::utf8proc INTERFACE ${FP8_UTF8PROC_LIBRARY})
