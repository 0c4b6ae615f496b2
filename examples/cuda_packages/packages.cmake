# Fetches the packages with the operators' sources into packages/ beside this file, once each. Use it with
# `include(packages.cmake)` or `cmake -P packages.cmake`. The packages and their dependencies are not built.
# `cmake -DARCHIVES=FOLDER -P packages.cmake` takes archives that are in a folder, and leaves the other packages out.
set(_index "https://files.pythonhosted.org/packages")

# Unpack the files of an archive with this hash that match the patterns.
function(fetch_package name path hash)
  set(folder "${CMAKE_CURRENT_LIST_DIR}/packages")
  if(EXISTS "${folder}/${name}.${hash}")
    return()
  endif()
  set(archive "${folder}/${name}.archive")
  file(MAKE_DIRECTORY "${folder}")
  if(DEFINED ARCHIVES)
    get_filename_component(file "${path}" NAME)
    if(NOT EXISTS "${ARCHIVES}/${file}")
      return()
    endif()
    file(SHA256 "${ARCHIVES}/${file}" found)
    if(NOT found STREQUAL hash)
      message(FATAL_ERROR "${ARCHIVES}/${file} has the hash ${found}, not ${hash}")
    endif()
    file(COPY_FILE "${ARCHIVES}/${file}" "${archive}")
  else()
    message(STATUS "fetching ${name}")
    file(DOWNLOAD "${_index}/${path}" "${archive}" EXPECTED_HASH "SHA256=${hash}" TLS_VERIFY ON)
  endif()
  file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${folder}" PATTERNS ${ARGN})
  file(REMOVE "${archive}")
  file(TOUCH "${folder}/${name}.${hash}")
endfunction()

fetch_package(
  flashinfer-python-0.7.2.post1
  b6/ad/da1fc7644b28ab82db922021955a0c85c8d6b3b1d6db224a13ef65cef85e/flashinfer_python-0.7.2.post1-py3-none-any.whl
  bfdc18b9e1e4d8d0730fe4343dc0e284cd0c160086de80f99888bc4867922d49
  flashinfer/data/include/* flashinfer/data/cccl/libcudacxx/include/* flashinfer/data/cccl/cub/cub/* flashinfer/data/cccl/thrust/thrust/* flashinfer_python-*/*
)
fetch_package(
  vllm-0.33.0
  f7/25/aa5684e9c59d6fc75f78926b7f15e8d9adc7de2d9e6e7575b80776ad8169/vllm-0.33.0.tar.gz
  f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112
  vllm-0.33.0/csrc/* vllm-0.33.0/LICENSE
)
fetch_package(
  causal_conv1d-1.7.0
  f4/d1/eba27735f31bd5527d39a3c7f693e6ded7b844cab275db719a15ad37b6cd/causal_conv1d-1.7.0.tar.gz
  3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b
  causal_conv1d-1.7.0/csrc/* causal_conv1d-1.7.0/LICENSE
)
fetch_package(
  mamba_ssm-2.3.2.post1
  af/48/aa7bec0efc7453fa0512276c0069c854bf684219050294266534bfef34bb/mamba_ssm-2.3.2.post1.tar.gz
  104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028
  mamba_ssm-2.3.2.post1/csrc/* mamba_ssm-2.3.2.post1/LICENSE
)
fetch_package(
  exllamav2-0.3.2
  25/6f/dd7fac30c1e93d6a58a4a8d96cea6597710cdd114e7cc4fdc0476ad61d03/exllamav2-0.3.2-py3-none-any.whl
  7cd61ae4bf1d8d12034595ab9731f0f43bac415d6394fbb273d4383293d6079e
  exllamav2/exllamav2_ext/* exllamav2-0.3.2.dist-info/*
)
fetch_package(
  sglang-0.5.23
  57/dd/0206d00b2ea5b163bbdd216e91cc4f23ea90fde8620db0a6272d4236b68e/sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl
  00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937
  sglang/kernels/jit/* sglang-0.5.23.dist-info/*
)
fetch_package(
  apache-tvm-ffi-0.1.15.post2
  d9/a5/a123483862e34e6b4dbc9f793f3bc780eb69ebcdf3d726b055af2d6e2b07/apache_tvm_ffi-0.1.15.post2-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl
  8ecebe749834f6ac0f2693d5964acf9ac75d0bc26e6ba64c46eb7ab00ea50fac
  tvm_ffi/include/* apache_tvm_ffi-0.1.15.post2.dist-info/*
)
