// Collectives and messages between the ranks of a communicator, in groups as NCCL has them.
#pragma once

#include <memory>
#include <string>

#include "meeting.h"
#include "numbers.h"
#include "runtime.h"

namespace stub {

enum NcclResult { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };

struct Communicator {
  std::string name;
  int num_ranks;
  int rank;
  int device;
  std::shared_ptr<Meeting> meeting;
  int num_splits = 0;
  NcclResult error = SUCCESS;
};

// What multiplies the values of this rank before they are summed.
struct Factor {
  char value[8];
};

struct Sum {
  Reduction reduction;
  DataType type;
  bool has_factor = false;
  Factor factor;
};

// A part of a group: a collective as a whole, a send, or a receive.
struct Operation {
  Communicator *communicator;
  cudaStream_t stream;
  Work collective;
  char *bytes = nullptr;
  size_t num_bytes = 0;
  int peer = 0;
  bool is_send = false;
};

// Each runs when all ranks do. `to` is null on a rank that gets no result.
void reduce_all(Communicator &communicator, const void *from, void *to, size_t count, const Sum &sum);
void gather_all(Communicator &communicator, const void *from, void *to, size_t num_bytes);
void broadcast_from(Communicator &communicator, const void *from, void *to, size_t num_bytes, int root);

// Outside of a group, an operation is given to its stream at once; else when the group ends.
NcclResult add(const char *name, Operation operation);
void start_group();
NcclResult end_group();

}  // namespace stub
