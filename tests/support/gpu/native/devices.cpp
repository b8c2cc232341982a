// The GPUs: how many, which are visible, what they say about themselves, and the last error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <vector>

#include "runtime.h"

namespace {

constexpr int CUDA_VERSION_ANSWERED = 13020;

bool is_part(const std::string &name) { return name.compare(0, 4, "MIG-") == 0; }

// The number of a GPU that CUDA_VISIBLE_DEVICES names, or -1. A part of one, "MIG-<uuid>" or, as drivers before 470 name
// it, "MIG-GPU-<uuid>/1/0", is the whole here.
int number_of_name(std::string name) {
  if (name.compare(0, 8, "MIG-GPU-") == 0) name = name.substr(4, name.find('/') - 4);
  if (is_part(name)) name.replace(0, 4, "GPU-");
  if (name.empty()) return -1;
  if (name.find_first_not_of("0123456789") == std::string::npos) {
    int number = atoi(name.c_str());
    return number < stub::num_installed_devices() ? number : -1;
  }
  for (int number = 0; number < stub::num_installed_devices(); number++)
    if (stub::uuid_of_installed(number).compare(0, name.size(), name) == 0) return number;
  return -1;
}

// As CUDA reads CUDA_VISIBLE_DEVICES: up to the first name that it does not know, or to a part of a GPU.
std::vector<int> visible_numbers() {
  std::vector<int> numbers;
  const char *names = getenv("CUDA_VISIBLE_DEVICES");
  if (!names) {
    for (int number = 0; number < stub::num_installed_devices(); number++) numbers.push_back(number);
    return numbers;
  }
  std::istringstream words(names);
  for (std::string name; std::getline(words, name, ',');) {
    int number = number_of_name(name);
    if (number < 0) break;
    numbers.push_back(number);
    if (is_part(name)) break;
  }
  return numbers;
}

const std::vector<int> &visible() {
  static auto *numbers = new std::vector<int>(visible_numbers());
  return *numbers;
}

thread_local int device_of_thread = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Named {
  cudaError_t error;
  const char *name;
  const char *text;
};

const Named ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "stream capture was not initiated in this stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const Named &named(cudaError_t error) {
  static const Named other = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  for (const Named &row : ERRORS)
    if (row.error == error) return row;
  return other;
}

}  // namespace

int stub::num_installed_devices() {
  const char *given = getenv("GPU_STUB_DEVICES");
  return given ? atoi(given) : 1;
}

std::string stub::uuid_of_installed(int number) {
  char text[64];
  snprintf(text, sizeof text, "GPU-%02x101010-1010-1010-1010-101010101010", 0x10 + number);
  return text;
}

int stub::num_devices() { return visible().size(); }

int stub::current_device() { return device_of_thread; }

size_t stub::device_bytes() {
  const char *given = getenv("GPU_STUB_MEMORY_GIB");
  return (given ? atof(given) : 80.0) * (1ull << 30);
}

cudaError_t stub::fail(cudaError_t error) {
  last_error = error;
  return error;
}

API cudaError_t cudaGetDeviceCount(int *count) {
  *count = stub::num_devices();
  return *count ? cudaSuccess : stub::fail(cudaErrorNoDevice);
}

API cudaError_t cudaGetDevice(int *device) {
  *device = device_of_thread;
  return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= stub::num_devices()) return stub::fail(cudaErrorInvalidDevice);
  device_of_thread = device;
  return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDA_VERSION_ANSWERED;
  return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

API cudaError_t cudaPeekAtLastError() { return last_error; }

API cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

API const char *cudaGetErrorString(cudaError_t error) { return named(error).text; }

API const char *cudaGetErrorName(cudaError_t error) { return named(error).name; }

static void set_uuid(cudaUUID_t &uuid, int device) {
  memset(&uuid, 0x10, sizeof uuid);
  uuid.bytes[0] = 0x10 + visible()[device];
}

static void set_limits(cudaDeviceProp &properties) {
  properties.sharedMemPerBlock = 49152;
  properties.sharedMemPerBlockOptin = stub::MAX_SHARED_BYTES;
  properties.sharedMemPerMultiprocessor = 233472;
  properties.reservedSharedMemPerBlock = 1024;
  properties.regsPerBlock = 65536;
  properties.regsPerMultiprocessor = 65536;
  properties.warpSize = 32;
  properties.memPitch = 2147483647;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsDim[0] = 1024;
  properties.maxThreadsDim[1] = 1024;
  properties.maxThreadsDim[2] = 64;
  properties.maxGridSize[0] = 2147483647;
  properties.maxGridSize[1] = 65535;
  properties.maxGridSize[2] = 65535;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.maxBlocksPerMultiProcessor = 32;
  properties.totalConstMem = 65536;
  properties.textureAlignment = 512;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  if (device < 0 || device >= stub::num_devices()) return stub::fail(cudaErrorInvalidDevice);
  const char *name = getenv("GPU_STUB_NAME");
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", name ? name : "NVIDIA H100 80GB HBM3");
  set_uuid(properties->uuid, device);
  set_limits(*properties);
  properties->totalGlobalMem = stub::device_bytes();
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 132;
  properties->l2CacheSize = 52428800;
  properties->memoryBusWidth = 5120;
  properties->pciBusID = 4 + visible()[device];
  properties->concurrentKernels = 1;
  properties->unifiedAddressing = 1;
  properties->managedMemory = 1;
  properties->cooperativeLaunch = 1;
  properties->asyncEngineCount = 3;
  properties->canMapHostMemory = 1;
  return cudaSuccess;
}

static int attribute(int which) {
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return stub::MAX_SHARED_BYTES;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return 233472;
    case cudaDevAttrWarpSize:
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return 65536;
    case cudaDevAttrMultiProcessorCount:
      return 132;
    case cudaDevAttrL2CacheSize:
      return 52428800;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrComputeCapabilityMajor:
      return 9;
    case cudaDevAttrComputeCapabilityMinor:
      return 0;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
    default:
      return 0;
  }
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int) {
  *value = attribute(which);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  snprintf(text, size, "0000:%02x:00.0", 4 + visible()[device]);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
  *can = 1;
  return cudaSuccess;
}

API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) {
  *pool = (cudaMemPool_t)16;
  return cudaSuccess;
}

API cudaError_t cudaProfilerStart() { return cudaSuccess; }

API cudaError_t cudaProfilerStop() { return cudaSuccess; }
