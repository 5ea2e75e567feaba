// The order in which messages of batches are launched (comm/message_rounds.h), on ranks whose streams all share one
// queue: batches of any order have to end.
#include <map>
#include <random>
#include <vector>

#include "comm/message_rounds.h"
#include "support/check.h"

using namespace ark;
using comm::BatchMessage;

namespace {

using Batch = std::vector<BatchMessage>;

struct Device {
  size_t room = 1000;   // messages that run at a time
  bool copies = false;  // what is received is copied on, which waits at the head of the queue
};

/// Number `number` of the messages of a pair and direction, at one of its ends.
struct End {
  int rank, peer;
  bool sends;
  int number;
  End other() const { return {peer, rank, !sends, number}; }
  auto operator<=>(const End&) const = default;
};

/// Ranks that run what is in their queues, strictly in order.
struct Ranks {
  Device device;
  std::vector<std::vector<End>> queues;
  std::map<End, bool> started{};

  bool has_started(const End& end) const { return started.count(end) > 0; }
  bool ended(const End& end) const { return has_started(end) && has_started(end.other()); }
  bool may_start(const std::vector<End>& queue, size_t next) const {
    size_t running = 0;
    for (size_t i = 0; i < next; ++i) running += !ended(queue[i]);
    if (running >= device.room || (device.copies && next && !queue[next - 1].sends && !ended(queue[next - 1])))
      return false;
    End before = queue[next];
    return --before.number < 0 || ended(before);
  }
  bool step(size_t rank) {
    const auto& queue = queues[rank];
    size_t next = 0;
    while (next < queue.size() && has_started(queue[next])) ++next;
    if (next == queue.size() || !may_start(queue, next)) return false;
    return started[queue[next]] = true;
  }
  bool end() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < queues.size(); ++rank) moved |= step(rank);
    }
    for (const auto& queue : queues)
      for (const End& e : queue)
        if (!ended(e)) return false;
    return true;
  }
};

bool ends(const std::vector<Batch>& batches, Device device, bool in_rounds) {
  Ranks ranks{device, {}};
  const int size = static_cast<int>(batches.size());
  for (int rank = 0; rank < size; ++rank) {
    const Batch& batch = batches[rank];
    std::vector<End> called, queue;
    std::map<std::pair<int, bool>, int> numbers;
    for (const BatchMessage& m : batch) called.push_back({rank, m.peer, m.sends, numbers[{m.peer, m.sends}]++});
    for (const size_t i : comm::launch_order(batch, rank, size)) queue.push_back(called[i]);
    ranks.queues.push_back(in_rounds ? queue : called);
  }
  return ranks.end();
}

constexpr bool kSend = true, kReceive = false;

void test_order() {
  const Batch batch = {{1, kReceive}, {1, kReceive}, {2, kReceive}, {1, kSend}, {2, kSend}, {1, kSend}, {2, kSend}};
  // Rank 0 of 3: to 1, from 2, to 2, from 1; the second ones of each.
  const std::vector<size_t> expected = {3, 2, 4, 0, 5, 6, 1}, order = comm::launch_order(batch, 0, 3);
  EXPECT(order == expected);
  EXPECT(comm::launch_order({}, 0, 1).empty());
  const std::vector<size_t> two = comm::launch_order({{0, kReceive}, {0, kReceive}, {0, kSend}, {0, kSend}}, 1, 2);
  EXPECT((two == std::vector<size_t>{2, 0, 3, 1}));
}

void test_receives_first() {
  const std::vector<Batch> batches = {{{1, kReceive}, {1, kReceive}, {1, kSend}, {1, kSend}},
                                      {{0, kReceive}, {0, kReceive}, {0, kSend}, {0, kSend}}};
  EXPECT(!ends(batches, {}, false));
  EXPECT(ends(batches, {}, true));
}

std::vector<Batch> random_batches(std::mt19937& random) {
  const int size = 2 + static_cast<int>(random() % 5);
  std::vector<Batch> batches(size);
  for (int from = 0; from < size; ++from)
    for (int to = 0; to < size; ++to)
      for (unsigned n = from == to ? 0 : random() % 4; n > 0; --n) {
        batches[from].push_back({to, kSend});
        batches[to].push_back({from, kReceive});
      }
  for (Batch& batch : batches) std::shuffle(batch.begin(), batch.end(), random);
  return batches;
}

void test_any_batches() {
  std::mt19937 random(1);
  int held_up = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<Batch> batches = random_batches(random);
    held_up += !ends(batches, {}, false);
    for (const size_t room : {2, 3, 1000})
      for (const bool copies : {false, true}) EXPECT(ends(batches, {room, copies}, true));
  }
  EXPECT(held_up > 100);
}

}  // namespace

int main() {
  test_order();
  test_receives_first();
  test_any_batches();
  return test::result("message_rounds");
}
