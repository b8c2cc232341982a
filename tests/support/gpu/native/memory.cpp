// Memory of the GPUs and pinned memory, which are both of the host, and copies between them.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime.h"

using stub::Location;
using stub::Place;

namespace {

struct Range {
  size_t size;
  Location location;
};

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, Range> ranges;  // by their first address
  std::vector<size_t> used = std::vector<size_t>(64);
};

Memory &memory() {
  static Memory *made = new Memory;
  return *made;
}

constexpr size_t PAGE = 4096;
constexpr size_t LARGE_PAGE = 2 << 20;

size_t rounded(size_t size) {
  size_t page = size < LARGE_PAGE / 2 ? PAGE : LARGE_PAGE;
  return size ? (size + page - 1) / page * page : page;
}

void *allocate(size_t size, Location location) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  size = rounded(size);
  Memory &all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  size_t &used = all.used[location.device];
  if (location.place == Place::device && used + size > stub::device_bytes()) return nullptr;
  void *address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  all.ranges[(uintptr_t)address] = {size, location};
  if (location.place == Place::device) used += size;
  return address;
}

cudaError_t release(void *address) {
  Memory &all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.ranges.find((uintptr_t)address);
  if (found == all.ranges.end()) return stub::fail(cudaErrorInvalidValue);
  Range range = found->second;
  if (range.location.place == Place::device) all.used[range.location.device] -= range.size;
  munmap(address, range.size);
  all.ranges.erase(found);
  return cudaSuccess;
}

// "H2D pinned", "D2H pageable", "D2D", ...
std::string direction(const void *to, const void *from) {
  Place target = stub::locate(to).place, source = stub::locate(from).place;
  std::string ends = std::string(source == Place::device ? "D" : "H") + "2";
  ends += target == Place::device ? "D" : "H";
  if (ends == "D2D" || ends == "H2H") return ends;
  Place host = target == Place::device ? source : target;
  return ends + (host == Place::pinned ? " pinned" : " pageable");
}

bool values_are_zero() {
  static bool are = getenv("GPU_STUB_LEVEL") && std::string(getenv("GPU_STUB_LEVEL")) == "calls";
  return are;
}

void move_bytes(void *to, const void *from, size_t size, bool to_host) {
  if (to_host && values_are_zero())
    memset(to, 0, size);
  else
    memmove(to, from, size);
}

// As CUDA does: pageable memory is read before the call returns, and written before it returns.
cudaError_t copy_pageable(void *to, const void *from, size_t size, cudaStream_t stream, bool to_host) {
  if (to_host) {
    stub::enqueue(stream, [=] { move_bytes(to, from, size, to_host); });
    stub::finish(stub::stream_of(stream), stub::num_given(stub::stream_of(stream)));
    return cudaSuccess;
  }
  auto bytes = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + size);
  return stub::enqueue(stream, [=] { memcpy(to, bytes->data(), bytes->size()); });
}

cudaError_t copy(void *to, const void *from, size_t size, cudaStream_t stream, const char *how) {
  std::string ends = direction(to, from);
  stub::record("copy", ends + " " + how + " " + std::to_string(size), stream);
  bool is_pageable = ends.find("pageable") != std::string::npos;
  if (is_pageable) {
    cudaError_t error = stub::refuse_on_captured(stream, "a copy of pageable memory");
    if (error) return error;
  }
  bool to_host = ends.compare(0, 3, "D2H") == 0;
  if (is_pageable && stub::is_deferred()) return copy_pageable(to, from, size, stream, to_host);
  return stub::enqueue(stream, [=] { move_bytes(to, from, size, to_host); });
}

}  // namespace

Location stub::locate(const void *address) {
  Memory &all = memory();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto next = all.ranges.upper_bound((uintptr_t)address);
  if (next == all.ranges.begin()) return {Place::pageable, 0};
  auto found = std::prev(next);
  bool is_inside = (uintptr_t)address < found->first + found->second.size;
  return is_inside ? found->second.location : Location{Place::pageable, 0};
}

static cudaError_t allocated(void **address, size_t size, Place place, const char *call) {
  cudaError_t error = stub::refuse_in_capture(call);
  if (error) return error;
  stub::record(place == Place::device ? "allocate" : "pin", std::to_string(size));
  *address = allocate(size, {place, stub::current_device()});
  return *address ? cudaSuccess : stub::fail(cudaErrorMemoryAllocation);
}

static cudaError_t freed(void *address, const char *kind, const char *call) {
  if (!address) return cudaSuccess;
  cudaError_t error = stub::refuse_in_capture(call);
  if (error) return error;
  stub::record(kind, call);
  stub::finish_all();
  return release(address);
}

API cudaError_t cudaMalloc(void **address, size_t size) {
  return allocated(address, size, Place::device, "cudaMalloc");
}

API cudaError_t cudaMallocManaged(void **address, size_t size, unsigned) { return cudaMalloc(address, size); }

API cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t) {
  return cudaMalloc(address, size);
}

API cudaError_t cudaFree(void *address) { return freed(address, "free", "cudaFree"); }

API cudaError_t cudaFreeAsync(void *address, cudaStream_t) { return cudaFree(address); }

API cudaError_t cudaHostAlloc(void **address, size_t size, unsigned) {
  return allocated(address, size, Place::pinned, "cudaHostAlloc");
}

API cudaError_t cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }

API cudaError_t cudaFreeHost(void *address) { return freed(address, "unpin", "cudaFreeHost"); }

API cudaError_t cudaHostRegister(void *address, size_t size, unsigned) {
  stub::record("pin", std::to_string(size));
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().ranges[(uintptr_t)address] = {size, {Place::pinned, stub::current_device()}};
  return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *address) {
  stub::record("unpin", "cudaHostUnregister");
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().ranges.erase((uintptr_t)address);
  return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  *total = stub::device_bytes();
  *available = *total - memory().used[stub::current_device()];
  return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address) {
  memset(attributes, 0, sizeof *attributes);
  Location location = stub::locate(address);
  attributes->device = location.device;
  attributes->type = location.place == Place::device   ? cudaMemoryTypeDevice
                     : location.place == Place::pinned ? cudaMemoryTypeHost
                                                       : cudaMemoryTypeUnregistered;
  if (location.place != Place::pageable) attributes->devicePointer = (void *)address;
  if (location.place == Place::pinned) attributes->hostPointer = (void *)address;
  return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind,
                                cudaStream_t stream) {
  return copy(to, from, size, stream, "async");
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t stream) {
  return copy(to, from, size, stream, "async");
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind) {
  cudaError_t error = stub::refuse_in_capture("cudaMemcpy");
  if (error) return error;
  copy(to, from, size, nullptr, "sync");
  return cudaStreamSynchronize(nullptr);
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind, cudaStream_t stream) {
  for (size_t row = 0; row < height; row++) {
    cudaError_t error =
        copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, stream, "async");
    if (error) return error;
  }
  return cudaSuccess;
}

API cudaError_t cudaMemcpyToSymbol(const void *, const void *, size_t, size_t, enum cudaMemcpyKind) {
  return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *address, int value, size_t size, cudaStream_t stream) {
  stub::record("launch", "memset", stream);
  return stub::enqueue(stream, [=] { memset(address, value, size); });
}

API cudaError_t cudaMemset(void *address, int value, size_t size) {
  return cudaMemsetAsync(address, value, size, nullptr);
}

API cudaError_t cudaGetSymbolAddress(void **address, const void *) {
  static char symbol[1 << 16];
  *address = symbol;
  return cudaSuccess;
}
