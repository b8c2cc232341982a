#include "collectives.h"

#include <algorithm>
#include <ctime>
#include <tuple>
#include <utility>
#include <vector>

using stub::Channel;
using stub::Communicator;
using stub::Meeting;
using stub::NcclResult;
using stub::Operation;
using stub::RankLost;

namespace {

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
NcclResult enqueue(Communicator *communicator, cudaStream_t stream, stub::Work work) {
  stub::enqueue(stream, [=] {
    try {
      if (communicator->error == stub::SUCCESS) work();
    } catch (const RankLost &) {
      communicator->error = stub::REMOTE_ERROR;
    }
  });
  return communicator->error;
}

NcclResult run_group() {
  std::vector<Operation> operations, messages;
  std::swap(operations, *group);
  for (Operation &operation : operations) {
    if (!operation.collective) {
      if (operation.num_bytes) messages.push_back(operation);
      continue;
    }
    NcclResult error = enqueue(operation.communicator, operation.stream, operation.collective);
    if (error) return error;
  }
  if (messages.empty()) return stub::SUCCESS;
  return enqueue(messages[0].communicator, messages[0].stream, [=] { move_messages(messages); });
}

}  // namespace

void stub::reduce_all(Communicator &communicator, const void *from, void *to, size_t count, const Sum &sum) {
  size_t width = size_of(sum.type);
  auto write = [&](char *slot, size_t start, size_t size) {
    memcpy(slot, (const char *)from + start, size);
    if (sum.has_factor) multiply(sum.type, slot, size / width, sum.factor.value);
  };
  auto read = [&](size_t start, size_t size) {
    if (!to) return;
    std::vector<const void *> slots;
    for (int rank = 0; rank < communicator.num_ranks; rank++) slots.push_back(communicator.meeting->slot(rank));
    reduce(sum.reduction, sum.type, slots, (char *)to + start, size / width);
  };
  exchange(communicator, count * width, write, read);
}

void stub::gather_all(Communicator &communicator, const void *from, void *to, size_t num_bytes) {
  auto read = [&](size_t start, size_t size) {
    for (int rank = 0; to && rank < communicator.num_ranks; rank++)
      memcpy((char *)to + rank * num_bytes + start, communicator.meeting->slot(rank), size);
  };
  exchange(communicator, num_bytes, copied_from(from), read);
}

void stub::broadcast_from(Communicator &communicator, const void *from, void *to, size_t num_bytes, int root) {
  auto write = [&](char *slot, size_t start, size_t size) {
    if (communicator.rank == root) memcpy(slot, (const char *)from + start, size);
  };
  auto read = [&](size_t start, size_t size) {
    memcpy((char *)to + start, communicator.meeting->slot(root), size);
  };
  exchange(communicator, num_bytes, write, read);
}

NcclResult stub::add(const char *name, Operation operation) {
  record("collective", name, operation.stream);
  if (!operation.communicator) return INVALID_ARGUMENT;
  if (!group) group = new std::vector<Operation>;
  group->push_back(std::move(operation));
  return group_depth ? SUCCESS : run_group();
}

void stub::start_group() { group_depth++; }

NcclResult stub::end_group() {
  if (--group_depth || !group) return SUCCESS;
  return run_group();
}
