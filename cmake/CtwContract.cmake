# The contract's identity: a hash of every header that the program and libctworker_cuda.so must share, as a
# string that is compiled into both. The build runs this file as a script, which writes the string:
#
#   cmake -DROOT=SOURCES -DOUT=GENERATED/kernels/contract.h -P CtwContract.cmake
#
# When included, this file lists the headers in ctw_contract_headers.
if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.22)
  set(again "")
else()
  set(ROOT ${PROJECT_SOURCE_DIR})
  set(again CONFIGURE_DEPENDS)
endif()
file(GLOB ctw_contract_headers ${again} ${ROOT}/base/status.h ${ROOT}/kernels/*.h
  ${ROOT}/kernels/formats/*.h ${ROOT}/kernels/formats/*/*.h)
list(SORT ctw_contract_headers)
if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

set(all "")
foreach(header ${ctw_contract_headers})
  file(RELATIVE_PATH name ${ROOT} ${header})
  file(SHA256 ${header} hash)
  string(APPEND all "${hash} ${name}\n")
  file(STRINGS ${header} lines REGEX "^ *# *include *\"")
  foreach(line ${lines})
    string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included "${line}")
    if(NOT "${ROOT}/${included}" IN_LIST ctw_contract_headers)
      message(FATAL_ERROR "${name} includes ${included}, which the contract's identity does not cover: "
                          "list it in cmake/CtwContract.cmake")
    endif()
  endforeach()
endforeach()
string(SHA256 identity "${all}")
string(SUBSTRING ${identity} 0 16 identity)
file(WRITE ${OUT} "/* Written by cmake/CtwContract.cmake. */\n#define CTW_CONTRACT \"${identity}\"\n")
