// Launches that peers may replace by calls. A place is the number of collectives that a rank has called and of launches
// that it has made after meetings: equal on all ranks at one place of their programs, whichever they do there.
// A rank leaves a meeting when every peer has announced that place or has gone on past it, which needs a call. So all
// ranks see the same announcements of a place, and decide alike; and two slots are enough, since who announces a third
// place has seen every peer at the second.
#include "base/check.h"
#include "comm/step_channel.h"

namespace ark::comm {
namespace {

/// Empty: they fit.
std::string why_apart(const std::vector<LaunchNote>& notes) {
  const size_t world = notes.size();
  for (size_t rank = 1; rank < world; ++rank)
    if (notes[rank].interface != notes[0].interface) return cat("ranks 0 and ", rank, " have plans of other exchanges");
  for (size_t from = 0; from < world; ++from)
    for (size_t to = 0; to < world; ++to)
      if (notes[from].to[to] != notes[to].from[from])
        return cat("rank ", from, " sends rank ", to, " other sizes than it expects");
  return {};
}

}  // namespace

/// Null: nothing of this place.
const LaunchNote* StepChannel::announced(int peer, uint64_t place) const {
  for (const Announcement& one : control(peer).announcements)
    if (one.place.load(std::memory_order_acquire) == place + 1) return &one.note;
  return nullptr;
}

/// It has called something there, or refused to.
bool StepChannel::went_on(int peer, uint64_t place) const {
  const ControlBlock& other = control(peer);
  const uint64_t done = other.launches.value.load(std::memory_order_acquire) +
                        other.host_calls.value.load(std::memory_order_acquire) +
                        other.gpu_calls.value.load(std::memory_order_acquire);
  const uint64_t number = calls().all();
  return done > place || refusals(peer, number) > refusals(rank(), number);
}

void StepChannel::await_announcement(int peer, uint64_t place, const Scope& scope,
                                     const std::function<bool()>& cancelled) {
  auto came = [&] { return announced(peer, place) != nullptr || went_on(peer, place); };
  await(peer, "arrive", scope, came,
        [&] { check<CancelledError>(!cancelled || !cancelled(), scope.what, ": the group was destroyed"); });
}

StepChannel::Meeting StepChannel::meet(const LaunchNote& own, const Scope& scope,
                                       const std::function<bool()>& cancelled) {
  ControlBlock& here = control(rank());
  const uint64_t place = here.launches.value.load(std::memory_order_relaxed) + calls().all();
  // what was decided there once stands: the peers are in their calls
  if (apart_at_ == place + 1) return {{}, "ranks were apart here before"};
  Announcement& slot = here.announcements[announced_++ % 2];
  slot.note = own;
  slot.place.store(place + 1, std::memory_order_release);
  Meeting meeting;
  for (int peer = 0; peer < world(); ++peer) {
    if (peer != rank()) await_announcement(peer, place, scope, cancelled);
    // a peer that has gone on after a launch or a call may have announced this place before: it is looked for last
    const LaunchNote* note = announced(peer, place);
    if (note == nullptr && meeting.apart.empty()) meeting.apart = cat("rank ", peer, " calls its collectives");
    // one of the two is a step behind the other, which may be at this place again
    const uint64_t number = calls().all();
    if (refusals(peer, number) != refusals(rank(), number) && meeting.apart.empty())
      meeting.apart = cat("rank ", peer, " or this one has refused a call");
    meeting.of_ranks.push_back(note == nullptr ? LaunchNote{} : *note);
  }
  if (meeting.apart.empty()) meeting.apart = why_apart(meeting.of_ranks);
  if (meeting.apart.empty())
    here.launches.value.fetch_add(1, std::memory_order_release);
  else
    apart_at_ = place + 1;
  return meeting;
}

}  // namespace ark::comm
