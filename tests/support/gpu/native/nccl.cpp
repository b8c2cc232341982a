// NCCL between processes of this machine: the ranks of a communicator hand bytes over in memory that they share.
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "collectives.h"

using namespace stub;

namespace {

struct UniqueId {
  char bytes[128];
};

std::mutex factors_mutex;
auto *factors = new std::map<int, Factor>;

Sum sum_of(int reduction, DataType type) {
  if (reduction < NUM_REDUCTIONS) return {Reduction(reduction), type};
  std::lock_guard<std::mutex> lock(factors_mutex);
  return {SUM, type, true, factors->at(reduction)};
}

NcclResult initialize(Communicator **made, const std::string &name, int num_ranks, int rank) {
  if (num_ranks > Meeting::MAX_RANKS || rank < 0 || rank >= num_ranks) return INVALID_ARGUMENT;
  try {
    auto meeting = std::make_shared<Meeting>(name, num_ranks, rank);
    *made = new Communicator{name, num_ranks, rank, current_device(), meeting};
  } catch (const RankLost &) {
    return SYSTEM_ERROR;
  }
  return SUCCESS;
}

bool is_known(int type) { return type >= 0 && type < NUM_TYPES; }

}  // namespace

API int ncclGetVersion(int *version) {
  *version = 23007;
  return SUCCESS;
}

API const char *ncclGetErrorString(int error) {
  switch (error) {
    case SUCCESS:
      return "no error";
    case INVALID_ARGUMENT:
      return "invalid argument";
    case INVALID_USAGE:
      return "invalid usage: the stub of NCCL has no such function";
    case REMOTE_ERROR:
      return "remote process exited or there was a network error";
    default:
      return "unhandled system error";
  }
}

API const char *ncclGetLastError(Communicator *) { return ""; }

API int ncclGetUniqueId(UniqueId *id) {
  std::random_device random;
  memset(id->bytes, 0, sizeof id->bytes);
  snprintf(id->bytes, sizeof id->bytes, "%08x%08x%08x", random(), random(), random());
  return SUCCESS;
}

API int ncclCommInitRank(Communicator **made, int num_ranks, UniqueId id, int rank) {
  record("collective", "ncclCommInitRank");
  return initialize(made, id.bytes, num_ranks, rank);
}

API int ncclCommInitRankConfig(Communicator **made, int num_ranks, UniqueId id, int rank, void *) {
  return ncclCommInitRank(made, num_ranks, id, rank);
}

API int ncclCommInitRankScalable(Communicator **made, int num_ranks, int rank, int, UniqueId *ids, void *) {
  return ncclCommInitRank(made, num_ranks, ids[0], rank);
}

// The ranks with one color, in the order of their keys.
API int ncclCommSplit(Communicator *parent, int color, int key, Communicator **made, void *) {
  record("collective", "ncclCommSplit");
  struct Choice {
    int color, key;
  } own = {color, key};
  std::vector<Choice> choices(parent->num_ranks);
  gather_all(*parent, &own, choices.data(), sizeof own);
  std::string name = parent->name + "-" + std::to_string(parent->num_splits++) + "-" + std::to_string(color);
  *made = nullptr;
  if (color < 0) return SUCCESS;
  int num_ranks = 0, new_rank = 0;
  for (int rank = 0; rank < parent->num_ranks; rank++) {
    if (choices[rank].color != color) continue;
    num_ranks++;
    new_rank += std::make_pair(choices[rank].key, rank) < std::make_pair(key, parent->rank);
  }
  return initialize(made, name, num_ranks, new_rank);
}

API int ncclCommCount(Communicator *communicator, int *count) {
  *count = communicator->num_ranks;
  return SUCCESS;
}

API int ncclCommUserRank(Communicator *communicator, int *rank) {
  *rank = communicator->rank;
  return SUCCESS;
}

API int ncclCommCuDevice(Communicator *communicator, int *device) {
  *device = communicator->device;
  return SUCCESS;
}

API int ncclCommGetAsyncError(Communicator *communicator, int *error) {
  *error = communicator->error;
  return SUCCESS;
}

API int ncclCommFinalize(Communicator *) { return SUCCESS; }

// A communicator lives on: another thread may still ask for its error.
API int ncclCommDestroy(Communicator *) { return SUCCESS; }

API int ncclCommAbort(Communicator *communicator) {
  record("collective", "ncclCommAbort");
  communicator->meeting->abort();
  return SUCCESS;
}

API int ncclCommRegister(Communicator *, void *, size_t, void **handle) {
  *handle = (void *)16;
  return SUCCESS;
}

API int ncclCommDeregister(Communicator *, void *) { return SUCCESS; }

API int ncclGroupStart() {
  start_group();
  return SUCCESS;
}

API int ncclGroupEnd() { return end_group(); }

API int ncclRedOpCreatePreMulSum(int *reduction, void *scalar, int type, int, Communicator *) {
  static int num_made = NUM_REDUCTIONS;
  if (!is_known(type)) return INVALID_ARGUMENT;
  std::lock_guard<std::mutex> lock(factors_mutex);
  *reduction = num_made++;
  memcpy((*factors)[*reduction].value, scalar, size_of(DataType(type)));
  return SUCCESS;
}

API int ncclRedOpDestroy(int reduction, Communicator *) {
  std::lock_guard<std::mutex> lock(factors_mutex);
  factors->erase(reduction);
  return SUCCESS;
}

API int ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, Communicator *own,
                      cudaStream_t stream) {
  if (!is_known(type)) return INVALID_ARGUMENT;
  Sum sum = sum_of(reduction, DataType(type));
  return add("ncclAllReduce", {own, stream, [=] { reduce_all(*own, from, to, count, sum); }});
}

API int ncclReduce(const void *from, void *to, size_t count, int type, int reduction, int root, Communicator *own,
                   cudaStream_t stream) {
  if (!is_known(type)) return INVALID_ARGUMENT;
  Sum sum = sum_of(reduction, DataType(type));
  void *result = own->rank == root ? to : nullptr;
  return add("ncclReduce", {own, stream, [=] { reduce_all(*own, from, result, count, sum); }});
}

API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int reduction, Communicator *own,
                          cudaStream_t stream) {
  if (!is_known(type)) return INVALID_ARGUMENT;
  Sum sum = sum_of(reduction, DataType(type));
  size_t num_bytes = count * size_of(sum.type);
  auto work = [=] {
    for (int rank = 0; rank < own->num_ranks; rank++)
      reduce_all(*own, (const char *)from + rank * num_bytes, rank == own->rank ? to : nullptr, count, sum);
  };
  return add("ncclReduceScatter", {own, stream, work});
}

API int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  return add("ncclAllGather", {own, stream, [=] { gather_all(*own, from, to, num_bytes); }});
}

API int ncclGather(const void *from, void *to, size_t count, int type, int root, Communicator *own,
                   cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  void *result = own->rank == root ? to : nullptr;
  return add("ncclGather", {own, stream, [=] { gather_all(*own, from, result, num_bytes); }});
}

API int ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  auto work = [=] {
    for (int rank = 0; rank < own->num_ranks; rank++)
      gather_all(*own, (const char *)from + rank * num_bytes, rank == own->rank ? to : nullptr, num_bytes);
  };
  return add("ncclAlltoAll", {own, stream, work});
}

API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *own,
                      cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  return add("ncclBroadcast", {own, stream, [=] { broadcast_from(*own, from, to, num_bytes, root); }});
}

API int ncclBcast(void *values, size_t count, int type, int root, Communicator *own, cudaStream_t stream) {
  return ncclBroadcast(values, values, count, type, root, own, stream);
}

API int ncclSend(const void *from, size_t count, int type, int peer, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  return add("ncclSend", {own, stream, nullptr, (char *)from, num_bytes, peer, true});
}

API int ncclRecv(void *to, size_t count, int type, int peer, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * size_of(DataType(type));
  return add("ncclRecv", {own, stream, nullptr, (char *)to, num_bytes, peer, false});
}

API int ncclMemAlloc(void **address, size_t size) { return cudaMalloc(address, size) ? SYSTEM_ERROR : SUCCESS; }

API int ncclMemFree(void *address) { return cudaFree(address) ? SYSTEM_ERROR : SUCCESS; }
