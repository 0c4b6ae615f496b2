// The package includes it, and its kernels name nothing of it.
