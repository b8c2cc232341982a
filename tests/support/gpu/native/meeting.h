// Memory that the ranks of a communicator share: they meet in it and hand bytes over.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>

namespace stub {

// Thrown where a rank waits, if the communicator is aborted or the process of another rank has ended.
struct RankLost {};

// From one rank to another, a part of a message at a time.
struct Channel {
  static constexpr size_t CAPACITY = 64 << 10;
  std::atomic<int> is_full;
  size_t size;
  char bytes[CAPACITY];
};

class Meeting {
 public:
  static constexpr size_t SLOT = 1 << 20;
  static constexpr int MAX_RANKS = 64;

  // Returns once all ranks are here.
  Meeting(const std::string &name, int num_ranks, int rank);
  ~Meeting();

  void wait_for_all();
  void abort();
  void check() const;                    // that all ranks are alive
  char *slot(int rank) const;            // SLOT bytes that this rank writes and all read
  Channel &channel(int from, int to) const;

 private:
  struct Header {
    std::atomic<int> num_arrived;
    std::atomic<int> num_rounds;
    std::atomic<int> is_aborted;
    pid_t processes[MAX_RANKS];
  };

  size_t size() const;

  int num_ranks_;
  Header *header_;
};

}  // namespace stub
