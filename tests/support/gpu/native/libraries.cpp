// Functions of cuBLAS, cuDNN and the like that must answer something. All others only say that they were called.
#include <cstring>

#include "runtime.h"

static int give_handle(void **handle) {
  *handle = (void *)64;
  return 0;
}

API int cublasCreate_v2(void **handle) { return give_handle(handle); }

API int cublasLtCreate(void **handle) { return give_handle(handle); }

API int cudnnCreate(void **handle) { return give_handle(handle); }

API int cusolverDnCreate(void **handle) { return give_handle(handle); }

API int cusparseCreate(void **handle) { return give_handle(handle); }

API int cublasGetMathMode(void *, int *mode) {
  *mode = 0;
  return 0;
}

API int cublasGetPointerMode_v2(void *, int *mode) {
  *mode = 0;
  return 0;
}

// One algorithm: a cublasLtMatmulHeuristicResult_t of zeros.
API int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, char *results,
                                       int *count) {
  memset(results, 0, 96);
  *count = 1;
  return 0;
}

API size_t cudnnGetVersion() { return 92600; }

API const char *cudnnGetErrorString(...) { return "an error of the stub of cuDNN"; }
