// Streams and events.
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.h"

using stub::Stream;

namespace {

using Clock = std::chrono::steady_clock;

struct Event {
  bool is_timed;
  bool is_recorded = false;
  Clock::time_point time;
  Stream *stream = nullptr;          // where it was recorded
  stub::Capture *capture = nullptr;  // in which it was recorded
  long num_enqueued = 0;             // in that stream until then
  long position = 0;                 // in that stream
};

Event *event_of(cudaEvent_t handle) { return (Event *)handle; }

// The legacy stream of a GPU, and its stream of each thread, which is the same here.
bool is_default(cudaStream_t handle) { return (uintptr_t)handle <= 2; }

Stream *made(int device, int priority, bool is_default) {
  auto *stream = new Stream{device, priority, is_default};
  stub::add_stream(stream);
  return stream;
}

Stream *default_stream(int device) {
  static std::mutex mutex;
  static auto *streams = new std::vector<Stream *>;
  std::lock_guard<std::mutex> lock(mutex);
  while ((int)streams->size() <= device) streams->push_back(made((int)streams->size(), 0, true));
  return (*streams)[device];
}

}  // namespace

Stream *stub::stream_of(cudaStream_t handle) {
  return is_default(handle) ? default_stream(current_device()) : (Stream *)handle;
}

cudaError_t stub::enqueue(cudaStream_t handle, Work work) {
  Stream *stream = stream_of(handle);
  if (stream->capture)
    add_to_capture(stream, std::move(work));
  else
    add_work(stream, std::move(work));
  return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned, int priority) {
  *handle = (cudaStream_t)made(stub::current_device(), priority, false);
  return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t *handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }

API cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  *priority = stub::stream_of(handle)->priority;
  return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  stub::record("query", "stream", handle);
  if (cudaError_t error = stub::refuse_on_captured(handle, "cudaStreamQuery")) return error;
  Stream *stream = stub::stream_of(handle);
  return stub::has_done(stream, stub::num_given(stream)) ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  stub::record("wait", "stream", handle);
  if (cudaError_t error = stub::refuse_on_captured(handle, "cudaStreamSynchronize")) return error;
  Stream *stream = stub::stream_of(handle);
  stub::finish(stream, stub::num_given(stream));
  return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize() {
  stub::record("wait", "device");
  if (cudaError_t error = stub::refuse_in_capture("cudaDeviceSynchronize")) return error;
  stub::finish_all();
  return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
  stub::record("stream wait", "event", handle);
  Event *event = event_of(awaited);
  if (event->capture)
    stub::join_capture(stub::stream_of(handle), event->stream, event->capture, event->num_enqueued);
  else if (event->is_recorded)
    stub::add_wait(stub::stream_of(handle), event->stream, event->position);
  return cudaSuccess;
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  stub::record("host function", "cudaLaunchHostFunc", handle);
  return stub::enqueue(handle, [=] { function(data); });
}

typedef void (*StreamCallback)(cudaStream_t, cudaError_t, void *);

API cudaError_t cudaStreamAddCallback(cudaStream_t handle, StreamCallback function, void *data, unsigned) {
  stub::record("host function", "cudaStreamAddCallback", handle);
  return stub::enqueue(handle, [=] { function(handle, cudaSuccess, data); });
}

// For a kernel that Python computes.
API cudaError_t gpu_stub_enqueue(cudaStream_t handle, void (*function)(void *), void *data) {
  return stub::enqueue(handle, [=] { function(data); });
}

API void gpu_stub_finish(cudaStream_t handle) {
  Stream *stream = stub::stream_of(handle);
  stub::finish(stream, stub::num_given(stream));
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) {
  *handle = (cudaEvent_t) new Event{!(flags & cudaEventDisableTiming)};
  return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t *handle) { return cudaEventCreateWithFlags(handle, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete event_of(handle);
  return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned) {
  stub::record("event record", "event", stream_handle);
  Event *event = event_of(handle);
  event->is_recorded = true;
  event->time = Clock::now();
  event->stream = stub::stream_of(stream_handle);
  event->capture = event->stream->capture;
  event->num_enqueued = event->stream->num_enqueued;
  event->position = stub::num_given(event->stream);
  return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return cudaEventRecordWithFlags(handle, stream, 0);
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  stub::record("query", "event");
  if (event_of(handle)->capture) return stub::fail(cudaErrorCapturedEvent);
  if (cudaError_t error = stub::refuse_in_capture("cudaEventQuery")) return error;
  Event *event = event_of(handle);
  bool is_done = !event->is_recorded || stub::has_done(event->stream, event->position);
  return is_done ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  stub::record("wait", "event");
  if (event_of(handle)->capture) return stub::fail(cudaErrorCapturedEvent);
  if (cudaError_t error = stub::refuse_in_capture("cudaEventSynchronize")) return error;
  Event *event = event_of(handle);
  if (event->is_recorded) stub::finish(event->stream, event->position);
  return cudaSuccess;
}

// The time of the host between the two records.
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  Event *first = event_of(start), *last = event_of(end);
  bool are_usable = first->is_timed && last->is_timed && first->is_recorded && last->is_recorded;
  if (!are_usable) return stub::fail(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return cudaSuccess;
}
