// The packages' headers include this file but use only a handle. A toolkit for compiling lacks it.
#pragma once
using cublasHandle_t = struct cublasContext*;
