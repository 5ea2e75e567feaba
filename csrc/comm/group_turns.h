// A launch that needs a turn in each of several groups of ranks.
#pragma once
#include <exception>
#include <vector>

#include "base/user_errors.h"

namespace ark::comm {

/// Places 0, 1, .. are the groups, in an order that is the same on all ranks: so no two of them wait for each other.
/// First this rank meets the ranks of each, `meet(place)`, which gives a Turn and may take until a rank comes. Only
/// then it takes its turns (Turn::take): who waits for ranks of one group keeps nobody from launching in another. With
/// all turns taken `launch(turns)` is called. Whatever keeps it from being made, or from its end, `fail(place, why)`
/// tells each group when the turns have been given back, since its ranks may wait for the launch. Two errors are no
/// such: of an index out of range, which its launch has survived, nobody hears, and a group whose ranks refuse each
/// other's plans (UserError of its `meet`) knows already.
template <class Meet, class Launch, class Fail>
void launch_in_groups(size_t num_groups, const Meet& meet, const Launch& launch, const Fail& fail) {
  size_t refused = num_groups;
  try {
    std::vector<decltype(meet(size_t{0}))> turns;
    for (size_t place = 0; place < num_groups; ++place) {
      try {
        turns.push_back(meet(place));
      } catch (const UserError&) {
        refused = place;
        throw;
      }
    }
    for (auto& turn : turns) turn.take();
    launch(turns);
  } catch (const IndexOutOfRange&) {
    throw;
  } catch (const std::exception& error) {
    for (size_t place = 0; place < num_groups; ++place)
      if (place != refused) fail(place, error.what());
    throw;
  }
}

}  // namespace ark::comm
