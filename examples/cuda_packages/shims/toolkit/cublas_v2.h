// The packages' headers include it and name a handle alone; a toolkit for compiling does not have it.
#pragma once
using cublasHandle_t = struct cublasContext*;
