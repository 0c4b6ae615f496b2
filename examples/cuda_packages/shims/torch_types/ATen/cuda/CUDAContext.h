// The package includes this file, but its kernels use nothing from it.
