# aot_tune_install_library: installs a library of aot_tune_add_library with everything that its users need.
#
#   aot_tune_install_library(<target> [DESTINATION <folder>])     default folder: the target's name; it is the package
#
# Then the folder holds
#
#   <module>.abi3.so, <module>.pyi, py.typed    the Python module and its types
#   __main__.py                                 `python -m <package> --cmake-dir`, unless the project has its own
#   report.json, manifest.json                  for `aot-tune report --module <package>.<module>`
#   lib/lib<name>.so, lib/pkgconfig/<name>.pc   the library
#   include/...                                 its header, and those that all libraries share
#   cmake/<target>Config.cmake                  find_package(<target>) gives the target <target>::<target>

include_guard(GLOBAL)

function(aot_tune_install_library target)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "DESTINATION" "")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "aot_tune_install_library(${target}): unknown argument '${ARG_UNPARSED_ARGUMENTS}'\n"
                        "  fix: see the head of ${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
    )
  endif()
  set(generated "")
  if(TARGET ${target})
    get_target_property(generated ${target} AOT_TUNE_DIRECTORY)
  endif()
  if(NOT generated)
    message(FATAL_ERROR "aot_tune_install_library(${target}): there is no such library\n"
                        "  why: it installs what aot_tune_add_library(${target} ...) makes\n"
                        "  fix: call that first, or correct the name"
    )
  endif()
  set(folder "${target}")
  if(ARG_DESTINATION)
    set(folder "${ARG_DESTINATION}")
  endif()
  string(REGEX REPLACE "/+$" "" folder "${folder}")
  _aot_tune_claim(DESTINATION "${folder}" "the files of one would replace those of the other, such as report.json")
  get_target_property(described ${target} AOT_TUNE_DESCRIBED)
  get_target_property(header ${target} AOT_TUNE_HEADER)
  get_target_property(module ${target} AOT_TUNE_MODULE)
  get_target_property(pc ${target} AOT_TUNE_PC)
  get_property(package_dir GLOBAL PROPERTY _AOT_TUNE_PACKAGE_DIR)

  target_include_directories(${target} INTERFACE $<INSTALL_INTERFACE:${folder}/include>)
  install(TARGETS ${target} EXPORT ${target} LIBRARY DESTINATION "${folder}/lib")
  install(EXPORT ${target} NAMESPACE ${target}:: FILE ${target}Config.cmake DESTINATION "${folder}/cmake")
  get_filename_component(below "${header}" DIRECTORY)
  install(FILES "${generated}/${header}" DESTINATION "${folder}/include/${below}")
  install(
    DIRECTORY "${package_dir}/runtime/include/aot_tune"
    DESTINATION "${folder}/include"
    FILES_MATCHING
    PATTERN "*.h"
    PATTERN "*.hpp"
  )
  install(FILES "${generated}/${pc}" DESTINATION "${folder}/lib/pkgconfig")
  install(FILES "${described}/report.json" "${described}/manifest.json" DESTINATION "${folder}")
  if(module)
    install(TARGETS ${target}_module LIBRARY DESTINATION "${folder}")
    install(FILES "${generated}/${module}.pyi" DESTINATION "${folder}")
    file(TOUCH "${generated}/py.typed")
    install(FILES "${generated}/py.typed" DESTINATION "${folder}")
    file(GLOB own "${CMAKE_SOURCE_DIR}/${folder}/__main__.py" "${CMAKE_SOURCE_DIR}/*/${folder}/__main__.py")
    if(NOT own)
      install(FILES "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/package_main.py" DESTINATION "${folder}" RENAME __main__.py)
    endif()
  endif()
endfunction()
