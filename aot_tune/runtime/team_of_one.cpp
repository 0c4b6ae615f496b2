// Parallel regions of kernels that one thread runs. GNU's OpenMP makes a system call at the end of each
// region, also if it has a team of one: then a small call takes 0.2 us longer, and what the caller does next
// is slower, too.
//
// The library is linked with --wrap=GOMP_parallel, so regions of its kernels begin here.
extern "C" {

using Region = void (*)(void*);

// Weak: NULL if no kernel uses OpenMP.
void __real_GOMP_parallel(Region region, void* data, unsigned threads, unsigned flags) __attribute__((weak));
int omp_get_max_threads() __attribute__((weak));
int omp_in_parallel() __attribute__((weak));

// `threads` is 0 if the region does not say how many.
__attribute__((visibility("hidden"))) void __wrap_GOMP_parallel(Region region, void* data, unsigned threads,
                                                                unsigned flags) {
  const bool one = threads == 1 || (threads == 0 && omp_get_max_threads() == 1);
  // In a parallel region of the caller, a thread would take the number that it has there for its number in
  // the team.
  if (one && omp_in_parallel() == 0) return region(data);
  __real_GOMP_parallel(region, data, threads, flags);
}

}  // extern "C"
