# SPDX-License-Identifier: Apache-2.0
# fp8::yaml: libyaml, which has a pkg-config file and none for CMake.
find_path(FP8_YAML_INCLUDE_DIR yaml.h)
find_library(FP8_YAML_LIBRARY NAMES yaml)
if(NOT FP8_YAML_INCLUDE_DIR OR NOT FP8_YAML_LIBRARY)
  message(FATAL_ERROR "fp8: libyaml (yaml.h) not found; run ./tools/setup or install libyaml-dev")
endif()
add_library(fp8::yaml INTERFACE IMPORTED GLOBAL)
target_link_libraries(fp8::yaml INTERFACE ${FP8_YAML_LIBRARY})
target_include_directories(fp8::yaml SYSTEM INTERFACE ${FP8_YAML_INCLUDE_DIR})
