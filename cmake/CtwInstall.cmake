# Rules of `cmake --install`: bin/ctworker and its documents. With CTW_CARRY_LIBS, the installation can be
# copied to machines without the libraries' packages: libcjson is installed in lib/ and found relative to the
# program (CTW_STATIC_DEPS links nng, msgpack, SQLite and PCRE2 statically; Debian has no static cJSON).
option(CTW_CARRY_LIBS "Install shared libraries with the program, found relative to it" OFF)

install(TARGETS ctworker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
foreach(paper README.md LICENSE CHANGELOG.md docs)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${paper})
    if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${paper})
      install(DIRECTORY ${paper}/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT docs FILES_MATCHING PATTERN "*.md")
    else()
      install(FILES ${paper} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT docs)
    endif()
  endif()
endforeach()

if(CTW_CARRY_LIBS)
  file(RELATIVE_PATH to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(ctworker PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib}")
  file(REAL_PATH ${CJSON_LIBRARY} cjson_file)
  if(cjson_file MATCHES "\\.so")
    # The program refers to the library by its soname, not by the file's name.
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${cjson_file} OUTPUT_VARIABLE header)
    if(NOT header MATCHES "SONAME +([^\n ]+)")
      message(FATAL_ERROR "${cjson_file} has no soname, so it cannot be installed with the program; set CTW_CARRY_LIBS=OFF")
    endif()
    install(FILES ${cjson_file} RENAME ${CMAKE_MATCH_1} DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT worker)
  endif()
endif()
