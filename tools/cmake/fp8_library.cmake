# SPDX-License-Identifier: Apache-2.0
# fp8_add_library(name SOURCES ... LINK ...): the shared library fp8_<name>, alias and export fp8::<name>.
function(fp8_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(fp8_${name} SHARED ${ARG_SOURCES})
  add_library(fp8::${name} ALIAS fp8_${name})
  set_target_properties(fp8_${name} PROPERTIES EXPORT_NAME ${name} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    INSTALL_RPATH "$ORIGIN")
  target_link_libraries(fp8_${name} PUBLIC fp8_flags ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  install(TARGETS fp8_${name} EXPORT fp8Targets)
endfunction()
