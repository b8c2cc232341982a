// A CUDA runtime without a GPU: device memory is memory of the host. This file has what the others share. They are
// compiled as one file, so their names differ.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>

#include "driver_types.h"
#include "vector_types.h"

#define API extern "C" __attribute__((visibility("default")))

// Functions of CUDA that call each other.
API cudaError_t cudaDeviceGetAttribute(int *, enum cudaDeviceAttr, int);
API cudaError_t cudaDeviceSynchronize();
API cudaError_t cudaDriverGetVersion(int *);
API cudaError_t cudaFree(void *);
API cudaError_t cudaGetDevice(int *);
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *, int);
API const char *cudaGetErrorName(cudaError_t);
API cudaError_t cudaMalloc(void **, size_t);
API cudaError_t cudaStreamIsCapturing(cudaStream_t, enum cudaStreamCaptureStatus *);
API cudaError_t cudaStreamSynchronize(cudaStream_t);

namespace stub {

constexpr int MAX_SHARED_BYTES = 232448;  // of a block, as on an H100

// record.cpp: add a call to the record that a test reads, as "kind<tab>detail<tab>stream".
void record(const std::string &kind, const std::string &detail, cudaStream_t stream = nullptr);

// devices.cpp
int num_devices();
int current_device();
size_t device_bytes();                // the memory of each GPU
int num_installed_devices();          // also those that CUDA_VISIBLE_DEVICES hides
std::string uuid_of_installed(int number);
cudaError_t fail(cudaError_t error);  // sets what cudaGetLastError returns; then returns it

// memory.cpp
enum class Place { pageable, pinned, device };
struct Location {
  Place place;
  int device;
};
Location locate(const void *address);

// streams.cpp: what a stream does takes effect here, and nowhere else.
using Work = std::function<void()>;
struct Capture;
struct Stream;
struct Item {
  Work work;
  Stream *awaited;  // before the work, this stream has to come to this position
  long position;
};
struct Stream {
  int device;
  int priority;
  bool is_default = false;
  std::deque<Item> pending;
  long num_given = 0;
  long num_done = 0;
  Capture *capture = nullptr;  // what captures it now
  long num_enqueued = 0;       // in this capture
  long num_joined = 0;         // of these, what another stream of the capture waits for
};
Stream *stream_of(cudaStream_t handle);
cudaError_t enqueue(cudaStream_t handle, Work work);

// queues.cpp. A position in a stream is the number of items that it was given before.
bool is_deferred();                                            // at the level "time"
void add_stream(Stream *stream);
void add_work(Stream *stream, Work work);                      // done at once if nothing is deferred
void add_wait(Stream *stream, Stream *awaited, long position);
long num_given(Stream *stream);
bool has_done(Stream *stream, long position);
void finish(Stream *stream, long position);                    // the host waits
void finish_all();

// graphs.cpp
cudaError_t refuse_in_capture(const char *call);  // of what no stream of any capture may meet; else cudaSuccess
cudaError_t refuse_on_captured(cudaStream_t handle, const char *call);
void add_to_capture(Stream *stream, Work work);
void join_capture(Stream *stream, Stream *recorded, Capture *capture, long num_enqueued);

}  // namespace stub
