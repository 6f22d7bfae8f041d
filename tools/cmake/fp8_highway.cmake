# SPDX-License-Identifier: Apache-2.0
# fp8::hwy: the packaged Highway, by its own CMake package where there is one, else by pkg-config's names.
add_library(fp8_hwy INTERFACE IMPORTED GLOBAL)
add_library(fp8::hwy ALIAS fp8_hwy)
find_path(FP8_HWY_INCLUDE_DIR hwy/highway.h REQUIRED)
find_library(FP8_HWY_LIBRARY hwy REQUIRED)
target_include_directories(fp8_hwy SYSTEM INTERFACE ${FP8_HWY_INCLUDE_DIR})
target_link_libraries(fp8_hwy INTERFACE ${FP8_HWY_LIBRARY})
