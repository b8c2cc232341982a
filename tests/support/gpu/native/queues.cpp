// The level "time": work waits in its stream until the host or another stream waits for it. At the other levels it is
// done at once, so that a wait finds nothing to wait for.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime.h"

using stub::Stream;

namespace {

bool is_set(const char *name, const char *value) {
  const char *found = getenv(name);
  return found && std::string(found) == value;
}

// Streams other than the default one do their work as soon as they may, and the default one as late as it may. Else
// all of them are as late as they may be.
bool is_side_first() {
  static bool is = is_set("GPU_STUB_ORDER", "side_first");
  return is;
}

std::mutex queue_mutex;              // of all queues
std::recursive_mutex worker_mutex;   // of the thread that does the work of any stream
auto *streams = new std::vector<Stream *>;

// Gives Python's lock away while this thread waits for others or works: work may be written in Python.
class WithoutGil {
 public:
  WithoutGil() {
    static auto holds = (int (*)())dlsym(RTLD_DEFAULT, "PyGILState_Check");
    static auto is_alive = (int (*)())dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    static auto release = (void *(*)())dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    if (holds && is_alive && is_alive() && holds()) thread = release();
  }
  ~WithoutGil() {
    static auto acquire = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    if (thread) acquire(thread);
  }

 private:
  void *thread = nullptr;
};

bool take(Stream *stream, long position, stub::Item *item) {
  std::lock_guard<std::mutex> lock(queue_mutex);
  if (stream->num_done >= position || stream->pending.empty()) return false;
  *item = std::move(stream->pending.front());
  stream->pending.pop_front();
  return true;
}

void work_until(Stream *stream, long position) {
  stub::Item item;
  while (take(stream, position, &item)) {
    if (item.awaited) work_until(item.awaited, item.position);
    if (item.work) item.work();
    std::lock_guard<std::mutex> lock(queue_mutex);
    stream->num_done++;
  }
}

bool is_blocked(Stream *stream) {
  std::lock_guard<std::mutex> lock(queue_mutex);
  if (stream->pending.empty()) return true;
  const stub::Item &first = stream->pending.front();
  return first.awaited && first.awaited->num_done < first.position;
}

void append(Stream *stream, stub::Item item) {
  {
    std::lock_guard<std::mutex> lock(queue_mutex);
    stream->pending.push_back(std::move(item));
    stream->num_given++;
  }
  if (!is_side_first() || stream->is_default) return;
  WithoutGil released;
  std::lock_guard<std::recursive_mutex> lock(worker_mutex);
  while (!is_blocked(stream)) work_until(stream, stream->num_done + 1);
}

}  // namespace

bool stub::is_deferred() {
  static bool is = is_set("GPU_STUB_LEVEL", "time");
  return is;
}

void stub::add_stream(Stream *stream) {
  std::lock_guard<std::mutex> lock(queue_mutex);
  streams->push_back(stream);
}

void stub::add_work(Stream *stream, Work work) {
  if (is_deferred())
    append(stream, {std::move(work), nullptr, 0});
  else
    work();
}

void stub::add_wait(Stream *stream, Stream *awaited, long position) {
  if (is_deferred()) append(stream, {nullptr, awaited, position});
}

long stub::num_given(Stream *stream) {
  std::lock_guard<std::mutex> lock(queue_mutex);
  return stream->num_given;
}

bool stub::has_done(Stream *stream, long position) {
  std::lock_guard<std::mutex> lock(queue_mutex);
  return stream->num_done >= position;
}

void stub::finish(Stream *stream, long position) {
  if (!is_deferred()) return;
  WithoutGil released;
  std::lock_guard<std::recursive_mutex> lock(worker_mutex);
  work_until(stream, position);
}

void stub::finish_all() {
  if (!is_deferred()) return;
  std::vector<Stream *> all;
  {
    std::lock_guard<std::mutex> lock(queue_mutex);
    all = *streams;
  }
  // The default stream first, so that work in it which waits for no other stream is done before theirs.
  std::stable_sort(all.begin(), all.end(),
                   [](Stream *one, Stream *other) { return one->is_default > other->is_default; });
  for (Stream *stream : all) finish(stream, num_given(stream));
}
