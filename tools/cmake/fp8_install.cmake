# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` copies, and the package file that find_package(fp8 CONFIG) reads:
#   bin/fp8   lib/libfp8_*.so   include/fp8/<folder>/**.h   include/fp8/{version,fp8}.h   lib/cmake/fp8/
# Libraries install themselves (fp8_add_library). Highway's *-inl.h stay home: they are no interface.
include(CMakePackageConfigHelpers)
set(FP8_CMAKE_DIR lib/cmake/fp8)

install(TARGETS fp8_flags fp8_fp8 EXPORT fp8Targets)
install(EXPORT fp8Targets NAMESPACE fp8:: DESTINATION ${FP8_CMAKE_DIR})

foreach(folder runtime recipes configs measure quant transformer_engine)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION include/fp8
    FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "gloo_stub" EXCLUDE)
endforeach()
install(FILES ${FP8_INCLUDE_DIR}/fp8/version.h ${FP8_INCLUDE_DIR}/fp8/fp8.h DESTINATION include/fp8)

if(TARGET fp8)
  set_target_properties(fp8 PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  set_target_properties(fp8_program PROPERTIES INSTALL_RPATH "$ORIGIN;${FP8_TORCH_ROOT}/lib")
  install(TARGETS fp8 fp8_program RUNTIME DESTINATION bin LIBRARY DESTINATION lib)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/tools/text ${PROJECT_SOURCE_DIR}/tools/models DESTINATION include/fp8/tools
    FILES_MATCHING PATTERN "*.h" PATTERN "*-inl.h" EXCLUDE PATTERN "gloo_stub" EXCLUDE)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/fp8Config.cmake.in
  ${PROJECT_BINARY_DIR}/fp8Config.cmake INSTALL_DESTINATION ${FP8_CMAKE_DIR} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fp8ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fp8Config.cmake ${PROJECT_BINARY_DIR}/fp8ConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_torch.cmake DESTINATION ${FP8_CMAKE_DIR})
