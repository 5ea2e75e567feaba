// The software engine of send requests between processes: each has an engine, and all map each other's memory at
// addresses of their own.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>

#include "comm/host_arena.h"
#include "support/folder_store.h"
#include "support/request_ring.h"

using namespace ark;
using namespace ark::comm;
using namespace ark::test;

namespace {

constexpr size_t kCountBytes = 128;  // a count has its cache lines for itself

/// A rank's segment: source, destination, their counts.
class Buffers {
 public:
  Buffers(Store& store, int rank, int world, size_t bytes)
      : arena_(store, GroupInfo{rank, world, "requests"}, 2 * (bytes + kCountBytes), soon()) {
    for (int r = 0; r < world; ++r)
      for (int which : {0, 1}) {
        auto* segment = reinterpret_cast<unsigned char*>(arena_.data(r));
        auto* count = segment + 2 * bytes + which * kCountBytes;
        table_.push_back({segment + which * bytes, bytes, reinterpret_cast<abi::u32*>(count)});
      }
  }
  std::span<const abi::DmaBuffer> table() const { return table_; }

 private:
  HostArena arena_;
  std::vector<abi::DmaBuffer> table_;
};

using Body = std::function<void(int rank, std::span<const abi::DmaBuffer> buffers)>;

/// The way a process ended, by rank.
std::vector<int> run_processes(int world, size_t bytes, const Body& body) {
  std::string folder = std::filesystem::temp_directory_path() / "requests-XXXXXX";
  check<DeviceError>(mkdtemp(folder.data()) != nullptr, "mkdtemp ", folder);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    check<DeviceError>(child >= 0, "fork");
    if (child > 0) {
      processes.push_back(child);
      continue;
    }
    ::alarm(60);  // nothing hangs
    try {
      FolderStore store(folder);
      Buffers buffers(store, rank, world, bytes);
      body(rank, buffers.table());
    } catch (const std::exception& error) {
      expect(false, cat("rank ", rank, ": ", error.what()));
    }
    std::_Exit(failures ? 1 : 0);
  }
  std::vector<int> ends(world);
  for (int rank = 0; rank < world; ++rank) ::waitpid(processes[rank], &ends[rank], 0);
  std::filesystem::remove_all(folder);
  return ends;
}

void test_ring_of_processes(int world, const RingShape& shape) {
  const auto ends = run_processes(world, shape.bytes(), [&](int rank, std::span<const abi::DmaBuffer> buffers) {
    play_ring(rank, world, buffers, shape);
  });
  for (int rank = 0; rank < world; ++rank)
    expect(ends[rank] == 0,
           cat("rank ", rank, " of ", world, " ended with ", ends[rank], ", pieces of ", shape.piece_bytes, " bytes"));
}

/// Rank 0 dies in the middle of its messages: what has come is there, the wait for the rest ends, and rank 1's own
/// messages go on.
void test_sender_that_dies() {
  constexpr uint32_t kPiece = 4096;
  constexpr int kBefore = 10;
  const auto ends = run_processes(2, 1 << 16, [](int rank, std::span<const abi::DmaBuffer> buffers) {
    SoftwareDmaEngine engine(buffers, 4);
    if (rank == 0) {
      std::fill_n(buffers[0].address, 1 << 16, static_cast<unsigned char>(7));
      for (int i = 0; i < kBefore; ++i) engine.submit(abi::make_request(0, 3, i, kPiece / 16, 3));
      for (const auto end = soon(); engine.sent() != kBefore && Clock::now() < end;) std::this_thread::yield();
      ::raise(SIGKILL);
    }
    wait_received(buffers[3], kBefore, soon());
    const auto* from = buffers[3].address;
    expect(std::count(from, from + kBefore * kPiece, 7) == kBefore * kPiece, "what came before the end is there");
    bool raised = false;
    try {
      wait_received(buffers[3], kBefore + 1, Clock::now() + std::chrono::milliseconds(200));
    } catch (const DeviceError&) {
      raised = true;
    }
    expect(raised, "a wait for a rank that has died ends");
    engine.submit(abi::make_request(2, 1, 0, kPiece / 16, abi::kDmaNotifyReceiver));
    wait_received(buffers[1], 1, soon());
  });
  expect(WIFSIGNALED(ends[0]) && WTERMSIG(ends[0]) == SIGKILL, "rank 0 dies");
  expect(ends[1] == 0, cat("rank 1 ended with ", ends[1]));
}

}  // namespace

int main() {
  for_each_ring(test_ring_of_processes);
  test_sender_that_dies();
  if (failures) std::fprintf(stderr, "%d failures\n", failures.load());
  return failures ? 1 : 0;
}
