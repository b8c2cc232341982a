// The functions of libcuda.so.1 and of NVML that torch and Triton call.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "runtime.h"

namespace {

constexpr int INVALID_IMAGE = 200;  // CUDA_ERROR_INVALID_IMAGE
constexpr int NOT_FOUND = 500;      // CUDA_ERROR_NOT_FOUND
constexpr int NVML_NOT_FOUND = 6;
constexpr unsigned short EM_CUDA = 190;  // in the header of an ELF file: machine code of a GPU

void *const CONTEXT = (void *)64;

// A cubin is an ELF file for the machine CUDA; PTX is text.
bool is_loadable(const void *image) {
  auto *bytes = (const unsigned char *)image;
  if (memcmp(bytes, "\177ELF", 4) != 0) return strstr((const char *)image, ".version") != nullptr;
  unsigned short machine;
  memcpy(&machine, bytes + 18, sizeof machine);
  return machine == EM_CUDA;
}

int launch(const char *name, bool is_valid, void *stream) {
  stub::record(is_valid ? "launch" : "illegal", std::string(is_valid ? "triton " : "launch: triton ") + name,
               (cudaStream_t)stream);
  stub::enqueue((cudaStream_t)stream, [] {});
  return 0;
}

int unknown_driver_function(...) { return NOT_FOUND; }

}  // namespace

API int cuInit(unsigned) { return 0; }

API int cuDriverGetVersion(int *version) { return cudaDriverGetVersion(version); }

API int cuCtxGetCurrent(void **context) {
  *context = CONTEXT;
  return 0;
}

API int cuCtxSetCurrent(void *) { return 0; }

API int cuCtxGetDevice(int *device) { return cudaGetDevice(device); }

API int cuCtxPushCurrent_v2(void *) { return 0; }

API int cuCtxPopCurrent_v2(void **context) { return cuCtxGetCurrent(context); }

API int cuCtxSynchronize() { return cudaDeviceSynchronize(); }

API int cuCtxGetLimit(size_t *value, int) {
  *value = 1 << 20;
  return 0;
}

API int cuCtxSetLimit(int, size_t) { return 0; }

API int cuDeviceGet(int *device, int number) {
  *device = number;
  return 0;
}

API int cuDeviceGetCount(int *count) {
  *count = stub::num_devices();
  return 0;
}

API int cuDeviceGetName(char *text, int size, int device) {
  cudaDeviceProp properties;
  int error = cudaGetDeviceProperties(&properties, device);
  snprintf(text, size, "%s", properties.name);
  return error;
}

API int cuDeviceGetAttribute(int *value, int which, int device) {
  return cudaDeviceGetAttribute(value, (cudaDeviceAttr)which, device);
}

API int cuDevicePrimaryCtxGetState(int, unsigned *flags, int *is_active) {
  *flags = 0;
  *is_active = 1;
  return 0;
}

API int cuDevicePrimaryCtxRetain(void **context, int) { return cuCtxGetCurrent(context); }

API int cuGetErrorString(int error, const char **text) {
  *text = error == INVALID_IMAGE ? "device kernel image is invalid" : "an error of the stub of the driver";
  return 0;
}

API int cuGetErrorName(int, const char **name) {
  *name = "CUDA_ERROR";
  return 0;
}

API int cuModuleLoadData(void **module, const void *image) {
  *module = (void *)128;
  stub::record("module", is_loadable(image) ? "load" : "invalid image");
  return is_loadable(image) ? 0 : INVALID_IMAGE;
}

API int cuModuleLoadDataEx(void **module, const void *image, unsigned, void *, void *) {
  return cuModuleLoadData(module, image);
}

API int cuModuleLoad(void **module, const char *) {
  *module = (void *)128;
  stub::record("module", "load");
  return 0;
}

API int cuModuleUnload(void *) { return 0; }

API int cuModuleGetFunction(void **function, void *, const char *name) {
  *function = strdup(name);
  return 0;
}

API int cuFuncGetAttribute(int *value, int which, void *) {
  constexpr int max_threads = 0, num_registers = 4;
  *value = which == max_threads ? 1024 : which == num_registers ? 32 : 0;
  return 0;
}

API int cuFuncSetAttribute(void *, int, int) { return 0; }

API int cuFuncSetCacheConfig(void *, int) { return 0; }

API int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned, unsigned, unsigned, unsigned,
                       void *stream, void **, void **) {
  return launch((const char *)function, x && y && z, stream);
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
};

API int cuLaunchKernelEx(const LaunchConfig *config, void *function, void **, void **) {
  const unsigned *grid = config->grid;
  return launch((const char *)function, grid[0] && grid[1] && grid[2], config->stream);
}

API int cuLaunchCooperativeKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned, unsigned,
                                  unsigned, unsigned, void *stream, void **) {
  return launch((const char *)function, x && y && z, stream);
}

API int cuStreamIsCapturing(void *stream, int *status) {
  return cudaStreamIsCapturing((cudaStream_t)stream, (cudaStreamCaptureStatus *)status);
}

API int cuPointerGetAttribute(void *value, int which, unsigned long long address) {
  constexpr int device_pointer = 3, of_device = 2;
  *(unsigned long long *)value = which == device_pointer ? address : of_device;
  return 0;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *, int, size_t) {
  *count = 8;
  return 0;
}

API int cuOccupancyMaxActiveClusters(int *count, void *, void *) {
  *count = 8;
  return 0;
}

API int cuTensorMapEncodeTiled(...) { return 0; }

API int cuLinkCreate_v2(...) { return 0; }

API int cuLinkAddData_v2(...) { return 0; }

API int cuLinkComplete(...) { return 0; }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                                 enum cudaDriverEntryPointQueryResult *status) {
  void *found = dlsym(RTLD_DEFAULT, name);
  *function = found ? found : (void *)unknown_driver_function;
  if (status) *status = (enum cudaDriverEntryPointQueryResult)0;
  return cudaSuccess;
}

// NVML: a handle is the number of a GPU, plus one. CUDA_VISIBLE_DEVICES does not hide a GPU from it.

API int nvmlInit_v2() { return 0; }

API int nvmlInit() { return 0; }

API int nvmlShutdown() { return 0; }

API const char *nvmlErrorString(int) { return "an error of the stub of NVML"; }

API int nvmlSystemGetCudaDriverVersion_v2(int *version) { return cudaDriverGetVersion(version); }

API int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = stub::num_installed_devices();
  return 0;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
  *device = (void *)(uintptr_t)(number + 1);
  return (int)number < stub::num_installed_devices() ? 0 : NVML_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
  unsigned domain, bus = 0;
  sscanf(text, "%x:%x", &domain, &bus);
  return nvmlDeviceGetHandleByIndex_v2(bus - 4, device);
}

API int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, void *) {
  *count = 0;
  return 0;
}

API int nvmlDeviceGetNvLinkRemoteDeviceType(...) { return NVML_NOT_FOUND; }

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(...) { return NVML_NOT_FOUND; }

API int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
  snprintf(text, size, "%s", stub::uuid_of_installed((uintptr_t)device - 1).c_str());
  return 0;
}
