# SPDX-License-Identifier: Apache-2.0
# cmake -DWORK=<scratch folder> -P layering_self_test.cmake: runs layering_test.cmake on small trees made here, one
# clean and one per kind of violation, and fails unless it passes the first and names file, line and reason of the rest.
cmake_minimum_required(VERSION 3.22)

# Writes `text` as WORK/tree/<file>, and further files and texts after it, checks that tree; sets rc and output.
function(check file text rc output)
  file(REMOVE_RECURSE ${WORK}/tree)
  file(WRITE ${WORK}/tree/${file} "${text}")
  set(more ${ARGN})
  while(more)
    list(POP_FRONT more other contents)
    file(WRITE ${WORK}/tree/${other} "${contents}")
  endwhile()
  execute_process(COMMAND ${CMAKE_COMMAND} -DROOT=${WORK}/tree -P ${CMAKE_CURRENT_LIST_DIR}/layering_test.cmake
    RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  set(${rc} ${code} PARENT_SCOPE)
  string(REGEX REPLACE "[ \n]+" " " out "${out}")  # message() wraps its lines
  set(${output} "${out}" PARENT_SCOPE)
endfunction()

function(expect_clean file text)
  check(${file} "${text}" rc output ${ARGN})
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "a legal tree was refused: ${file}: ${output}")
  endif()
endfunction()

function(expect_violation file text expected)
  check(${file} "${text}" rc output ${ARGN})
  if(rc EQUAL 0)
    message(FATAL_ERROR "not found: ${file}: ${text}")
  endif()
  string(FIND "${output}" "${expected}" position)
  if(position EQUAL -1)
    message(FATAL_ERROR "expected '${expected}' in: ${output}")
  endif()
endfunction()

expect_clean(quant/good.cpp "#include <vector>\n#include <torch/nn.h>\n#include \"fp8/recipes/scaling.h\"\n#include \"fp8/version.h\"\n")
expect_clean(tools/good.cpp "#include \"fp8/fp8.h\"\n#include \"fp8/quant/quant.h\"\n")
expect_clean(tools/commands/train/good.cpp "#include \"fp8/transformer_engine/te.h\"\n")
expect_clean(recipes/good.h "#include \"fp8/runtime/kernels/format.h\"\n// #include \"fp8/quant/model/convert.h\"\n")
expect_clean(runtime/kernels/good.cpp "int a[2]; // [;]\n#include \"fp8/runtime/kernels/format.h\"\n")

expect_violation(runtime/device/bad.cpp "// first\n#include \"fp8/recipes/scaling.h\"\n"
  "runtime/device/bad.cpp:2: #include \"fp8/recipes/scaling.h\" <- runtime must not know recipes")
expect_violation(quant/bad.h "int a[] = {1};\n\n  # include <fp8/tools/text/tokenizer.h>\n"
  "quant/bad.h:3: # include <fp8/tools/text/tokenizer.h> <- quant must not know tools")
expect_violation(measure/bad.cpp "#include \"fp8/fp8.h\"\n" "measure/bad.cpp:1: #include \"fp8/fp8.h\" <- it includes every folder")
expect_violation(configs/bad.cpp "#include \"../measure/observers/observer.h\"\n" "<- spell it fp8/<folder>/...")
expect_violation(runtime/kernels/bad.cpp "#include <ATen/core/Tensor.h>\n" "<- runtime/kernels is torch-free")
expect_violation(runtime/io/bad.h "#include <c10/util/Exception.h>\n" "<- runtime/io is torch-free")
expect_violation(recipes/bad.h "#include \"torch/torch.h\"\n" "<- recipes is torch-free")
expect_violation(recipes/bad.cpp "#include \"fp8/runtime/device/block.h\"\n" "<- recipes is torch-free, that header is not")
expect_clean(tools/commands/measure/good.cpp "#include <ATen/core/Tensor.h>\n")
expect_violation(tools/commands/quantize/bad.cpp "#include <ATen/core/Tensor.h>\n" "<- a command on files runs without LibTorch")
expect_violation(tools/commands/measure/bad.cpp "#include \"fp8/transformer_engine/te.h\"\n"
  "tools/commands/measure/bad.cpp:1: #include \"fp8/transformer_engine/te.h\" <- training stands above it")
expect_violation(runtime/device/bad.cpp "#include \"fp8/runtime/data/data_loader.h\"\n" "<- training stands above it")
expect_violation(runtime/bad.cpp "#include \"fp8/kernels/cast.h\"\n" "<- no such folder")
expect_violation(quant/bad.cpp "#include <vector>\nTORCH_LIBRARY_FRAGMENT(fp8, m) { m.def(1) }\n" "quant/bad.cpp:2: TORCH_LIBRARY_FRAGMENT(fp8, m)")
expect_clean(quant/good.cpp "#include <vector>\nbool b = name.find(\".experts.\") == 0\n")
expect_violation(quant/bad.cpp "#include <vector>\nbool b = m.name.find(\"experts.\") == 0\n" "quant/bad.cpp:2: ")

set(order "add_subdirectory(scheme)\nadd_subdirectory(plan)\n")
expect_clean(quant/plan/good.cpp "#include \"fp8/quant/scheme/scheme.h\"\n#include \"fp8/quant/plan/plan.h\"\n"
  quant/CMakeLists.txt "${order}")
expect_violation(quant/scheme/bad.cpp "#include \"fp8/quant/plan/plan.h\"\n"
  "quant/scheme/bad.cpp:1: #include \"fp8/quant/plan/plan.h\" <- quant/scheme must not know quant/plan"
  quant/CMakeLists.txt "${order}")
expect_violation(quant/plan/bad.cpp "#include \"fp8/quant/quant.h\"\n" "<- it stands above the folders of quant"
  quant/CMakeLists.txt "${order}")
set(order "add_subdirectory(cast)\nadd_subdirectory(gemm)\n")
expect_clean(runtime/kernels/cast/good.cpp "#include \"fp8/runtime/kernels/format.h\"\n"
  runtime/kernels/CMakeLists.txt "${order}")
expect_violation(runtime/kernels/bad.h "#include \"fp8/runtime/kernels/cast/loop.h\"\n"
  "<- it stands below the folders of runtime/kernels" runtime/kernels/CMakeLists.txt "${order}")
expect_violation(quant/plan/a.h "#include \"fp8/quant/plan/b.h\"\n" "quant/plan/a.h: in a circle of headers"
  quant/plan/b.h "#include \"fp8/quant/plan/a.h\"\n")

expect_violation(README.md "no sources" "no source files")
