# SPDX-License-Identifier: Apache-2.0
# fp8::yaml: yaml-cpp, whose target has another name from 0.8 on (Debian 12 has 0.7, Debian 13 0.8).
find_package(yaml-cpp REQUIRED)
add_library(fp8::yaml INTERFACE IMPORTED GLOBAL)
if(FP8_STATIC)
  find_library(FP8_YAML_LIBRARY yaml-cpp REQUIRED)
  target_link_libraries(fp8::yaml INTERFACE ${FP8_YAML_LIBRARY})
elseif(TARGET yaml-cpp::yaml-cpp)
  target_link_libraries(fp8::yaml INTERFACE yaml-cpp::yaml-cpp)
else()
  target_link_libraries(fp8::yaml INTERFACE yaml-cpp)
endif()
