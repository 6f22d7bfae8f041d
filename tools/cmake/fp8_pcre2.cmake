# SPDX-License-Identifier: Apache-2.0
add_library(fp8_pcre2 INTERFACE IMPORTED GLOBAL)
add_library(fp8::pcre2 ALIAS fp8_pcre2)
find_path(FP8_PCRE2_INCLUDE_DIR pcre2.h REQUIRED)
find_library(FP8_PCRE2_LIBRARY pcre2-8 REQUIRED)
target_include_directories(fp8_pcre2 SYSTEM INTERFACE ${FP8_PCRE2_INCLUDE_DIR})
target_link_libraries(fp8_pcre2 INTERFACE ${FP8_PCRE2_LIBRARY})
