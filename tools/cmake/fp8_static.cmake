# SPDX-License-Identifier: Apache-2.0
# With FP8_STATIC: what find_library() and find_package() look for from here on are static archives, and how the one
# program is linked. It runs on any x86-64 Linux: no interpreter, no library, no dlopen, no locale, no name service.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(FP8_TORCH_ROOT "")

# fp8_object_libraries(target result): the libraries of ours that `target` needs, itself first. Objects come along only
# where they are named: CMake hands on what a library of objects needs, but not their objects.
function(fp8_object_libraries target result)
  set(pending ${target})
  set(found "")
  while(pending)
    list(POP_FRONT pending library)
    if(TARGET ${library})
      get_target_property(real ${library} ALIASED_TARGET)
      if(real)
        set(library ${real})
      endif()
    endif()
    if(library MATCHES "^fp8_" AND TARGET ${library} AND NOT library IN_LIST found)
      get_target_property(type ${library} TYPE)
      if(type STREQUAL OBJECT_LIBRARY)
        list(APPEND found ${library})
        get_target_property(links ${library} LINK_LIBRARIES)
        list(APPEND pending ${links})
      endif()
    endif()
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# fp8_add_static_program(name source library): bin/fp8-static. What nobody calls of the archives is left out.
function(fp8_add_static_program name source library)
  add_executable(${name} ${source})
  fp8_object_libraries(${library} libraries)
  target_link_libraries(${name} PRIVATE ${libraries})
  foreach(part IN LISTS libraries)
    target_compile_options(${part} PRIVATE -ffunction-sections -fdata-sections)
  endforeach()
  target_link_options(${name} PRIVATE -static-pie LINKER:--gc-sections LINKER:--fatal-warnings)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME fp8-static INSTALL_RPATH "")  # one with a RUNPATH does not start
endfunction()
