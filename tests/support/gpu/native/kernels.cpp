// Kernels, which compute nothing here: their launches are checked and recorded.
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace {

constexpr unsigned MAX_THREADS = 1024;
constexpr unsigned MAX_GRID_Y = 65535;

std::mutex names_mutex;
auto *names = new std::unordered_map<const void *, const char *>;

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void *stream;
};
thread_local std::vector<Configuration> *pushed = nullptr;

std::string name_of(const void *function) {
  std::lock_guard<std::mutex> lock(names_mutex);
  auto found = names->find(function);
  return found == names->end() ? "unknown" : found->second;
}

cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  size_t num_threads = size_t(block.x) * block.y * block.z;
  bool is_grid_valid = grid.x && grid.y && grid.z && grid.y <= MAX_GRID_Y && grid.z <= MAX_GRID_Y;
  bool is_valid = is_grid_valid && num_threads && num_threads <= MAX_THREADS && shared_bytes <= stub::MAX_SHARED_BYTES;
  stub::record(is_valid ? "launch" : "illegal", (is_valid ? "" : "launch: ") + name_of(function), stream);
  if (!is_valid) return stub::fail(cudaErrorInvalidConfiguration);
  return stub::enqueue(stream, [] {});
}

}  // namespace

API void **__cudaRegisterFatBinary(void *) {
  static void *handle[4];
  return handle;
}

API void __cudaRegisterFatBinaryEnd(void **) {}

API void __cudaUnregisterFatBinary(void **) {}

API void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, void *, void *,
                                void *, void *, int *) {
  std::lock_guard<std::mutex> lock(names_mutex);
  (*names)[function] = name;
}

API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
  if (!pushed) pushed = new std::vector<Configuration>;
  pushed->push_back({grid, block, shared_bytes, stream});
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  Configuration last = pushed->back();
  pushed->pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *(void **)stream = last.stream;
  return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **, size_t shared_bytes,
                                 cudaStream_t stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **, size_t shared_bytes,
                                   cudaStream_t stream) {
  return launch((const void *)kernel, grid, block, shared_bytes, stream);
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **,
                                            size_t shared_bytes, cudaStream_t stream) {
  return launch(function, grid, block, shared_bytes, stream);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **) {
  return launch(function, config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = MAX_THREADS;
  attributes->numRegs = 32;
  attributes->binaryVersion = 90;
  attributes->ptxVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value) {
  return value > stub::MAX_SHARED_BYTES ? stub::fail(cudaErrorInvalidValue) : cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *, int block_size, size_t) {
  int fitting = 2048 / (block_size > 0 ? block_size : 1);
  *count = fitting < 1 ? 1 : fitting > 16 ? 16 : fitting;
  return cudaSuccess;
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function,
                                                                       int block_size, size_t shared_bytes,
                                                                       unsigned) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, block_size, shared_bytes);
}
