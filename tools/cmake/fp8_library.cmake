# SPDX-License-Identifier: Apache-2.0
# fp8_add_library(name SOURCES ... [LINK ...] [PRIVATE_LINK ...]): the shared library fp8_<name>, alias and export
# fp8::<name>. LINK is what its headers need, PRIVATE_LINK what only its sources need.
# Shared, because a static archive drops registrations (TORCH_LIBRARY) that nobody refers to.
function(fp8_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "fp8_add_library(${name}): unknown argument '${ARG_UNPARSED_ARGUMENTS}', allowed: SOURCES, LINK, PRIVATE_LINK")
  endif()
  add_library(fp8_${name} SHARED ${ARG_SOURCES})
  add_library(fp8::${name} ALIAS fp8_${name})
  set_target_properties(fp8_${name} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    INSTALL_RPATH "$ORIGIN;${FP8_TORCH_ROOT}/lib")
  target_link_libraries(fp8_${name} PUBLIC fp8_flags ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  install(TARGETS fp8_${name} EXPORT fp8Targets LIBRARY DESTINATION lib)
endfunction()
