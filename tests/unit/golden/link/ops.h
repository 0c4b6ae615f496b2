/* The operators of libaot_tune_ops.so. Written by aot_tune; for C and C++.
 *
 * All functions return AOT_TUNE_OK (0) or an aot_tune_status; aot_tune_last_error() then says what was wrong. They
 * may be called from any thread. Tensors may have any strides; outputs must not share memory with other tensors. A call
 * whose outputs have no elements returns at once.
 *
 * Environment variables are read at the first call. AOT_TUNE_OVERRIDE=FILE has rules for what serves calls within some
 * ranges of dims. AOT_TUNE_FORCE names variants that calls must use, and AOT_TUNE_EXCLUDE variants that they never use.
 * AOT_TUNE_TRACE=FILE counts calls. AOT_TUNE_WARN=unseen reports calls unlike those that were measured.
 * AOT_TUNE_CHECK=first compares the first call of each variant with the generic variant. AOT_TUNE_ONLINE=1 tries other
 * variants on calls that nobody measured, in 1 % of the time.
 */
#ifndef AOT_TUNE_OPS_H_
#define AOT_TUNE_OPS_H_

#include "aot_tune/base.h"
#if AOT_TUNE_ABI_VERSION != 1
#error "aot_tune/ops.h is for version 1 of aot_tune/base.h: put its own library first on the include path"
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

/* out = activation(a @ b + bias) + residual.
 *
 * a: f32 [M, K], input
 * b: f32 [K, N], input
 * bias: f32 [N], input, may be NULL
 * residual: f32 [M, N], input, may be NULL
 * out: f32 [M, N], output
 * activation: 0 none, 1 relu
 * exec: how to carry out the call; NULL for defaults
 */
enum { AOT_TUNE_GEMM_ACTIVATION_NONE = 0, AOT_TUNE_GEMM_ACTIVATION_RELU = 1 };
int32_t aot_tune_gemm(const DLTensor* a, const DLTensor* b, const DLTensor* bias, const DLTensor* residual,
                      const DLTensor* out, int32_t activation, const aot_tune_exec* exec);

/* Bytes of workspace that this call of aot_tune_gemm needs; 0 when none. Data is not read. */
int32_t aot_tune_gemm_workspace(const DLTensor* a, const DLTensor* b, const DLTensor* bias,
                                const DLTensor* residual, const DLTensor* out, int32_t activation,
                                size_t* workspace_size);

/* Writes lines of 'key: value': which variant this call gets, and why. They are cut off to fit size. */
int32_t aot_tune_gemm_explain(const DLTensor* a, const DLTensor* b, const DLTensor* bias,
                              const DLTensor* residual, const DLTensor* out, int32_t activation,
                              const aot_tune_exec* exec, char* buffer, size_t size);

/* Sets *tuned to 1 when exactly this problem was measured for the call's target, else to 0. */
int32_t aot_tune_gemm_is_tuned(const DLTensor* a, const DLTensor* b, const DLTensor* bias,
                               const DLTensor* residual, const DLTensor* out, int32_t activation,
                               int32_t* tuned);

/* Tells the shapes of a call before its outputs exist, and takes leading dims as one axis. It fills in everything but data.
 * Each of the two arrays has a place for each tensor, in the order of the arguments, with room for 8 extents and strides:
 * made: the outputs to be made for those that are NULL in the call; NULL where one is not asked for;
 * taken: if some tensor has not one axis for leading dims: each as aot_tune_gemm takes it, with the strides of a view.
 * Data is not read. What this does not need is checked by the call. */
int32_t aot_tune_gemm_infer(const DLTensor* a, const DLTensor* b, const DLTensor* bias,
                            const DLTensor* residual, const DLTensor* out, int32_t activation,
                            DLTensor* const* made, DLTensor* const* taken);


/* out = (x + residual) / rms(x + residual) * weight.
 *
 * x: f32 [M, N], input
 * weight: f32 [N], input
 * residual: f32 [M, N], input, may be NULL
 * out: f32 [M, N], output
 * residual_out: f32 [M, N], output, may be NULL
 * eps: float
 * exec: how to carry out the call; NULL for defaults
 */
int32_t aot_tune_rms_norm(const DLTensor* x, const DLTensor* weight, const DLTensor* residual,
                          const DLTensor* out, const DLTensor* residual_out, float eps,
                          const aot_tune_exec* exec);

/* Bytes of workspace that this call of aot_tune_rms_norm needs; 0 when none. Data is not read. */
int32_t aot_tune_rms_norm_workspace(const DLTensor* x, const DLTensor* weight, const DLTensor* residual,
                                    const DLTensor* out, const DLTensor* residual_out, float eps,
                                    size_t* workspace_size);

/* Writes lines of 'key: value': which variant this call gets, and why. They are cut off to fit size. */
int32_t aot_tune_rms_norm_explain(const DLTensor* x, const DLTensor* weight, const DLTensor* residual,
                                  const DLTensor* out, const DLTensor* residual_out, float eps,
                                  const aot_tune_exec* exec, char* buffer, size_t size);

/* Sets *tuned to 1 when exactly this problem was measured for the call's target, else to 0. */
int32_t aot_tune_rms_norm_is_tuned(const DLTensor* x, const DLTensor* weight, const DLTensor* residual,
                                   const DLTensor* out, const DLTensor* residual_out, float eps,
                                   int32_t* tuned);

/* Tells the shapes of a call before its outputs exist, and takes leading dims as one axis. It fills in everything but data.
 * Each of the two arrays has a place for each tensor, in the order of the arguments, with room for 8 extents and strides:
 * made: the outputs to be made for those that are NULL in the call; NULL where one is not asked for;
 * taken: if some tensor has not one axis for leading dims: each as aot_tune_rms_norm takes it, with the strides of a view.
 * Data is not read. What this does not need is checked by the call. */
int32_t aot_tune_rms_norm_infer(const DLTensor* x, const DLTensor* weight, const DLTensor* residual,
                                const DLTensor* out, const DLTensor* residual_out, float eps,
                                DLTensor* const* made, DLTensor* const* taken);

#ifdef __cplusplus
}
#endif

#endif /* AOT_TUNE_OPS_H_ */
