# SPDX-License-Identifier: Apache-2.0
# What is installed beside programs, libraries and headers, the target `uninstall`, and the .deb's fields:
#   share/fp8/presets/   QUANT_CONFIGs      share/fp8/recipes/   recipes of training      share/fp8/schema/   JSON Schema
#   share/doc/fp8/       README, LICENSE, NOTICE, CHANGELOG, copyright      lib/pkgconfig/fp8.pc
#   share/man/man1/ and completions of bash, zsh and fish, as the program that was built prints them
set(json ${PROJECT_SOURCE_DIR}/configs/json/)
install(DIRECTORY ${json} DESTINATION share/fp8/presets FILES_MATCHING PATTERN "*.json" PATTERN "recipe_*" EXCLUDE
  PATTERN "*.schema.json" EXCLUDE)
install(DIRECTORY ${json} DESTINATION share/fp8/recipes FILES_MATCHING PATTERN "recipe_*.json")
install(FILES ${json}quant_config.schema.json DESTINATION share/fp8/schema)
# The README without links and pictures, whose targets are not installed.
file(READ ${PROJECT_SOURCE_DIR}/README.md readme)
string(REGEX REPLACE "!\\[([^]]*)\\]\\([^)]*\\)\n*" "" readme "${readme}")
string(REGEX REPLACE "\\[([^]]*)\\]\\(([^):]*)\\)" "\\1" readme "${readme}")
file(WRITE ${PROJECT_BINARY_DIR}/share/README.md "${readme}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/README.md)
install(FILES ${PROJECT_BINARY_DIR}/share/README.md DESTINATION share/doc/fp8)
foreach(file LICENSE NOTICE CHANGELOG.md CITATION.cff)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/${file} DESTINATION share/doc/fp8)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/.reuse/dep5 DESTINATION share/doc/fp8 RENAME copyright)

if(FP8_BUILD_TOOLS AND NOT FP8_STATIC)
  install(CODE "set(FP8_PROGRAM \"$<TARGET_FILE:fp8>\")\nset(FP8_PAGES \"${PROJECT_BINARY_DIR}/pages\")")
  install(SCRIPT ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_terminal.cmake)
endif()

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall VERBATIM COMMAND ${CMAKE_COMMAND}
    -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt -P ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_uninstall.cmake)
  # tools/release gives cpack a tree that is installed already, with all that it needs inside.
  set(CPACK_PACKAGE_VENDOR "the fp8 authors")
  set(CPACK_PACKAGE_CONTACT "the fp8 authors <noreply@example.org>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "measure, quantize and run neural networks in 8-bit floating point")
  set(CPACK_PACKAGE_DESCRIPTION "One program, no Python and no accelerator: it measures what values a model's tensors take,\nwrites fp8 checkpoints that vLLM, transformers and Gaudi's tools load, and judges them.\nLibTorch is inside.")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES OFF)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.35), libstdc++6 (>= 12), libgcc-s1")
  set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # read by the dpkg of Debian 12 and Ubuntu 22.04
  include(CPack)
endif()
if(FP8_STATIC)
  return()
endif()

# Where LibTorch lies as seen from lib/pkgconfig: for people whose build asks pkg-config.
set(FP8_PC_TORCH "\${libdir}/fp8")
if(NOT FP8_INSTALL_LIBTORCH)
  set(FP8_PC_TORCH ${FP8_TORCH_ROOT}/lib)
endif()
configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/fp8.pc.in ${PROJECT_BINARY_DIR}/fp8.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fp8.pc DESTINATION lib/pkgconfig)
