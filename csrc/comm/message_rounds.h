// The order in which a rank launches the messages of a batch.
//
// Messages of a pair and direction follow each other in a stream; streams may share a queue of the device, where one
// that has to wait holds up what was launched after it. So the first message of every pair and direction comes first,
// then the second of each, and so on; within a round those to the next rank and from the one before, then those to the
// rank after that, and so on, a send before the receive. Both ends give a message the same place (round, distance) if
// both call it in a batch of the same messages between them, so that whatever is held up waits for a message of an
// earlier place only, even if no more than a send and a receive run at a time. Against other calls the order is as good
// as any.
#pragma once
#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace ark::comm {

struct BatchMessage {
  int peer;
  bool sends;
};

/// Indices of `messages`, which are in the order of their calls.
inline std::vector<size_t> launch_order(const std::vector<BatchMessage>& messages, int rank, int size) {
  std::vector<std::tuple<int, int, bool, size_t>> places;
  std::map<std::pair<int, bool>, int> rounds;
  for (const BatchMessage& m : messages) {
    const int ahead = m.sends ? m.peer - rank : rank - m.peer;
    places.emplace_back(rounds[{m.peer, m.sends}]++, (ahead + size) % size, !m.sends, places.size());
  }
  std::sort(places.begin(), places.end());
  std::vector<size_t> order;
  for (const auto& place : places) order.push_back(std::get<size_t>(place));
  return order;
}

}  // namespace ark::comm
