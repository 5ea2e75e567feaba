// StepChannel::meet: ranks, threads of this process, come to a place with launches or with calls, some far ahead of
// others, as calls that run on GPUs let them. All that announce a place decide alike, and launch where all can.
#include <cstdio>
#include <random>
#include <thread>

#include "comm/step_channel.h"
#include "support/check.h"
#include "support/map_store.h"

using namespace ark;
using namespace ark::comm;

namespace {

using Rng = std::mt19937;
int pick(Rng& rng, int below) { return std::uniform_int_distribution(0, below - 1)(rng); }

/// What the program does at one place: `collectives` calls or one launch for them, as each rank wants.
struct Place {
  int collectives;
  std::vector<bool> launches;     // by rank
  std::vector<LaunchNote> notes;  // of those that launch
  bool fits;
};

LaunchNote note_of(int rank, int world, uint64_t interface, const std::vector<uint64_t>& sizes) {
  LaunchNote note{.plan = static_cast<uint64_t>(rank) + 1, .interface = interface};
  for (int other = 0; other < world; ++other) {
    note.to[other] = sizes[static_cast<size_t>(rank * world + other)];
    note.from[other] = sizes[static_cast<size_t>(other * world + rank)];
  }
  return note;
}

Place random_place(Rng& rng, int world) {
  Place place{1 + pick(rng, 3), {}, {}, true};
  const bool all = pick(rng, 3) > 0;
  std::vector<uint64_t> sizes;
  for (int i = 0; i < world * world; ++i) sizes.push_back(static_cast<uint64_t>(pick(rng, 3)));
  for (int rank = 0; rank < world; ++rank) {
    place.launches.push_back(all || pick(rng, 3) > 0);
    place.fits = place.fits && place.launches.back();
    place.notes.push_back(note_of(rank, world, 7, sizes));
  }
  const int damage = pick(rng, 6), rank = pick(rng, world), other = pick(rng, world);
  LaunchNote& note = place.notes[static_cast<size_t>(rank)];
  if (damage == 0) ++note.interface;
  if (damage == 1) ++note.to[other];
  if (damage == 2) ++note.from[other];
  place.fits = place.fits && damage > 2;
  return place;
}

/// What a rank does at it; true: it has launched.
bool run_place(StepChannel& channel, const Place& place, int rank, bool on_gpu) {
  if (place.launches[static_cast<size_t>(rank)]) {
    const StepChannel::Scope scope{"launch", Clock::now() + std::chrono::seconds(20)};
    const StepChannel::Meeting meeting = channel.meet(place.notes[static_cast<size_t>(rank)], scope);
    if (meeting.apart.empty()) {
      EXPECT_EQ(meeting.of_ranks.size(), place.notes.size());
      for (size_t r = 0; r < place.notes.size(); ++r) EXPECT_EQ(meeting.of_ranks[r].plan, place.notes[r].plan);
      return true;
    }
    // who comes again before it has called, with whatever it is, hears the same
    EXPECT(!channel.meet(LaunchNote{}, scope).apart.empty());
  }
  for (int i = 0; i < place.collectives; ++i) channel.note_call(on_gpu);
  return false;
}

template <class Body>
void run_ranks(int world, const Body& body) {
  const ChannelOptions options{.buffer_bytes = 4096, .box_bytes = 4096};
  std::vector<std::vector<std::byte>> memory(static_cast<size_t>(world));
  std::vector<std::byte*> segments;
  for (auto& m : memory) {
    m.assign(StepChannel::arena_bytes(options, world) + 128, std::byte{0});
    segments.push_back(m.data() + (128 - reinterpret_cast<uintptr_t>(m.data()) % 128));
  }
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      StepChannel channel(std::make_unique<HostArena>(segments, StepChannel::arena_bytes(options, world)),
                          {rank, world, "g"}, options);
      body(channel, rank);
    });
}

void test_random(int world, int places, unsigned seed) {
  Rng rng(seed);
  std::vector<Place> program;
  for (int i = 0; i < places; ++i) program.push_back(random_place(rng, world));
  std::vector<std::vector<char>> launched(static_cast<size_t>(world));
  run_ranks(world, [&](StepChannel& channel, int rank) {
    Rng own(seed + static_cast<unsigned>(rank));
    for (const Place& place : program) {
      if (pick(own, 20) == 0) std::this_thread::sleep_for(std::chrono::microseconds(pick(own, 300)));
      launched[static_cast<size_t>(rank)].push_back(run_place(channel, place, rank, pick(own, 2) == 0));
    }
  });
  int together = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    for (const auto& of_rank : launched) EXPECT_EQ(of_rank[i] != 0, program[i].fits);
    together += program[i].fits;
  }
  EXPECT(together > places / 8 && together < places);
}

/// Rank 1 refuses what rank 0 would launch: rank 0 hears so at once, and calls, which is where it raises.
void test_refusal() {
  run_ranks(2, [&](StepChannel& channel, int rank) {
    if (rank == 1) return static_cast<void>(channel.note_refusal("of rank 1"));
    const auto meeting = channel.meet(LaunchNote{}, {"launch", Clock::now() + std::chrono::seconds(20)});
    EXPECT_EQ(meeting.apart, std::string("rank 1 calls its collectives"));
    EXPECT_EQ(channel.refused_by(channel.calls()), 1);
  });
}

/// A rank that has refused a call, and announces its next launch at the same place, is not where the other is.
void test_launch_behind_a_refusal() {
  run_ranks(2, [&](StepChannel& channel, int rank) {
    const StepChannel::Scope scope{"launch", Clock::now() + std::chrono::seconds(20)};
    if (rank == 1)
      channel.note_refusal("of rank 1");
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT(!channel.meet(LaunchNote{}, scope).apart.empty());
  });
}

void test_absent() {
  run_ranks(2, [&](StepChannel& channel, int rank) {
    if (rank == 1) return channel.leave();
    std::string error;
    try {
      channel.meet(LaunchNote{}, {"launch", Clock::now() + std::chrono::seconds(20)});
    } catch (const DeviceError& raised) {
      error = raised.what();
    }
    EXPECT_EQ(error, std::string("launch on rank 0: rank 1 has destroyed the group"));
  });
}

}  // namespace

int main() {
  for (const int world : {2, 3, 5}) test_random(world, 400, static_cast<unsigned>(world));
  test_refusal();
  test_launch_behind_a_refusal();
  test_absent();
  return test::result("meeting");
}
