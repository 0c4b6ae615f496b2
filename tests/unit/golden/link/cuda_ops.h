/* The operators of libaot_tune_ops.so. Written by aot_tune; for C and C++.
 *
 * All functions return AOT_TUNE_OK (0) or an aot_tune_status; aot_tune_last_error() then says what was wrong. They
 * may be called from any thread. Tensors may have any strides; outputs must not share memory with other tensors. A call
 * whose outputs have no elements returns at once.
 *
 * Environment variables are read at the first call. AOT_TUNE_OVERRIDE=FILE has rules for what serves calls within some
 * ranges of dims. AOT_TUNE_FORCE names variants that calls must use, and AOT_TUNE_EXCLUDE variants that they never use.
 * AOT_TUNE_TRACE=FILE counts calls. AOT_TUNE_WARN=unseen reports calls unlike those that were measured.
 */
#ifndef AOT_TUNE_CUDA_OPS_H_
#define AOT_TUNE_CUDA_OPS_H_

#include "aot_tune/base.h"
#if AOT_TUNE_ABI_VERSION != 1
#error "aot_tune/cuda_ops.h is for version 1 of aot_tune/base.h: put its own library first on the include path"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What was wrong in this thread's last failed call. Empty if none has failed. Valid until the next failure. */
const char* aot_tune_last_error(void);

/* What the library holds, as JSON: operators, variants with the digests of their objects, decision tables, tools. */
const char* aot_tune_manifest(void);

/* Loads the library's kernels for a device, so that no later call does. The arguments are DLPack's numbers. Results do
 * not depend on it: otherwise kernels load at their first call, even while a stream is captured. */
int32_t aot_tune_preload(int32_t device_type, int32_t device_id);

/* Sets how many threads calls on a CPU get from now on, in all threads of the process. 0 is the default: OpenMP's
 * number of the calling thread. That is OMP_NUM_THREADS, or what omp_set_num_threads set in that thread. Otherwise, it
 * is the number of cores that the process may use and its control group's quota pays for. */
int32_t aot_tune_set_num_threads(int32_t threads);

/* Threads that a call of this thread on a CPU gets. */
int32_t aot_tune_get_num_threads(void);

/* out = x * factor.
 *
 * x: T [N], input
 * bias: T [N], input, may be NULL
 * out: T [N], output
 * T: f32 or bf16, the same for all
 * factor: float
 * exec: how to carry out the call; NULL for defaults
 */
int32_t aot_tune_scale(const DLTensor* x, const DLTensor* bias, const DLTensor* out, float factor,
                       const aot_tune_exec* exec);

/* Bytes of workspace that this call of aot_tune_scale needs; 0 when none. Data is not read. */
int32_t aot_tune_scale_workspace(const DLTensor* x, const DLTensor* bias, const DLTensor* out, float factor,
                                 size_t* workspace_size);

/* Writes lines of 'key: value': which variant this call gets, and why. They are cut off to fit size. */
int32_t aot_tune_scale_explain(const DLTensor* x, const DLTensor* bias, const DLTensor* out, float factor,
                               const aot_tune_exec* exec, char* buffer, size_t size);

/* Sets *tuned to 1 when exactly this problem was measured for the call's target, else to 0. */
int32_t aot_tune_scale_is_tuned(const DLTensor* x, const DLTensor* bias, const DLTensor* out, float factor,
                                int32_t* tuned);

#ifdef __cplusplus
}
#endif

#endif /* AOT_TUNE_CUDA_OPS_H_ */
