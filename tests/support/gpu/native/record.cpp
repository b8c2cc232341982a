// The record of CUDA calls, which tests read through ctypes.
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "runtime.h"

namespace {

struct Record {
  std::mutex mutex;
  bool is_on = false;
  std::vector<std::string> lines;
  FILE *trace = nullptr;
};

// Never destroyed: threads of torch still call when the process ends.
Record &the_record() {
  static Record *record = [] {
    auto *made = new Record;
    if (const char *path = getenv("GPU_STUB_TRACE")) made->trace = fopen(path, "a");
    return made;
  }();
  return *record;
}

}  // namespace

void stub::record(const std::string &kind, const std::string &detail, cudaStream_t stream) {
  Record &record = the_record();
  if (!record.is_on && !record.trace) return;
  std::string line = kind + "\t" + detail + "\t" + std::to_string((unsigned long)stream);
  std::lock_guard<std::mutex> lock(record.mutex);
  if (record.is_on) record.lines.push_back(line);
  if (!record.trace) return;
  fprintf(record.trace, "%s\n", line.c_str());
  fflush(record.trace);
}

// Start or stop the record. A start forgets what was recorded before.
API void gpu_stub_record(int is_on) {
  Record &record = the_record();
  std::lock_guard<std::mutex> lock(record.mutex);
  record.is_on = is_on;
  if (is_on) record.lines.clear();
}

API long gpu_stub_num_calls() {
  std::lock_guard<std::mutex> lock(the_record().mutex);
  return the_record().lines.size();
}

API const char *gpu_stub_call(long number) {
  std::lock_guard<std::mutex> lock(the_record().mutex);
  return the_record().lines[number].c_str();
}

// For kernels that Python computes.
API void gpu_stub_note(const char *kind, const char *detail, cudaStream_t stream) {
  stub::record(kind, detail, stream);
}
