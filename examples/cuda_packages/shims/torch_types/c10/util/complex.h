// The part of complex numbers that the packages' kernels use.
#pragma once
namespace c10 {
template <typename T>
struct complex {
  T real_, imag_;
  __host__ __device__ complex(T real = 0, T imag = 0) : real_(real), imag_(imag) {}
};
template <typename T>
__host__ __device__ complex<T> operator+(complex<T> a, complex<T> b) {
  return {a.real_ + b.real_, a.imag_ + b.imag_};
}
template <typename T>
__host__ __device__ complex<T> operator*(complex<T> a, complex<T> b) {
  return {a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_};
}
}  // namespace c10
