# SPDX-License-Identifier: Apache-2.0
# The last step of `cmake --install`: lib/fp8/ gets the libraries that ours need and a machine may lack, readable for
# everybody, so that what root installs runs for every user and in any place.
#   FP8_INSTALL_LIBTORCH   LibTorch's (440 MB)
#   FP8_BUNDLE             the system's too (zlib, PCRE2, libpng, ...) with their licences, but for those of libc and g++
# Both are the cache's unless given: cmake -DFP8_BUNDLE=ON -DCMAKE_INSTALL_PREFIX=DIR -P <build>/cmake_install.cmake
foreach(option FP8_INSTALL_LIBTORCH FP8_BUNDLE)
  if(NOT DEFINED ${option})
    set(${option} ${${option}_DEFAULT})
  endif()
endforeach()
set(prefix $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX})
if(NOT FP8_INSTALL_LIBTORCH)
  return()
endif()

# Asked are those of the build folder, which know the LibTorch that they were built against.
file(GLOB libraries RELATIVE ${prefix}/lib ${prefix}/lib/libfp8_*.so)
list(TRANSFORM libraries PREPEND ${FP8_BUILD_LIBRARIES}/)
file(GET_RUNTIME_DEPENDENCIES LIBRARIES ${libraries}
  RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing CONFLICTING_DEPENDENCIES_PREFIX conflicts
  PRE_EXCLUDE_REGEXES "^libfp8_" "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)[.]so" "^ld-linux")
if(missing)
  message(FATAL_ERROR "install: found no library for ${missing}")
endif()

# The folder of a wheel's LibTorch has what it needs in <root>/lib or, of some builds, in <root>/../torch.libs.
get_filename_component(wheel ${FP8_TORCH_ROOT} DIRECTORY)
set(system "")
foreach(file IN LISTS found)
  string(REPLACE ${FP8_BUILD_LIBRARIES}/fp8/ ${FP8_TORCH_ROOT}/lib/ file ${file})  # a link to it
  string(FIND ${file} ${wheel}/ inside)
  if(NOT inside EQUAL 0)
    list(APPEND system ${file})
    continue()
  endif()
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/fp8 TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${file})
endforeach()
if(NOT FP8_BUNDLE)
  return()
endif()

find_program(PATCHELF patchelf REQUIRED)
foreach(file IN LISTS system)
  get_filename_component(name ${file} NAME)
  get_filename_component(real ${file} REALPATH)
  set(copy ${CMAKE_INSTALL_PREFIX}/lib/fp8/${name})
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/fp8 TYPE PROGRAM RENAME ${name} FILES ${real})
  # They find each other beside themselves.
  execute_process(COMMAND ${PATCHELF} --set-rpath "$ORIGIN" $ENV{DESTDIR}${copy} COMMAND_ERROR_IS_FATAL ANY)
  # Debian keeps the licence of a library with its package, and some packages' files in /lib.
  get_filename_component(real ${real} NAME)
  execute_process(COMMAND dpkg -S "*/${real}" OUTPUT_VARIABLE owner ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX REPLACE "[:,].*" "" package "${owner}")
  if(package AND EXISTS /usr/share/doc/${package}/copyright)
    file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/share/doc/fp8/licenses TYPE FILE RENAME ${package}
      FILES /usr/share/doc/${package}/copyright)
  endif()
endforeach()
file(GLOB torch ${wheel}/torch-*.dist-info/licenses/LICENSE ${wheel}/torch-*.dist-info/LICENSE)
if(torch)
  list(GET torch 0 torch)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/share/doc/fp8/licenses TYPE FILE RENAME libtorch FILES ${torch})
endif()
