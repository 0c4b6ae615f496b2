namespace aot_tune_glue {

struct Shape {
  int64_t grid[3], block[3], cluster[3], shared;
  bool cooperative;
};

inline bool fits(const int64_t (&extents)[3], int64_t x, int64_t y, int64_t z) {
  return extents[0] <= x && extents[1] <= y && extents[2] <= z;
}

inline dim3 as_dim3(const int64_t (&extents)[3]) {
  return {static_cast<unsigned>(extents[0]), static_cast<unsigned>(extents[1]), static_cast<unsigned>(extents[2])};
}

[[maybe_unused]] inline int64_t count_multiprocessors() {
  int device = 0, found = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
  return found;
}

// Asks for more dynamic shared memory than every kernel may have, once for each device.
template <typename F>
cudaError_t allow_shared(F kernel, int64_t bytes) {
  constexpr int devices = 64;
  static int64_t allowed[devices];
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const bool known = device < devices;
  if (known && __atomic_load_n(&allowed[device], __ATOMIC_ACQUIRE) >= bytes) return cudaSuccess;
  error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error == cudaSuccess && known) __atomic_store_n(&allowed[device], bytes, __ATOMIC_RELEASE);
  return error;
}

// Launches a kernel. Returns a cudaError_t, which is not kept as the last error.
template <typename F, typename... A>
int32_t launch_function(F kernel, const Shape& shape, void* stream, const A&... arguments) {
  constexpr int64_t large = 2147483647, few = 65535;
  if (!fits(shape.grid, large, few, few) || !fits(shape.block, 1024, 1024, 64) ||
      shape.block[0] * shape.block[1] * shape.block[2] > 1024)
    return unavailable;
  for (int axis = 0; axis < 3; ++axis)
    if (shape.grid[axis] <= 0) return cudaSuccess;  // nothing to do
  bool lost = false;
  auto values = converted<F>(&lost, std::index_sequence_for<A...>{}, arguments...);
  if (lost) return unavailable;
  cudaError_t error = cudaSuccess;
  if (shape.shared > 48 * 1024) error = allow_shared(kernel, shape.shared);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.gridDim = as_dim3(shape.grid);
  config.blockDim = as_dim3(shape.block);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (shape.cluster[0] * shape.cluster[1] * shape.cluster[2] > 1) {
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeClusterDimension;
    one.val.clusterDim.x = static_cast<unsigned>(shape.cluster[0]);
    one.val.clusterDim.y = static_cast<unsigned>(shape.cluster[1]);
    one.val.clusterDim.z = static_cast<unsigned>(shape.cluster[2]);
  }
  if (shape.cooperative) {
    cudaLaunchAttribute& one = attributes[config.numAttrs++];
    one.id = cudaLaunchAttributeCooperative;
    one.val.cooperative = 1;
  }
  if (error == cudaSuccess)
    error = std::apply([&](auto&... value) { return cudaLaunchKernelEx(&config, kernel, value...); }, values);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

// Loads a kernel on the current device.
template <typename F>
int32_t load_function(F kernel) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

// What launches of the author's have left as the last error, which is not kept.
[[maybe_unused]] inline int32_t last_error(int32_t status) {
  const cudaError_t error = cudaGetLastError();
  return status != 0 ? status : static_cast<int32_t>(error);
}

}  // namespace aot_tune_glue

