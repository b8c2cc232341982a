#include "meeting.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>

namespace {

constexpr timespec CHECK_INTERVAL = {0, 100 * 1000 * 1000};

void sleep_while(std::atomic<int> &word, int value) {
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &CHECK_INTERVAL, nullptr, 0);
}

void wake_all(std::atomic<int> &word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// False also for a process that has ended and whose parent does not know it yet.
bool is_alive(pid_t process) {
  std::string path = "/proc/" + std::to_string(process) + "/stat";
  FILE *file = fopen(path.c_str(), "r");
  if (!file) return false;
  char state = 'Z';
  int num_read = fscanf(file, "%*d (%*[^)]) %c", &state);
  fclose(file);
  return num_read == 1 && state != 'Z' && state != 'X';
}

std::string path_of(const std::string &name) {
  const char *folder = getenv("TMPDIR");
  return std::string(folder ? folder : "/tmp") + "/gpu-stub-" + name;
}

void *map_file(const std::string &path, size_t size) {
  int file = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, size)) throw stub::RankLost();
  void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) throw stub::RankLost();
  return memory;
}

}  // namespace

// The file is zeros at first, which is a valid header. It has no name any more once all ranks have mapped it.
stub::Meeting::Meeting(const std::string &name, int num_ranks, int rank) : num_ranks_(num_ranks) {
  std::string path = path_of(name);
  header_ = (Header *)map_file(path, size());
  header_->processes[rank] = getpid();
  wait_for_all();
  if (rank == 0) unlink(path.c_str());
}

stub::Meeting::~Meeting() { munmap(header_, size()); }

size_t stub::Meeting::size() const {
  return sizeof(Header) + num_ranks_ * SLOT + num_ranks_ * num_ranks_ * sizeof(Channel);
}

char *stub::Meeting::slot(int rank) const { return (char *)(header_ + 1) + rank * SLOT; }

stub::Channel &stub::Meeting::channel(int from, int to) const {
  return ((Channel *)slot(num_ranks_))[from * num_ranks_ + to];
}

void stub::Meeting::wait_for_all() {
  int round = header_->num_rounds;
  if (++header_->num_arrived == num_ranks_) {
    header_->num_arrived = 0;
    ++header_->num_rounds;
    wake_all(header_->num_rounds);
    return;
  }
  while (header_->num_rounds == round) {
    sleep_while(header_->num_rounds, round);
    if (header_->num_rounds == round) check();
  }
}

void stub::Meeting::abort() {
  header_->is_aborted = 1;
  wake_all(header_->num_rounds);
}

void stub::Meeting::check() const {
  if (header_->is_aborted) throw RankLost();
  for (int rank = 0; rank < num_ranks_; rank++) {
    pid_t process = header_->processes[rank];
    if (process && !is_alive(process)) throw RankLost();
  }
}
