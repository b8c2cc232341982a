// NCCL between processes of this machine: the ranks of a communicator hand bytes over in memory that they share.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "meeting.h"
#include "numbers.h"
#include "runtime.h"

using stub::Channel;
using stub::DataType;
using stub::Meeting;
using stub::RankLost;
using stub::Reduction;

namespace {

enum Result { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

struct UniqueId {
  char bytes[128];
};

struct Communicator {
  std::string name;
  int num_ranks;
  int rank;
  int device;
  std::shared_ptr<Meeting> meeting;
  int num_splits = 0;
  Result error = SUCCESS;
};

// What multiplies the values of this rank before they are summed.
struct Factor {
  char value[8];
};
std::mutex factors_mutex;
auto *factors = new std::map<int, Factor>;

// A part of a group: a send, a receive, or a collective as a whole.
struct Operation {
  Communicator *communicator;
  cudaStream_t stream;
  std::function<void()> collective;
  char *bytes = nullptr;
  size_t num_bytes = 0;
  int peer = 0;
  bool is_send = false;
};

thread_local int group_depth = 0;
thread_local std::vector<Operation> *group = nullptr;

// Hand a buffer of each rank to all, a slot at a time. `write` fills this rank's slot, `read` sees those of all.
template <class Write, class Read>
void exchange(Communicator &communicator, size_t num_bytes, Write write, Read read) {
  Meeting &meeting = *communicator.meeting;
  for (size_t start = 0; start < num_bytes; start += Meeting::SLOT) {
    size_t size = std::min(Meeting::SLOT, num_bytes - start);
    write(meeting.slot(communicator.rank), start, size);
    meeting.wait_for_all();
    read(start, size);
    meeting.wait_for_all();
  }
}

auto copied_from(const void *source) {
  return [=](char *slot, size_t start, size_t size) { memcpy(slot, (const char *)source + start, size); };
}

struct Sum {
  Reduction reduction;
  DataType type;
  bool has_factor = false;
  Factor factor;
};

Sum sum_of(int reduction, DataType type) {
  if (reduction < stub::NUM_REDUCTIONS) return {Reduction(reduction), type};
  std::lock_guard<std::mutex> lock(factors_mutex);
  return {stub::SUM, type, true, factors->at(reduction)};
}

// `to` is null on a rank that gets no result.
void reduce_all(Communicator &communicator, const void *from, void *to, size_t count, const Sum &sum) {
  size_t width = stub::size_of(sum.type);
  auto write = [&](char *slot, size_t start, size_t size) {
    memcpy(slot, (const char *)from + start, size);
    if (sum.has_factor) stub::multiply(sum.type, slot, size / width, sum.factor.value);
  };
  auto read = [&](size_t start, size_t size) {
    if (!to) return;
    std::vector<const void *> slots;
    for (int rank = 0; rank < communicator.num_ranks; rank++) slots.push_back(communicator.meeting->slot(rank));
    stub::reduce(sum.reduction, sum.type, slots, (char *)to + start, size / width);
  };
  exchange(communicator, count * width, write, read);
}

// `to` is null on a rank that gets no result.
void gather_all(Communicator &communicator, const void *from, void *to, size_t num_bytes) {
  auto read = [&](size_t start, size_t size) {
    for (int rank = 0; to && rank < communicator.num_ranks; rank++)
      memcpy((char *)to + rank * num_bytes + start, communicator.meeting->slot(rank), size);
  };
  exchange(communicator, num_bytes, copied_from(from), read);
}

void broadcast_from(Communicator &communicator, const void *from, void *to, size_t num_bytes, int root) {
  auto write = [&](char *slot, size_t start, size_t size) {
    if (communicator.rank == root) memcpy(slot, (const char *)from + start, size);
  };
  auto read = [&](size_t start, size_t size) {
    memcpy((char *)to + start, communicator.meeting->slot(root), size);
  };
  exchange(communicator, num_bytes, write, read);
}

// Move the next part of a message. Returns whether there was room, or something to take.
bool move_part(Operation &operation) {
  Communicator &own = *operation.communicator;
  int from = operation.is_send ? own.rank : operation.peer, to = operation.is_send ? operation.peer : own.rank;
  Channel &channel = own.meeting->channel(from, to);
  if (channel.is_full == int(operation.is_send)) return false;
  if (operation.is_send) {
    channel.size = std::min(Channel::CAPACITY, operation.num_bytes);
    memcpy(channel.bytes, operation.bytes, channel.size);
  } else {
    if (channel.size > operation.num_bytes) throw RankLost();  // the two ends name other sizes
    memcpy(operation.bytes, channel.bytes, channel.size);
  }
  operation.bytes += channel.size;
  operation.num_bytes -= channel.size;
  channel.is_full = operation.is_send;
  return true;
}

// Messages of one channel keep their order; those of several channels go on together.
void move_messages(std::vector<Operation> messages) {
  while (!messages.empty()) {
    bool has_moved = false;
    std::vector<std::tuple<Communicator *, int, bool>> busy;
    for (Operation &message : messages) {
      std::tuple<Communicator *, int, bool> channel{message.communicator, message.peer, message.is_send};
      if (std::find(busy.begin(), busy.end(), channel) != busy.end()) continue;
      busy.push_back(channel);
      has_moved |= move_part(message);
    }
    auto is_done = [](const Operation &message) { return message.num_bytes == 0; };
    messages.erase(std::remove_if(messages.begin(), messages.end(), is_done), messages.end());
    if (has_moved || messages.empty()) continue;
    messages.front().communicator->meeting->check();
    timespec pause = {0, 50 * 1000};
    nanosleep(&pause, nullptr);
  }
}

// Enqueue work of a communicator; what fails there is the communicator's error from then on.
Result enqueue(Communicator *communicator, cudaStream_t stream, std::function<void()> work) {
  stub::enqueue(stream, [=] {
    try {
      if (communicator->error == SUCCESS) work();
    } catch (const RankLost &) {
      communicator->error = REMOTE_ERROR;
    }
  });
  return communicator->error;
}

Result run_group() {
  std::vector<Operation> operations, messages;
  std::swap(operations, *group);
  for (Operation &operation : operations) {
    if (!operation.collective) {
      if (operation.num_bytes) messages.push_back(operation);
      continue;
    }
    Result error = enqueue(operation.communicator, operation.stream, operation.collective);
    if (error) return error;
  }
  if (messages.empty()) return SUCCESS;
  return enqueue(messages[0].communicator, messages[0].stream, [=] { move_messages(messages); });
}

Result add(const char *name, Operation operation) {
  stub::record("collective", name, operation.stream);
  if (!operation.communicator) return INVALID_ARGUMENT;
  if (!group) group = new std::vector<Operation>;
  group->push_back(std::move(operation));
  return group_depth ? SUCCESS : run_group();
}

Result initialize(Communicator **made, const std::string &name, int num_ranks, int rank) {
  if (num_ranks > Meeting::MAX_RANKS || rank < 0 || rank >= num_ranks) return INVALID_ARGUMENT;
  try {
    auto meeting = std::make_shared<Meeting>(name, num_ranks, rank);
    *made = new Communicator{name, num_ranks, rank, stub::current_device(), meeting};
  } catch (const RankLost &) {
    return SYSTEM_ERROR;
  }
  return SUCCESS;
}

bool is_known(int type) { return type >= 0 && type < stub::NUM_TYPES; }

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
  stub::record("collective", "ncclCommInitRank");
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
  stub::record("collective", "ncclCommSplit");
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
  stub::record("collective", "ncclCommAbort");
  communicator->meeting->abort();
  return SUCCESS;
}

API int ncclCommRegister(Communicator *, void *, size_t, void **handle) {
  *handle = (void *)16;
  return SUCCESS;
}

API int ncclCommDeregister(Communicator *, void *) { return SUCCESS; }

API int ncclGroupStart() {
  group_depth++;
  return SUCCESS;
}

API int ncclGroupEnd() {
  if (--group_depth || !group) return SUCCESS;
  return run_group();
}

API int ncclRedOpCreatePreMulSum(int *reduction, void *scalar, int type, int, Communicator *) {
  static int num_made = stub::NUM_REDUCTIONS;
  if (!is_known(type)) return INVALID_ARGUMENT;
  std::lock_guard<std::mutex> lock(factors_mutex);
  *reduction = num_made++;
  memcpy((*factors)[*reduction].value, scalar, stub::size_of(DataType(type)));
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
  size_t num_bytes = count * stub::size_of(sum.type);
  auto work = [=] {
    for (int rank = 0; rank < own->num_ranks; rank++)
      reduce_all(*own, (const char *)from + rank * num_bytes, rank == own->rank ? to : nullptr, count, sum);
  };
  return add("ncclReduceScatter", {own, stream, work});
}

API int ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  return add("ncclAllGather", {own, stream, [=] { gather_all(*own, from, to, num_bytes); }});
}

API int ncclGather(const void *from, void *to, size_t count, int type, int root, Communicator *own,
                   cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  void *result = own->rank == root ? to : nullptr;
  return add("ncclGather", {own, stream, [=] { gather_all(*own, from, result, num_bytes); }});
}

API int ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  auto work = [=] {
    for (int rank = 0; rank < own->num_ranks; rank++)
      gather_all(*own, (const char *)from + rank * num_bytes, rank == own->rank ? to : nullptr, num_bytes);
  };
  return add("ncclAlltoAll", {own, stream, work});
}

API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *own,
                      cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  return add("ncclBroadcast", {own, stream, [=] { broadcast_from(*own, from, to, num_bytes, root); }});
}

API int ncclBcast(void *values, size_t count, int type, int root, Communicator *own, cudaStream_t stream) {
  return ncclBroadcast(values, values, count, type, root, own, stream);
}

API int ncclSend(const void *from, size_t count, int type, int peer, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  return add("ncclSend", {own, stream, nullptr, (char *)from, num_bytes, peer, true});
}

API int ncclRecv(void *to, size_t count, int type, int peer, Communicator *own, cudaStream_t stream) {
  size_t num_bytes = count * stub::size_of(DataType(type));
  return add("ncclRecv", {own, stream, nullptr, (char *)to, num_bytes, peer, false});
}

API int ncclMemAlloc(void **address, size_t size) { return cudaMalloc(address, size) ? SYSTEM_ERROR : SUCCESS; }

API int ncclMemFree(void *address) { return cudaFree(address) ? SYSTEM_ERROR : SUCCESS; }
