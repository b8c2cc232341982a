// Capture of streams into graphs: what is legal in one, and graphs that do again what was captured.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "runtime.h"

using stub::Capture;
using stub::Stream;

struct stub::Capture {
  unsigned long long id;
  Stream *origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool is_valid = true;
  std::vector<Stream *> streams;
  std::vector<stub::Work> work;
};

namespace {

struct Graph {
  std::vector<stub::Work> work;
};

std::recursive_mutex graphs_mutex;
auto *captures = new std::vector<Capture *>;  // that go on now
std::atomic<unsigned long long> num_captures{0};
thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

using Lock = std::lock_guard<std::recursive_mutex>;

// By the rules of cudaThreadExchangeStreamCaptureMode: may this thread's unsafe calls meet this capture?
bool forbids_unsafe_calls(const Capture &capture) {
  bool is_own = capture.thread == std::this_thread::get_id();
  switch (mode_of_thread) {
    case cudaStreamCaptureModeGlobal:
      return is_own ? capture.mode != cudaStreamCaptureModeRelaxed
                    : capture.mode == cudaStreamCaptureModeGlobal;
    case cudaStreamCaptureModeThreadLocal:
      return is_own && capture.mode != cudaStreamCaptureModeRelaxed;
    default:
      return false;
  }
}

cudaError_t refuse(Capture &capture, const char *call) {
  stub::record("illegal", std::string("in a capture: ") + call);
  capture.is_valid = false;
  return stub::fail(cudaErrorStreamCaptureUnsupported);
}

void enter(Capture *capture, Stream *stream) {
  stream->capture = capture;
  stream->num_enqueued = 0;
  stream->num_joined = 0;
  capture->streams.push_back(stream);
}

bool is_joined(const Capture &capture) {
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](Stream *stream) {
    return stream == capture.origin || stream->num_joined == stream->num_enqueued;
  });
}

}  // namespace

cudaError_t stub::refuse_in_capture(const char *call) {
  Lock lock(graphs_mutex);
  for (Capture *capture : *captures)
    if (forbids_unsafe_calls(*capture)) return refuse(*capture, call);
  return cudaSuccess;
}

cudaError_t stub::refuse_on_captured(cudaStream_t handle, const char *call) {
  Lock lock(graphs_mutex);
  Capture *capture = stream_of(handle)->capture;
  return capture ? refuse(*capture, call) : cudaSuccess;
}

void stub::add_to_capture(Stream *stream, Work work) {
  Lock lock(graphs_mutex);
  stream->num_enqueued++;
  stream->capture->work.push_back(std::move(work));
}

// A stream that waits for an event of a capture becomes a part of the capture.
void stub::join_capture(Stream *stream, Stream *recorded, Capture *capture, long num_enqueued) {
  Lock lock(graphs_mutex);
  if (std::find(captures->begin(), captures->end(), capture) == captures->end()) return;
  if (!stream->capture) enter(capture, stream);
  stream->num_enqueued++;
  recorded->num_joined = std::max(recorded->num_joined, num_enqueued);
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  Lock lock(graphs_mutex);
  stub::record("capture begin", std::to_string(mode), handle);
  Stream *stream = stub::stream_of(handle);
  if ((uintptr_t)handle <= 1 || stream->capture) return stub::fail(cudaErrorStreamCaptureUnsupported);
  auto *capture = new Capture{++num_captures, stream, mode, std::this_thread::get_id()};
  enter(capture, stream);
  captures->push_back(capture);
  return cudaSuccess;
}

API cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t handle, cudaGraph_t, const cudaGraphNode_t *,
                                              const cudaGraphEdgeData *, size_t,
                                              enum cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(handle, mode);
}

static cudaError_t result_of(const Capture &capture) {
  if (!capture.is_valid) return cudaErrorStreamCaptureInvalidated;
  return is_joined(capture) ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  Lock lock(graphs_mutex);
  *graph = nullptr;
  Capture *capture = stub::stream_of(handle)->capture;
  if (!capture || capture->origin != stub::stream_of(handle))
    return stub::fail(cudaErrorStreamCaptureUnmatched);
  for (Stream *stream : capture->streams) stream->capture = nullptr;
  captures->erase(std::find(captures->begin(), captures->end(), capture));
  cudaError_t error = result_of(*capture);
  stub::record("capture end", cudaGetErrorName(error), handle);
  if (error) return stub::fail(error);
  *graph = (cudaGraph_t) new Graph{std::move(capture->work)};
  return cudaSuccess;
}

static cudaStreamCaptureStatus status_of(Stream *stream) {
  if (!stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->is_valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

API cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  Lock lock(graphs_mutex);
  *status = status_of(stub::stream_of(handle));
  return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **dependencies,
                                         const cudaGraphEdgeData **edges, size_t *num_dependencies) {
  Lock lock(graphs_mutex);
  Capture *capture = stub::stream_of(handle)->capture;
  *status = status_of(stub::stream_of(handle));
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = (cudaGraph_t)16;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (num_dependencies) *num_dependencies = 0;
  return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  std::swap(*mode, mode_of_thread);
  return cudaSuccess;
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                              unsigned long long) {
  *executable = (cudaGraphExec_t) new Graph(*(Graph *)graph);
  return cudaSuccess;
}

API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                     unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  stub::record("launch", "graph", stream);
  for (const stub::Work &work : ((Graph *)executable)->work) stub::enqueue(stream, work);
  return cudaSuccess;
}

API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete (Graph *)graph;
  return cudaSuccess;
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete (Graph *)executable;
  return cudaSuccess;
}

API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *, size_t *count) {
  *count = std::max<size_t>(1, ((Graph *)graph)->work.size());
  return cudaSuccess;
}
