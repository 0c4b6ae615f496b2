// Only declarations for random numbers. A toolkit for compiling does not have them, and no kernel here draws
// any.
#pragma once
struct curandStatePhilox4_32_10_t;
__device__ void curand_init(unsigned long long seed, unsigned long long subsequence,
                            unsigned long long offset, curandStatePhilox4_32_10_t* state);
__device__ float curand_uniform(curandStatePhilox4_32_10_t* state);
__device__ float4 curand_uniform4(curandStatePhilox4_32_10_t* state);
struct curandStatePhilox4_32_10_t {};
