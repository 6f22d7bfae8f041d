# SPDX-License-Identifier: Apache-2.0
# fp8::hwy: the packaged Highway (>= 1.0.3, Debian 12). Its headers and library are looked up directly, because the
# CMake package of Debian 12 carries no targets.
find_path(FP8_HWY_INCLUDE_DIR hwy/highway.h)
if(FP8_STATIC)  # headers alone: what we use of it is in them
  set(FP8_HWY_LIBRARY "")
else()
  find_library(FP8_HWY_LIBRARY hwy)
endif()
if(NOT FP8_HWY_INCLUDE_DIR OR NOT FP8_HWY_LIBRARY AND NOT FP8_STATIC)
  message(FATAL_ERROR "fp8: Highway (hwy/highway.h, libhwy) not found; run ./tools/setup or install libhwy-dev")
endif()
add_library(fp8::hwy INTERFACE IMPORTED GLOBAL)
target_include_directories(fp8::hwy SYSTEM INTERFACE ${FP8_HWY_INCLUDE_DIR})
target_link_libraries(fp8::hwy INTERFACE ${FP8_HWY_LIBRARY})
