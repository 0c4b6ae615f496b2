# aot_tune_add_library: a shared library of operators whose kernels were chosen by measurement.
#
# High-level:
#
#   aot_tune_add_library(<target>
#     [OPERATORS <name>...]     operators to build; default: all below TEMPLATES. Default for AOT_TUNE_OPERATORS
#     [TEMPLATES <folder>...]   template roots, each <root>/<operator>/operator.py; `bundled` adds the project's own
#     [DATABASE <folder>]       recorded measurements
#     [WORKLOAD <file>...]      problems worth tuning. They replace the declared ones of the operators in a file. With
#                               `+` before its path, they are added. Default for AOT_TUNE_WORKLOAD
#     [TARGETS <name>...] [MODE <mode>] [BUDGET <seconds>] [EFFORT <effort>] [SURVEY <shapes>] [OLDER_CPUS <seconds>]
#     [MAX_REGRET <share>] [MAX_VARIANTS <count>] [MAX_BYTES <bytes>]          defaults for AOT_TUNE_*; a mode is
#                               auto, tune, replay, replay-or-generic, generic or compile
#     [INCLUDE_DIRECTORIES <folder>...] [COMPILE_DEFINITIONS <name[=value]>...] [LINK_LIBRARIES <name, path, target>...]
#     [COMPILE_OPTIONS <option>...]  for the C++ and CUDA sources of kernels; $<$<COMPILE_LANGUAGE:CUDA>:...> is for nvcc
#                               only. What the target gets by target_include_directories, target_compile_definitions
#                               and target_link_libraries counts too
#     [XLA_FFI <0, 1 or folder>]  handlers of XLA's FFI, for JAX; default for AOT_TUNE_XLA_FFI
#     [PREFIX <identifier>]     prefix of the C functions; default: the target's name
#     [HEADER <path>]           the header's path below the include folder; default: <target>.h
#     [MODULE <name>]           also build a Python module of that name, target <target>_module
#     [OUTPUT_NAME <name>])     file name of the library; default: the target's name. A process can load one library of
#                               each name
#
# The library is lib<name>.so.<abi>, with the link lib<name>.so. A wheel holds no links, so there it is only
# lib<name>.so. A project may set the target's VERSION and SOVERSION afterwards. They then replace <abi>, and in a wheel
# the one file is lib<name>.so.<soversion>. With CMAKE_PLATFORM_NO_VERSIONED_SONAME, the name has no version.
#
# Each AOT_TUNE_* option is a CMake cache variable. The environment variable of the same name is the fallback. Paths in
# AOT_TUNE_WORKLOAD are relative to the project's source folder, and those in WORKLOAD to the CMakeLists.txt.
#
# aot_tune_install_library(<target>) installs it, with everything that its users need.
#
# Low-level pieces: _aot_tune_find_python, _aot_tune_configure, _aot_tune_link, _aot_tune_module.

include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/aot_tune_install_library.cmake")
cmake_policy(VERSION 3.12...3.25) # whatever policies the project has; it keeps its own

if(NOT DEFINED AOT_TUNE_PACKAGE_DIR)
  get_filename_component(AOT_TUNE_PACKAGE_DIR "${CMAKE_CURRENT_LIST_DIR}/../aot_tune" ABSOLUTE)
endif()
if(NOT _aot_tune_sources) # set by an editable install, whose other files are elsewhere
  set(_aot_tune_sources "${AOT_TUNE_PACKAGE_DIR}")
endif()
set(_AOT_TUNE_OPTIONS "")
if(EXISTS "${_aot_tune_sources}/plan/options.py") # not where CMake alone installed the library
  file(STRINGS "${_aot_tune_sources}/plan/options.py" _AOT_TUNE_OPTIONS REGEX "^    [a-z_]+: .* = _option\\($")
endif()
list(TRANSFORM _AOT_TUNE_OPTIONS REPLACE ":.*$" "")
list(TRANSFORM _AOT_TUNE_OPTIONS STRIP)
list(TRANSFORM _AOT_TUNE_OPTIONS TOUPPER)
foreach(_option IN LISTS _AOT_TUNE_OPTIONS)
  set(AOT_TUNE_${_option} "" CACHE STRING "See `aot-tune doctor --options`; empty takes the environment variable or the default")
endforeach()
unset(_option)
# The function is known in every folder of a project. Variables are only known below the first includer.
set_property(GLOBAL PROPERTY _AOT_TUNE_OPTIONS "${_AOT_TUNE_OPTIONS}")
set_property(GLOBAL PROPERTY _AOT_TUNE_PACKAGE_DIR "${_aot_tune_sources}")
unset(_aot_tune_sources)

function(aot_tune_add_library target)
  get_property(_AOT_TUNE_OPTIONS GLOBAL PROPERTY _AOT_TUNE_OPTIONS)
  get_property(AOT_TUNE_PACKAGE_DIR GLOBAL PROPERTY _AOT_TUNE_PACKAGE_DIR)
  cmake_parse_arguments(
    PARSE_ARGV 1 ARG ""
    "DATABASE;MODE;OLDER_CPUS;BUDGET;EFFORT;SURVEY;MAX_REGRET;MAX_VARIANTS;MAX_BYTES;PREFIX;HEADER;MODULE;OUTPUT_NAME;XLA_FFI"
    "OPERATORS;TEMPLATES;TARGETS;WORKLOAD;INCLUDE_DIRECTORIES;COMPILE_DEFINITIONS;COMPILE_OPTIONS;LINK_LIBRARIES"
  )
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "aot_tune_add_library(${target}): unknown argument '${ARG_UNPARSED_ARGUMENTS}'\n"
                        "  fix: see the head of ${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
    )
  endif()
  if(ARG_KEYWORDS_MISSING_VALUES)
    message(AUTHOR_WARNING "aot_tune_add_library(${target}): no value for ${ARG_KEYWORDS_MISSING_VALUES}")
  endif()
  if(NOT target MATCHES "^[A-Za-z][A-Za-z0-9_]*$")
    message(FATAL_ERROR "aot_tune_add_library(${target}): the name is not an identifier\n"
                        "  why: it becomes part of C names\n  fix: use letters, digits and underscores"
    )
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT CXX IN_LIST languages)
    message(FATAL_ERROR "aot_tune_add_library(${target}): the project has no C++\n"
                        "  why: the library is compiled from it\n  fix: write project(... LANGUAGES CXX)"
    )
  endif()
  if(NOT ARG_PREFIX)
    set(ARG_PREFIX "${target}")
  endif()
  if(NOT ARG_HEADER)
    set(ARG_HEADER "${target}.h")
  endif()
  if(NOT ARG_OUTPUT_NAME)
    set(ARG_OUTPUT_NAME "${target}")
  endif()
  if(NOT ARG_TEMPLATES)
    set(ARG_TEMPLATES bundled)
  endif()

  _aot_tune_absolute(AOT_TUNE_WORKLOAD "${CMAKE_SOURCE_DIR}")
  _aot_tune_absolute(ARG_WORKLOAD "${CMAKE_CURRENT_SOURCE_DIR}")
  _aot_tune_absolute(ARG_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(path IN LISTS ARG_TEMPLATES AOT_TUNE_WORKLOAD ARG_WORKLOAD ARG_INCLUDE_DIRECTORIES ITEMS "${CMAKE_BINARY_DIR}" "${CMAKE_SOURCE_DIR}" "${AOT_TUNE_PACKAGE_DIR}")
    if(path MATCHES "[;$]|\\[[^]]*$")
      string(SUBSTRING "${CMAKE_MATCH_0}" 0 1 odd)
      message(FATAL_ERROR "aot_tune_add_library(${target}): the path '${path}' holds '${odd}'\n"
                          "  why: CMake's lists and generators cannot hold it\n"
                          "  fix: move the folder to a path without ';', '$' and unclosed '['"
      )
    endif()
  endforeach()

  if(SKBUILD_STATE AND NOT "$ENV{DESTDIR}" STREQUAL "")
    message(FATAL_ERROR "aot_tune_add_library(${target}): DESTDIR is '$ENV{DESTDIR}'\n"
                        "  why: files of the wheel would be installed below it, and the wheel would have none\n"
                        "  fix: unset DESTDIR, and install the wheel with --root or --target"
    )
  endif()
  _aot_tune_claim(OUTPUT_NAME "${ARG_OUTPUT_NAME}" "a process can load one library of each name")
  if(ARG_MODULE)
    set(folder "${CMAKE_CURRENT_BINARY_DIR}")
    if(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
      set(folder "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
    endif()
    _aot_tune_claim(MODULE "${ARG_MODULE} in ${folder}" "both would be one file; add_subdirectory makes folders")
  endif()
  _aot_tune_find_python()
  set(directory "${CMAKE_CURRENT_BINARY_DIR}/aot_tune/${target}")
  _aot_tune_glue_options()
  _aot_tune_try_flags()
  _aot_tune_configure()
  _aot_tune_link()
  if(ARG_MODULE)
    _aot_tune_module()
  endif()
  set_target_properties(
    ${target} PROPERTIES AOT_TUNE_DIRECTORY "${directory}" AOT_TUNE_HEADER "${ARG_HEADER}" AOT_TUNE_MODULE "${ARG_MODULE}"
                         AOT_TUNE_DESCRIBED "${_aot_tune_described}" AOT_TUNE_PC "${ARG_OUTPUT_NAME}.pc"
  )
endfunction()

# Find the interpreter that runs the tuner. A macro, so it sets variables of the caller. No Python is to import from the
# current folder, which may hold an operator.py: an empty item of PYTHONPATH is that folder.
macro(_aot_tune_find_python)
  string(REGEX REPLACE "^:+|:+$" "" import_path "$ENV{PYTHONPATH}")
  string(REGEX REPLACE "::+" ":" import_path "${import_path}")
  set(ENV{PYTHONPATH} "${import_path}")
  set(safe_path "$ENV{PYTHONSAFEPATH}")
  set(ENV{PYTHONSAFEPATH} 1)
  if(ARG_MODULE)
    find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  else()
    find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  endif()
  set(ENV{PYTHONSAFEPATH} "${safe_path}")
  if(DEFINED ENV{AOT_TUNE_IMPORT_PATH})
    set(import_path "$ENV{AOT_TUNE_IMPORT_PATH}")
  endif()
  get_filename_component(package_parent "${AOT_TUNE_PACKAGE_DIR}" DIRECTORY)
  string(REGEX REPLACE ":$" "" import_path "${package_parent}:${import_path}")
endmacro()

# Raise an error if another of the project's libraries has a value that each must have for itself.
function(_aot_tune_claim what value why)
  get_property(owner GLOBAL PROPERTY "_AOT_TUNE_${what} ${value}")
  if(owner AND NOT owner STREQUAL target)
    message(FATAL_ERROR "aot_tune library ${target}: ${what} ${value} is that of ${owner} too\n  why: ${why}\n"
                        "  fix: give each library its own"
    )
  endif()
  set_property(GLOBAL PROPERTY "_AOT_TUNE_${what} ${value}" "${target}")
endfunction()

# Make the paths of a list absolute, in the caller's scope. A `+` before a path stays.
function(_aot_tune_absolute list folder)
  set(absolute "")
  foreach(path IN LISTS ${list})
    string(REGEX MATCH "^[+]" sign "${path}")
    string(REGEX REPLACE "^[+]" "" path "${path}")
    get_filename_component(path "${path}" ABSOLUTE BASE_DIR "${folder}")
    list(APPEND absolute "${sign}${path}")
  endforeach()
  set(${list} "${absolute}" PARENT_SCOPE)
endfunction()

# Append an option to the caller's `arguments`. A value that is a list stays one argument.
function(_aot_tune_pass flag name value)
  string(REPLACE ";" "\\;" value "${value}")
  list(APPEND arguments ${flag} "${name}=${value}")
  set(arguments "${arguments}" PARENT_SCOPE)
endfunction()

# Check options and operators, print what the build will use, and write the plan. This runs at every configure.
macro(_aot_tune_configure)
  set(arguments --name ${target} --prefix ${ARG_PREFIX} --header ${ARG_HEADER} --output ${ARG_OUTPUT_NAME}
      --directory ${directory} ${_aot_tune_tiny})
  if(ARG_MODULE)
    list(APPEND arguments --module ${ARG_MODULE})
  endif()
  foreach(root IN LISTS ARG_TEMPLATES)
    if(NOT root STREQUAL "bundled")
      get_filename_component(root "${root}" ABSOLUTE)
    endif()
    list(APPEND arguments --templates ${root})
  endforeach()
  if(ARG_DATABASE)
    get_filename_component(database "${ARG_DATABASE}" ABSOLUTE)
    list(APPEND arguments --database ${database})
  endif()
  foreach(folder IN LISTS ARG_INCLUDE_DIRECTORIES)
    list(APPEND arguments "--include-directory=${folder}")
  endforeach()
  foreach(definition IN LISTS ARG_COMPILE_DEFINITIONS)
    list(APPEND arguments "--compile-definition=${definition}")
  endforeach()
  foreach(option IN LISTS ARG_COMPILE_OPTIONS)
    list(APPEND arguments "--compile-option=${option}")
  endforeach()
  foreach(library IN LISTS ARG_LINK_LIBRARIES)
    if(NOT TARGET ${library}) # targets are resolved when CMake generates
      list(APPEND arguments "--link-library=${library}")
    endif()
  endforeach()
  foreach(option IN LISTS _AOT_TUNE_OPTIONS)
    if(NOT "${AOT_TUNE_${option}}" STREQUAL "")
      _aot_tune_pass(--option AOT_TUNE_${option} "${AOT_TUNE_${option}}")
    elseif(NOT "${ARG_${option}}" STREQUAL "")
      _aot_tune_pass(--default AOT_TUNE_${option} "${ARG_${option}}")
    endif()
  endforeach()
  get_cmake_property(cached CACHE_VARIABLES) # a misspelt option is an error
  foreach(variable IN LISTS cached)
    string(REGEX REPLACE "^AOT_TUNE_" "" option "${variable}")
    if(variable MATCHES "^AOT_TUNE_" AND NOT option IN_LIST _AOT_TUNE_OPTIONS
       AND NOT option MATCHES "^(PACKAGE_DIR|ROOT|DIR)$" # where packages are
    )
      _aot_tune_pass(--option ${variable} "${${variable}}")
    endif()
  endforeach()
  _aot_tune_compiled_as()
  set(cxx "${CMAKE_CXX_COMPILER}")
  if(CMAKE_CXX_COMPILER_ARG1) # CXX was a launcher and its compiler, or a compiler with arguments
    set(cxx "\"${CMAKE_CXX_COMPILER}\" ${CMAKE_CXX_COMPILER_ARG1}")
  endif()
  set(ENV{CXX} "${cxx}")
  set(ENV{SKBUILD_STATE} "${SKBUILD_STATE}") # an editable install must not tune when it is imported
  file(REMOVE "${directory}/plan.cmake")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${import_path}" "${Python_EXECUTABLE}" -B
            "${AOT_TUNE_PACKAGE_DIR}/support/start.py" aot_tune.cli.main configure ${arguments}
    RESULT_VARIABLE status
    ERROR_VARIABLE errors
    ERROR_STRIP_TRAILING_WHITESPACE
  )
  if(NOT status EQUAL 0)
    if(errors MATCHES "ModuleNotFoundError: [^\n]*$")
      set(errors "${Python_EXECUTABLE} lacks what aot_tune is written with\n  why: ${CMAKE_MATCH_0}\n"
                 "  fix: install what a build without isolation needs, `${Python_EXECUTABLE} -m pip install "
                 "scikit-build-core filelock jinja2 msgspec numpy pyelftools`, or set Python_EXECUTABLE to the Python "
                 "that aot_tune is installed for"
      )
      string(CONCAT errors ${errors})
    endif()
    message(FATAL_ERROR "aot_tune_add_library(${target}):\n${errors}")
  elseif(NOT EXISTS "${directory}/plan.cmake")
    message(FATAL_ERROR "aot_tune_add_library(${target}): the configure step ended without a plan\n"
                        "  why: something that it ran ended the process, such as os._exit in an operator.py\n"
                        "  fix: let operator.py declare the operator and return"
    )
  elseif(errors)
    message(WARNING "aot_tune_add_library(${target}):\n${errors}")
  endif()
  include("${directory}/plan.cmake") # sets _aot_tune_inputs, _families, _host_flags, _backends, _link_arguments, _include_folders, _xla_include
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_aot_tune_inputs})

  # The script holds the paths of this configure's interpreter, which differ between isolated builds. It is not a
  # dependency, so an unchanged build does not run again.
  configure_file("${CMAKE_CURRENT_FUNCTION_LIST_DIR}/aot_tune_run.cmake.in" "${directory}/run.cmake" @ONLY)
  set(generated
      ${directory}/dispatch.cpp ${directory}/module.cpp ${directory}/exports.map ${directory}/module.map
      ${directory}/variants.a ${directory}/manifest.json ${directory}/report.json ${directory}/shipped.json
      ${directory}/${ARG_HEADER}
  )
  if(ARG_MODULE)
    list(APPEND generated ${directory}/${ARG_MODULE}.pyi)
  endif()
  if(_aot_tune_xla_include)
    list(APPEND generated ${directory}/xla_ffi.cpp)
  endif()
  set(_aot_tune_libraries "")
  set(_aot_tune_library_targets "")
  foreach(library IN LISTS ARG_LINK_LIBRARIES)
    if(TARGET ${library})
      get_target_property(kind ${library} TYPE)
      if(NOT kind STREQUAL "INTERFACE_LIBRARY")
        list(APPEND _aot_tune_libraries "$<TARGET_LINKER_FILE:${library}>")
        get_target_property(imported ${library} IMPORTED)
        if(NOT imported) # it must be built first
          list(APPEND _aot_tune_library_targets ${library})
        endif()
      endif()
    endif()
  endforeach()
  set(_aot_tune_of_target target.txt)
  set(_aot_tune_described "${directory}")
  get_property(several GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  if(several) # each configuration may have other libraries and definitions, and so other variants
    set(_aot_tune_of_target "target-$<CONFIG>.txt")
    set(_aot_tune_described "${directory}/$<CONFIG>")
  endif()
  # Two commands, because Ninja lists all outputs of a command that fails.
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -E touch ${generated}
    DEPENDS ${directory}/tuned
    COMMENT ""
    VERBATIM
  )
  add_custom_command(
    OUTPUT ${directory}/tuned
    COMMAND ${CMAKE_COMMAND} -DOF_TARGET=${_aot_tune_of_target} -P ${directory}/run.cmake
    DEPENDS ${directory}/plan.json ${directory}/${_aot_tune_of_target} ${_aot_tune_libraries}
    DEPFILE ${directory}/headers.d # the author's headers that only C++ includes
    COMMENT "Tuning ${target}"
    USES_TERMINAL VERBATIM
  )
endmacro()

# A static library of C++ that is the same in all libraries. It comes from the cache, if `configure` found it there.
# Nothing is compiled while the tuner measures.
function(_aot_tune_glue kind)
  if(_aot_tune_${kind}) # plan.cmake sets it
    add_library(${target}_${kind} STATIC IMPORTED)
    set_target_properties(${target}_${kind} PROPERTIES IMPORTED_LOCATION "${_aot_tune_${kind}}")
    return()
  endif()
  add_library(${target}_${kind} STATIC ${ARGN})
  add_dependencies(${target}_${kind} ${target}_tuned)
  _aot_tune_common_properties(${target}_${kind})
  set_target_properties(
    ${target}_${kind} PROPERTIES ARCHIVE_OUTPUT_DIRECTORY "${directory}/glue" PREFIX lib OUTPUT_NAME ${kind} SUFFIX .a
                                 INTERPROCEDURAL_OPTIMIZATION OFF
  )
  _aot_tune_plain_name(${target}_${kind})
  target_include_directories(
    ${target}_${kind} PRIVATE "${AOT_TUNE_PACKAGE_DIR}/runtime" "${AOT_TUNE_PACKAGE_DIR}/runtime/include"
                              "${AOT_TUNE_PACKAGE_DIR}/link/binding" "${AOT_TUNE_PACKAGE_DIR}/link/xla"
  )
  target_include_directories(${target}_${kind} SYSTEM PRIVATE ${_aot_tune_include_folders})
endfunction()

# Let a file's name be the same in every configuration.
function(_aot_tune_plain_name name)
  foreach(configuration IN LISTS CMAKE_BUILD_TYPE CMAKE_CONFIGURATION_TYPES)
    string(TOUPPER "${configuration}" configuration)
    set_property(TARGET ${name} PROPERTY ${configuration}_POSTFIX "")
  endforeach()
endfunction()

# Append an option to the caller's `arguments` that says how glue is compiled. It is left out where not all of that is
# known now: then nothing is taken from the cache.
function(_aot_tune_compiled_as)
  get_property(several GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
  get_directory_property(folders INCLUDE_DIRECTORIES)
  if(several OR folders OR NOT "$ENV{CPATH}$ENV{CPLUS_INCLUDE_PATH}" STREQUAL "")
    return()
  endif()
  string(TOUPPER "${CMAKE_BUILD_TYPE}" configuration)
  file(REAL_PATH "${CMAKE_CXX_COMPILER}" compiler)
  file(SIZE "${compiler}" size)
  file(TIMESTAMP "${compiler}" time)
  get_directory_property(options COMPILE_OPTIONS)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  set(glue_options ${_aot_tune_compile_options})
  list(FILTER glue_options EXCLUDE REGEX "^-ffile-prefix-map=") # they take the paths out of what is compiled
  set(text ${compiler} ${size} ${time} ${options} ${definitions} ${glue_options} ${Python_VERSION})
  foreach(name IN ITEMS COMPILER COMPILER_ARG1 COMPILER_VERSION COMPILER_TARGET FLAGS FLAGS_${configuration})
    list(APPEND text "${CMAKE_CXX_${name}}")
  endforeach()
  _aot_tune_pass(--compiled-as "" "${text};${CMAKE_SYSROOT};${CMAKE_INTERPROCEDURAL_OPTIMIZATION}")
  set(arguments "${arguments}" PARENT_SCOPE)
endfunction()

# The shared library.
macro(_aot_tune_link)
  file(GLOB runtime_sources CONFIGURE_DEPENDS "${AOT_TUNE_PACKAGE_DIR}/runtime/*.cpp")
  foreach(family IN LISTS _aot_tune_families) # plan.cmake sets these lists
    file(GLOB family_sources CONFIGURE_DEPENDS "${AOT_TUNE_PACKAGE_DIR}/runtime/${family}/*.cpp")
    list(APPEND runtime_sources ${family_sources})
  endforeach()
  add_custom_target(${target}_tuned DEPENDS ${directory}/tuned)
  _aot_tune_glue(runtime ${runtime_sources})
  add_library(${target} SHARED ${directory}/dispatch.cpp)
  add_dependencies(${target} ${target}_tuned)
  _aot_tune_common_properties(${target})
  set_target_properties(
    ${target} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT_NAME} LINK_DEPENDS "${directory}/exports.map;${directory}/variants.a"
  )
  target_include_directories(
    ${target}
    PUBLIC $<BUILD_INTERFACE:${directory}> $<BUILD_INTERFACE:${AOT_TUNE_PACKAGE_DIR}/runtime/include>
    PRIVATE "${AOT_TUNE_PACKAGE_DIR}/runtime"
  )
  target_include_directories(${target} SYSTEM PRIVATE ${_aot_tune_include_folders})
  target_link_libraries(${target} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}_runtime>)
  if(_aot_tune_xla_include)
    _aot_tune_xla_handlers()
  endif()
  set(called "")
  if("triton" IN_LIST _aot_tune_backends) # launchers call this archive; a library only takes what it needs from it
    file(GLOB launcher_sources CONFIGURE_DEPENDS "${AOT_TUNE_PACKAGE_DIR}/runtime/triton/*.cpp")
    _aot_tune_glue(launchers ${launcher_sources})
    set(called ${target}_launchers)
  endif()
  target_link_libraries(
    ${target} PRIVATE ${directory}/variants.a ${called} ${_aot_tune_link_arguments} ${CMAKE_DL_LIBS}
  )
  # OpenMP's idle threads wait in its code, so the code must stay when a program closes the library. For --wrap see
  # team_of_one.cpp.
  target_link_options(
    ${target}
    PRIVATE
    -fopenmp
    LINKER:--wrap=GOMP_parallel
    LINKER:--wrap=GOMP_barrier
    LINKER:--wrap=GOMP_loop_end
    "LINKER:--version-script=${directory}/exports.map"
    LINKER:--no-undefined
    LINKER:-z,nodelete
  )
  add_custom_command(
    TARGET ${target}
    POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${target}> -DDESCRIBED=${_aot_tune_described} -P ${directory}/run.cmake
    COMMENT "Checking ${target} against its manifest, and its variants once more"
    VERBATIM
  )
  target_link_libraries(${target} PRIVATE ${ARG_LINK_LIBRARIES})
  # What the target has when CMake generates. It is for the sources of kernels.
  file(
    GENERATE
    OUTPUT "${directory}/${_aot_tune_of_target}"
    CONTENT
      "include_directories=$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>\ndefinitions=$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>\nlibraries=${_aot_tune_libraries}\ntargets=${_aot_tune_library_targets}\n"
  )
  target_link_libraries(${target} PRIVATE ${_aot_tune_ends})
  add_library(${target}::${target} ALIAS ${target})
  _aot_tune_version()
endmacro()

# Handlers of XLA's FFI, in an object library. So only they see XLA's headers, but not the sources of kernels.
macro(_aot_tune_xla_handlers)
  file(GLOB handler_sources CONFIGURE_DEPENDS "${AOT_TUNE_PACKAGE_DIR}/link/xla/*.cpp")
  _aot_tune_glue(xla ${handler_sources})
  if(NOT _aot_tune_xla)
    target_include_directories(${target}_xla SYSTEM PRIVATE "${_aot_tune_xla_include}")
  endif()
  target_link_libraries(${target} PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}_xla>)
  add_library(${target}_xla_ffi OBJECT ${directory}/xla_ffi.cpp)
  add_dependencies(${target}_xla_ffi ${target}_tuned)
  _aot_tune_common_properties(${target}_xla_ffi)
  target_include_directories(
    ${target}_xla_ffi PRIVATE ${directory} "${AOT_TUNE_PACKAGE_DIR}/link/xla" "${AOT_TUNE_PACKAGE_DIR}/runtime"
                              "${AOT_TUNE_PACKAGE_DIR}/runtime/include"
  )
  target_include_directories(${target}_xla_ffi SYSTEM PRIVATE "${_aot_tune_xla_include}")
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_xla_ffi>)
endmacro()

# The version in the library's name, and its file for pkg-config. Deferred, so that the project can set its version.
macro(_aot_tune_version)
  set(wheel OFF)
  if(SKBUILD OR SKBUILD_STATE)
    set(wheel ON)
  else()
    file(STRINGS "${AOT_TUNE_PACKAGE_DIR}/runtime/include/aot_tune/base.h" abi REGEX "^#define AOT_TUNE_ABI_VERSION [0-9]+$")
    string(REGEX REPLACE "^.* " "" abi "${abi}")
    set_target_properties(${target} PROPERTIES SOVERSION ${abi})
  endif()
  set(version "${PROJECT_VERSION}")
  if(version STREQUAL "" AND NOT "${SKBUILD_PROJECT_VERSION}" STREQUAL "")
    set(version "${SKBUILD_PROJECT_VERSION}")
  endif()
  cmake_language(
    EVAL CODE
    "cmake_language(DEFER DIRECTORY [==[${CMAKE_SOURCE_DIR}]==] CALL _aot_tune_name_library [==[${target}]==]
       [==[${directory}/${ARG_OUTPUT_NAME}.pc]==] [==[${version}]==] ${wheel})"
  )
endmacro()

function(_aot_tune_name_library target file project_version wheel)
  foreach(property IN ITEMS VERSION SOVERSION PREFIX SUFFIX OUTPUT_NAME)
    get_target_property(${property} ${target} ${property})
    if("${${property}}" MATCHES "-NOTFOUND$")
      set(${property} "")
    endif()
  endforeach()
  set(PC_VERSION 0)
  foreach(given IN ITEMS "${VERSION}" "${project_version}")
    if(NOT given STREQUAL "")
      set(PC_VERSION "${given}")
      break()
    endif()
  endforeach()
  if(wheel AND NOT CMAKE_PLATFORM_NO_VERSIONED_SONAME)
    if(SOVERSION STREQUAL "")
      set(SOVERSION "${VERSION}")
    endif()
    if(NOT SOVERSION STREQUAL "") # links would become copies, so the one file has the name by which it is loaded
      set(SUFFIX "${CMAKE_SHARED_LIBRARY_SUFFIX}.${SOVERSION}")
      set_target_properties(${target} PROPERTIES SUFFIX "${SUFFIX}")
      set_property(TARGET ${target} PROPERTY VERSION)
      set_property(TARGET ${target} PROPERTY SOVERSION)
    endif()
  endif()
  if(CMAKE_BUILD_TYPE)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" configuration)
    get_target_property(postfix ${target} ${configuration}_POSTFIX)
    if(postfix)
      string(APPEND OUTPUT_NAME "${postfix}")
    endif()
  endif()
  set(PC_LIBRARY "-l${OUTPUT_NAME}")
  if(NOT "${PREFIX}" MATCHES "^(lib)?$" OR NOT "${SUFFIX}" MATCHES "^([.]so)?$")
    if(PREFIX STREQUAL "")
      set(PREFIX lib)
    endif()
    set(PC_LIBRARY "-l:${PREFIX}${OUTPUT_NAME}${SUFFIX}")
  endif()
  get_filename_component(PC_NAME "${file}" NAME_WLE)
  file(
    CONFIGURE
    OUTPUT "${file}"
    CONTENT
      "prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${pcfiledir}/..

Name: @PC_NAME@
Description: Kernels chosen by measurement, with a C interface
Version: @PC_VERSION@
Cflags: -I\${includedir}
Libs: -L\${libdir} @PC_LIBRARY@
"
    @ONLY
  )
endfunction()

# The Python module, found beside the library at run time.
macro(_aot_tune_module)
  file(GLOB binding_sources CONFIGURE_DEPENDS "${AOT_TUNE_PACKAGE_DIR}/link/binding/*.cpp")
  _aot_tune_glue(binding ${binding_sources})
  add_library(${target}_module MODULE ${directory}/module.cpp)
  _aot_tune_common_properties(${target}_module)
  set_target_properties(${target}_module PROPERTIES PREFIX "" OUTPUT_NAME ${ARG_MODULE} SUFFIX ".abi3.so")
  _aot_tune_plain_name(${target}_module) # Python looks for it
  set(own ${target}_module)
  if(NOT _aot_tune_binding)
    list(APPEND own ${target}_binding)
  endif()
  foreach(part IN LISTS own)
    target_compile_definitions(${part} PRIVATE Py_LIMITED_API=0x030A0000)
    target_include_directories(${part} PRIVATE ${Python_INCLUDE_DIRS})
  endforeach()
  target_include_directories(
    ${target}_module PRIVATE "${AOT_TUNE_PACKAGE_DIR}/link/binding" "${AOT_TUNE_PACKAGE_DIR}/runtime"
  )
  target_link_libraries(
    ${target}_module PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,${target}_binding> ${target} ${_aot_tune_ends}
  )
  target_link_options(${target}_module PRIVATE LINKER:--version-script=${directory}/module.map)
  add_custom_command(
    TARGET ${target}_module
    POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${target}> -DMODULE=$<TARGET_FILE:${target}_module> -P
            ${directory}/run.cmake
    COMMENT "Checking the Python module of ${target}"
    VERBATIM
  )
endmacro()

# Options of glue, in lists of the caller. Glue is the same in every folder. So it has no sanitizers and no link-time
# optimisation, which put paths into a library. A sanitizer's own library must also be loaded before all others. That is
# not so where our library is checked.
#
# Only the start and end files are linked that every library needs. With -ffast-math in the environment's flags,
# compilers add one more. It makes the whole program flush denormal numbers once the library is loaded.
macro(_aot_tune_glue_options)
  set(_aot_tune_compile_options
      -O2
      -fno-rtti
      -fno-exceptions # when Python ends a thread by force, no destructors of a call must run
      -Wall
      -Wextra
      "-ffile-prefix-map=${CMAKE_BINARY_DIR}=." # Ninja compiles here, also what is in another folder
      "-ffile-prefix-map=${CMAKE_CURRENT_BINARY_DIR}=."
      "-ffile-prefix-map=${AOT_TUNE_PACKAGE_DIR}=aot_tune"
      -fno-sanitize=all
      -fno-lto
      -fno-record-gcc-switches
  )
  # CMake does not write the run path, because CMAKE_SKIP_RPATH and others would take it away. It is in a file, because
  # generators do not agree on how to write a dollar sign.
  file(WRITE "${directory}/run_path.txt" "-rpath $ORIGIN:$ORIGIN/lib\n")
  set(_aot_tune_link_options -fno-sanitize=all LINKER:--build-id=none LINKER:-z,noexecstack LINKER:-z,relro)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang") # it would read the file itself
    list(APPEND _aot_tune_link_options "-Wl,@${directory}/run_path.txt")
  else()
    list(APPEND _aot_tune_link_options "LINKER:@${directory}/run_path.txt")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # it compiles an author's libraries when they are linked, if they have -flto
    list(APPEND _aot_tune_link_options "-ffile-prefix-map=${CMAKE_BINARY_DIR}=.")
  endif()
  separate_arguments(_aot_tune_first UNIX_COMMAND "${CMAKE_CXX_COMPILER_ARG1}")
  set(_aot_tune_ends "")
  foreach(_aot_tune_name IN ITEMS crti.o crtbeginS.o crtendS.o crtn.o)
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} ${_aot_tune_first} -print-file-name=${_aot_tune_name}
      OUTPUT_VARIABLE _aot_tune_file
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    )
    if(IS_ABSOLUTE "${_aot_tune_file}" AND EXISTS "${_aot_tune_file}")
      list(APPEND _aot_tune_ends "${_aot_tune_file}")
    endif()
  endforeach()
  list(LENGTH _aot_tune_ends _aot_tune_count)
  if(_aot_tune_count EQUAL 4)
    list(SUBLIST _aot_tune_ends 0 2 _aot_tune_begin)
    list(SUBLIST _aot_tune_ends 2 2 _aot_tune_ends)
    list(APPEND _aot_tune_link_options -nostartfiles ${_aot_tune_begin})
  else()
    set(_aot_tune_ends "") # a compiler of another kind; the check of what is linked reports problems
  endif()
endmacro()

# Link a tiny library with the project's flags. What they would do to the real one is told before anything is tuned.
function(_aot_tune_try_flags)
  if(CMAKE_SYSROOT OR CMAKE_CXX_COMPILER_TARGET)
    return() # CMake has more options for such compilers
  endif()
  string(TOUPPER "${CMAKE_BUILD_TYPE}" configuration)
  set(shared "${CMAKE_SHARED_LINKER_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS_${configuration}}")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${configuration}}")
  separate_arguments(shared UNIX_COMMAND "${shared}")
  get_directory_property(options COMPILE_OPTIONS)
  get_directory_property(link_options LINK_OPTIONS)
  list(APPEND link_options ${_aot_tune_link_options} "LINKER:--version-script=${directory}/tiny.map")
  foreach(list IN ITEMS options link_options)
    list(FILTER ${list} EXCLUDE REGEX "[$]<|^SHELL:") # what only CMake can read
    list(TRANSFORM ${list} REPLACE "^LINKER:" "-Wl,")
  endforeach()
  file(WRITE "${directory}/tiny.cpp" "extern \"C\" __attribute__((visibility(\"default\"))) int tiny(int x) { return x; }\n")
  file(WRITE "${directory}/tiny.map" "{ global: tiny; local: *; };\n")
  set(compiler ${CMAKE_CXX_COMPILER} ${_aot_tune_first})
  set(made -fPIC ${options} ${_aot_tune_compile_options} -c tiny.cpp -o tiny.o)
  set(linked -fPIC ${shared} ${link_options} -shared -o tiny.so tiny.o ${_aot_tune_ends})
  foreach(step IN ITEMS made linked)
    execute_process(
      COMMAND ${compiler} ${flags} ${${step}}
      WORKING_DIRECTORY "${directory}"
      RESULT_VARIABLE status
      OUTPUT_QUIET ERROR_VARIABLE errors
    )
    if(NOT status EQUAL 0)
      string(STRIP "${errors}" errors)
      message(FATAL_ERROR "aot_tune_add_library(${target}): the project's flags allow no shared library\n"
                          "  why: ${errors}\n"
                          "  fix: correct CXX, CXXFLAGS, LDFLAGS, or what CMakeLists.txt adds to them"
      )
    endif()
  endforeach()
  set(_aot_tune_tiny --tiny "${directory}/tiny.so" --build "${CMAKE_BINARY_DIR}" PARENT_SCOPE)
endfunction()

# What is common to the targets of glue, which is built for the baseline.
function(_aot_tune_common_properties target)
  set_target_properties(
    ${target}
    PROPERTIES CXX_STANDARD 17
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON
               BUILD_WITH_INSTALL_RPATH ON
               INSTALL_RPATH ""
               NO_SONAME OFF
               UNITY_BUILD OFF
  )
  # also if a project's flags have -march=native
  target_compile_options(${target} PRIVATE ${_aot_tune_compile_options} ${_aot_tune_host_flags})
  target_link_options(${target} PRIVATE ${_aot_tune_link_options})
endfunction()
