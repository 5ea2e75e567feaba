// Collectives between ranks that are threads of this process: every operation, random sizes, counters that wrap,
// failures.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <random>
#include <thread>

#include "base/check.h"
#include "comm/fd_exchange.h"
#include "comm/host_collectives.h"
#include "comm/inbox.h"
#include "support/map_store.h"

using namespace ark;
using namespace ark::comm;
using ark::test::MapStore;

namespace {

std::atomic<int> failures{0};

void expect(bool ok, const std::string& what) {
  if (ok) return;
  failures.fetch_add(1);
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

Clock::time_point in(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

using RankBody = std::function<void(StepChannel&, HostCollectives&)>;

/// `world` threads; the channels are over mapped segments (through the socket) or over memory of this process.
void run_ranks(int world, const ChannelOptions& options, bool mapped, const RankBody& body) {
  MapStore store;
  std::vector<std::vector<std::byte>> memory(world);
  std::vector<std::byte*> segments;
  for (auto& m : memory) {
    m.assign(StepChannel::arena_bytes(options, world) + 128, std::byte{0});
    segments.push_back(m.data() + (128 - reinterpret_cast<uintptr_t>(m.data()) % 128));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        GroupInfo group{rank, world, "test"};
        std::unique_ptr<StepChannel> channel;
        if (mapped)
          channel = std::make_unique<StepChannel>(store, group, options, in(20));
        else
          channel = std::make_unique<StepChannel>(
              std::make_unique<HostArena>(segments, StepChannel::arena_bytes(options, world)), group, options);
        HostCollectives collectives(*channel);
        body(*channel, collectives);
      } catch (const std::exception& error) {
        expect(false, cat("rank ", rank, ": ", error.what()));
      }
    });
  for (auto& thread : threads) thread.join();
}

/// Asks for a message; the future gets its sender.
/// The sender, or why none came: in words, since ThreadSanitizer does not see who holds an exception that two threads
/// have (the count lies in libstdc++, which is not instrumented).
struct Answer {
  int from = -1;
  std::string error;
};

std::future<Answer> ask(Inbox& inbox, void* data, size_t bytes, int from, int64_t tag, Deadline deadline) {
  auto sender = std::make_shared<std::promise<Answer>>();
  inbox.post({.data = data,
              .bytes = bytes,
              .from = from,
              .tag = tag,
              .deadline = deadline,
              .done = [sender](int rank, std::exception_ptr error) {
                Answer answer{.from = rank, .error = {}};
                try {
                  if (error) std::rethrow_exception(error);
                } catch (const std::exception& e) {
                  answer.error = e.what();
                }
                sender->set_value(std::move(answer));
              }});
  return sender->get_future();
}

int value(int rank, size_t i, int round) { return static_cast<int>((rank * 31 + i * 7 + round * 13) % 97); }

void one_round(StepChannel& channel, HostCollectives& c, int round, size_t n) {
  const int rank = channel.rank(), world = channel.world(), root = round % world;
  uint64_t number = static_cast<uint64_t>(round) * 16;
  auto call = [&] { return HostCollectives::Call{number++, in(30)}; };
  std::vector<float> data(n), gathered(n * world), all(n * world), piece(n);
  auto fill = [&] {
    for (size_t i = 0; i < n; ++i) data[i] = static_cast<float>(value(rank, i, round));
  };
  auto total = [&](size_t i) {
    float sum = 0;
    for (int r = 0; r < world; ++r) sum += static_cast<float>(value(r, i, round));
    return sum;
  };
  fill();
  c.all_reduce(data.data(), n, DType::kF32, Reduction::kSum, call());
  for (size_t i = 0; i < n; ++i)
    if (data[i] != total(i))
      return expect(false, cat("all_reduce of ", n, " at ", i, ": ", data[i], " for ", total(i)));
  fill();
  c.reduce(data.data(), n, DType::kF32, Reduction::kSum, root, call());
  for (size_t i = 0; i < n && rank == root; ++i)
    if (data[i] != total(i)) return expect(false, cat("reduce of ", n, " at ", i));
  fill();
  c.broadcast(data.data(), n * 4, root, call());
  for (size_t i = 0; i < n; ++i)
    if (data[i] != static_cast<float>(value(root, i, round))) return expect(false, cat("broadcast of ", n, " at ", i));
  fill();
  c.all_gather(data.data(), gathered.data(), n * 4, call());
  for (size_t i = 0; i < n * world; ++i)
    if (gathered[i] != static_cast<float>(value(static_cast<int>(i / n), i % n, round)))
      return expect(false, cat("all_gather of ", n));
  for (int r = 0; r < world; ++r)
    for (size_t i = 0; i < n; ++i) all[r * n + i] = static_cast<float>(value(rank, i, round) + r);
  c.reduce_scatter(all.data(), piece.data(), n, DType::kF32, Reduction::kSum, call());
  for (size_t i = 0; i < n; ++i)
    if (piece[i] != total(i) + static_cast<float>(world * rank))
      return expect(false, cat("reduce_scatter of ", n, " at ", i));
  c.scatter(all.data(), piece.data(), n * 4, root, call());
  for (size_t i = 0; i < n; ++i)
    if (piece[i] != static_cast<float>(value(root, i, round) + rank)) return expect(false, cat("scatter of ", n));
  c.gather(data.data(), gathered.data(), n * 4, root, call());
  std::vector<uint64_t> to(world), from(world);
  for (int r = 0; r < world; ++r) {
    to[r] = static_cast<uint64_t>((rank + 2 * r + round) % 5) * n;
    from[r] = static_cast<uint64_t>((r + 2 * rank + round) % 5) * n;
  }
  std::vector<unsigned char> out(std::accumulate(to.begin(), to.end(), uint64_t{0})),
      got(std::accumulate(from.begin(), from.end(), uint64_t{0}));
  for (size_t i = 0, r = 0, left = to.empty() ? 0 : to[0]; i < out.size(); ++i, --left) {
    while (left == 0) left = to[++r];
    out[i] = static_cast<unsigned char>(rank * 16 + r);
  }
  c.all_to_all(out.data(), to, got.data(), from, call());
  size_t at = 0;
  for (int r = 0; r < world; ++r)
    for (uint64_t i = 0; i < from[r]; ++i)
      if (got[at++] != r * 16 + rank) return expect(false, cat("all_to_all of ", n));
  c.barrier(call());
  if (world > 1) {
    const int next = (rank + 1) % world, before = (rank + world - 1) % world;
    std::jthread sender([&, send_call = call()] {
      try {
        c.send(data.data(), n * 4, next, round, send_call);
      } catch (const std::exception& error) {
        expect(false, error.what());
      }
    });
    Inbox inbox(channel);
    const Answer answer = ask(inbox, piece.data(), n * 4, before, round, call().deadline).get();
    expect(answer.from == before && answer.error.empty(), cat("sender ", answer.from, " ", answer.error));
    for (size_t i = 0; i < n; ++i)
      if (piece[i] != static_cast<float>(value(before, i, round))) return expect(false, cat("receive of ", n));
  }
}

/// Messages longer than their boxes, asked for in another order than they were sent, and from any rank.
void test_tags() {
  constexpr int kTags = 5, kRounds = 20;
  run_ranks(3, {.box_bytes = 4 << 10}, false, [&](StepChannel& channel, HostCollectives& c) {
    if (channel.rank() != 0) {
      for (int round = 0; round < kRounds; ++round)
        for (int tag = 0; tag < kTags; ++tag) {
          std::vector<int> data(1000 * tag, 100 * channel.rank() + tag + round);
          c.send(data.data(), data.size() * 4, 0, kTags * round + tag, {0, in(20)});
        }
      return;
    }
    Inbox inbox(channel);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::vector<int>> data;
      std::vector<std::future<Answer>> senders;
      for (int tag = kTags - 1; tag >= 0; --tag)
        for (int from : {2, Inbox::kAnyRank}) {
          data.emplace_back(1000 * tag, -1);
          senders.push_back(ask(inbox, data.back().data(), data.back().size() * 4, from, kTags * round + tag, in(20)));
        }
      for (size_t i = 0; i < senders.size(); ++i) {
        const int tag = kTags - 1 - static_cast<int>(i) / 2, from = senders[i].get().from;
        if (i % 2 == 0) expect(from == 2, cat("message ", i, " came from ", from));
        for (int x : data[i])
          if (x != 100 * from + tag + round) return expect(false, cat("tag ", tag, " from ", from, ": ", x));
      }
    }
  });
}

/// A message that arrives while nobody asks for it, and one behind it with the same tag: receives of this tag that are
/// posted between its pieces get them in their order.
void test_messages_of_a_tag_keep_their_order() {
  constexpr int kRounds = 10;
  constexpr ChannelOptions kOptions{.box_bytes = 4 << 10};
  constexpr size_t kPiece = kOptions.box_bytes - sizeof(PieceHeader);
  std::vector<std::promise<void>> asked(kRounds);
  run_ranks(2, kOptions, false, [&](StepChannel& channel, HostCollectives& c) {
    const StepChannel::Scope scope{"a send by hand", in(20)};
    auto publish = [&](int64_t tag, uint64_t bytes, int value) {
      std::byte* box = channel.begin_send(0, scope);
      const PieceHeader header{bytes, tag};
      std::memcpy(box, &header, sizeof header);
      std::memset(box + sizeof header, value, std::min(bytes, kPiece));
      channel.publish_send(0);
    };
    const auto pause = std::chrono::milliseconds(5);
    std::unique_ptr<Inbox> inbox;
    if (channel.rank() == 0) inbox = std::make_unique<Inbox>(channel);
    for (int round = 0; round < kRounds; ++round) {
      c.barrier({0, in(20)});
      if (channel.rank() == 1) {
        for (int piece = 0; piece < 3; ++piece) {
          if (piece == 2) asked[round].get_future().wait();
          publish(1, 3 * kPiece, 1);
        }
        publish(1, kPiece, 2);
        publish(2, kPiece, 3);
        continue;
      }
      std::vector<char> first(3 * kPiece), second(kPiece), other(kPiece);
      auto behind = ask(*inbox, other.data(), other.size(), 1, 2, in(20));  // so that the others are taken
      std::this_thread::sleep_for(pause);
      auto a = ask(*inbox, first.data(), first.size(), 1, 1, in(20));
      auto b = ask(*inbox, second.data(), second.size(), 1, 1, in(20));
      std::this_thread::sleep_for(pause);
      asked[round].set_value();
      for (auto* answer : {&a, &b, &behind}) {
        const std::string error = answer->get().error;
        expect(error.empty(), error);
      }
      expect(first[0] == 1 && second[0] == 2 && other[0] == 3, "messages of one tag change places");
    }
  });
}

/// Nothing that can come: a deadline, a rank that has left, an inbox that closes; and a message of another size.
void test_receives_that_fail() {
  run_ranks(2, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    int data = 0, other[2] = {};
    if (channel.rank() == 1) {
      c.send(&data, 4, 0, 1, {0, in(20)});
      c.barrier({0, in(20)});
      channel.leave();
      return;
    }
    auto inbox = std::make_unique<Inbox>(channel);
    auto text_of = [](std::future<Answer> sender) {
      const Answer answer = sender.get();
      return answer.error.empty() ? cat("came from ", answer.from) : answer.error;
    };
    auto has = [](const std::string& text, const char* part) { expect(text.find(part) != std::string::npos, text); };
    has(text_of(ask(*inbox, &data, 4, 1, 7, in(0.2))), "rank 1 did not send within the time-out");
    has(text_of(ask(*inbox, &data, 4, Inbox::kAnyRank, 7, in(0.2))),
        "the other ranks did not send within the time-out");
    has(text_of(ask(*inbox, other, 8, 1, 1, in(5))), "sent 4 bytes, expected 8");
    c.barrier({0, in(20)});
    has(text_of(ask(*inbox, &data, 4, 1, 7, in(20))), "rank 1 has destroyed the group");
    has(text_of(ask(*inbox, &data, 4, Inbox::kAnyRank, 7, in(20))), "all other ranks");
    channel.check_peer({"a wait for oneself", {}}, 0);
    try {
      channel.check_peer({"a wait for memory", {}}, 1);
      expect(false, "a rank that has left is still waited for");
    } catch (const DeviceError& error) {
      has(error.what(), "a wait for memory: rank 1 has destroyed the group");
    }
    auto pending = ask(*inbox, &data, 4, 1, 7, in(20));
    inbox.reset();
    has(text_of(std::move(pending)), "destroyed");
  });
}

/// A receive from any rank goes on while one of them may send; what it says at its deadline names those that may not.
void test_receive_from_any_names_who_is_gone() {
  run_ranks(3, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    if (channel.rank() == 1) {
      c.barrier({0, in(20)});
      return channel.leave();
    }
    c.barrier({0, in(20)});
    if (channel.rank() == 0) {
      int data = 0;
      Inbox inbox(channel);
      const std::string text = ask(inbox, &data, 4, Inbox::kAnyRank, 7, in(0.5)).get().error;
      expect(
          text.find("the other ranks (rank 1 has destroyed the group) did not send within the time-out") != text.npos,
          text);
    }
  });
}

/// A call that one rank refuses raises on the others at once; one that all refuse does not.
void test_refusals() {
  std::atomic<int> raised{0};
  run_ranks(3, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    channel.note_refusal("all refuse this");
    if (channel.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    c.barrier({0, in(10), channel.note_call(false)});
    if (channel.rank() == 1) return void(channel.note_refusal("the sizes are wrong"));
    const Clock::time_point begin = Clock::now();
    try {
      c.barrier({1, in(20), channel.note_call(false)});
    } catch (const std::exception& error) {
      expect(std::strstr(error.what(), "barrier number 1") && std::strstr(error.what(), "rank 1 refused") &&
                 std::strstr(error.what(), "the sizes are wrong"),
             error.what());
      raised.fetch_add(1);
    }
    expect(Clock::now() - begin < std::chrono::seconds(5), "a refusal is noticed before the time-out");
  });
  expect(raised == 2, cat(raised.load(), " of 2 ranks raised"));
}

void test_all(bool mapped, uint64_t first_step) {
  ChannelOptions options{.buffer_bytes = 64 << 10, .box_bytes = 8 << 10, .first_step = first_step};
  const size_t sizes[] = {1, 17, 129, 1000, 16384, 40001, 0};
  for (int world : {1, 2, 3, 4})
    run_ranks(world, options, mapped, [&](StepChannel& channel, HostCollectives& c) {
      for (int round = 0; round < 14; ++round) one_round(channel, c, round, sizes[round % 7]);
    });
}

/// All ranks raise, and the text names operation and ranks.
void test_disagreement() {
  std::atomic<int> raised{0};
  run_ranks(3, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    std::vector<float> data(8);
    try {
      if (channel.rank() == 2)
        c.broadcast(data.data(), 32, 0, {5, in(10)});
      else
        c.all_reduce(data.data(), 8, DType::kF32, Reduction::kSum, {5, in(10)});
    } catch (const std::exception& error) {
      channel.fail(error.what());
      expect(std::strstr(error.what(), "disagree") != nullptr, error.what());
      raised.fetch_add(1);
    }
  });
  expect(raised == 3, cat(raised.load(), " of 3 ranks raised"));
}

void test_missing_rank() {
  std::atomic<int> raised{0};
  run_ranks(3, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    if (channel.rank() == 1) return;
    try {
      c.barrier({7, in(0.3)});
    } catch (const DeviceError& error) {
      channel.fail(error.what());
      expect(std::strstr(error.what(), "rank 1") && std::strstr(error.what(), "number 7"), error.what());
      raised.fetch_add(1);
    }
  });
  expect(raised == 2, cat(raised.load(), " of 2 ranks raised"));
}

/// Collectives on the host and on GPUs (here only their counts) in the same order on all ranks, some far ahead; then
/// one rank calls one on its GPU where the others call a barrier.
void test_sides() {
  std::atomic<int> raised{0};
  run_ranks(3, {}, false, [&](StepChannel& channel, HostCollectives& c) {
    uint64_t number = 0;
    for (int round = 0; round < 20; ++round) {
      const uint64_t barrier = number++;
      const CallCounts before = channel.note_call(false);
      for (int i = 0; i < round % 4; ++i, ++number) channel.note_call(true);
      if (round % 3 == channel.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      c.barrier({barrier, in(10), before});
    }
    if (channel.rank() == 1) return void(channel.note_call(true));
    const Clock::time_point begin = Clock::now();
    try {
      c.barrier({number, in(10), channel.note_call(false)});
    } catch (const std::exception& error) {
      channel.fail(error.what());
      expect(std::strstr(error.what(), "disagree") &&
                 std::strstr(error.what(), "rank 1 calls a collective on its GPU") &&
                 std::strstr(error.what(), cat("barrier number ", number).c_str()),
             error.what());
      raised.fetch_add(1);
    }
    expect(Clock::now() - begin < std::chrono::seconds(5), "a disagreement is noticed before the time-out");
  });
  expect(raised == 2, cat(raised.load(), " of 2 ranks raised"));
}

void test_types() {
  const uint16_t bf16[2] = {0x3f80, 0x4000};  // 1, 2
  uint16_t sum = 0;
  const void* sources[2] = {&bf16[0], &bf16[1]};
  reduce(&sum, sources, 1, DType::kBF16, Reduction::kSum);
  expect(sum == 0x4040, cat("bf16 1 + 2 = ", sum));
  const float nan[2] = {NAN, 1};
  float least = 0;
  const void* floats[2] = {&nan[1], &nan[0]};
  reduce(&least, floats, 1, DType::kF32, Reduction::kMin);
  expect(least == 1, "min: a number wins over NaN");
  floats[0] = &nan[0];
  reduce(&least, floats, 1, DType::kF32, Reduction::kMin);
  expect(least != least, "min of NaN and NaN is NaN");
  bool refused = false;
  try {
    reduce(&least, floats, 1, DType::kF32, Reduction::kBitAnd);
  } catch (const UnsupportedError&) {
    refused = true;
  }
  expect(refused, "bit-and of floats is refused");
}

}  // namespace

/// Descriptors offered whenever the peers come: in a ring, each rank asks its right neighbour first and late.
void test_fd_server() {
  MapStore store;
  constexpr int kWorld = 3;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank)
    threads.emplace_back([&, rank] {
      try {
        GroupInfo group{rank, kWorld, "offers"};
        UniqueFd own(::memfd_create("test", MFD_CLOEXEC));
        const char mark = static_cast<char>('a' + rank);
        expect(::pwrite(own.get(), &mark, 1, 0) == 1, "pwrite");
        std::this_thread::sleep_for(std::chrono::milliseconds(30 * rank));
        FdServer server(store, group, "t", std::move(own));
        for (int step = 1; step < kWorld; ++step) {
          const int from = (rank + step) % kWorld;
          UniqueFd fd = request_fd(store, group, "t", from, in(10));
          char seen = 0;
          expect(::pread(fd.get(), &seen, 1, 0) == 1 && seen == 'a' + from, cat("descriptor of rank ", from));
        }
        store.set(cat("done/", rank), "1");
        for (int peer = 0; peer < kWorld; ++peer) store.get(cat("done/", peer), in(10), peer);
      } catch (const std::exception& error) {
        expect(false, cat("rank ", rank, ": ", error.what()));
      }
    });
  for (auto& t : threads) t.join();
  FdServer alone(store, GroupInfo{0, 2, "nobody"}, "t", UniqueFd(::memfd_create("test", MFD_CLOEXEC)));
}

int main() {
  test_fd_server();
  test_types();
  test_all(false, 0);
  test_all(false, (uint64_t{1} << 32) - 7);
  test_all(true, 0);
  test_disagreement();
  test_missing_rank();
  test_sides();
  test_tags();
  test_messages_of_a_tag_keep_their_order();
  test_receives_that_fail();
  test_receive_from_any_names_who_is_gone();
  test_refusals();
  std::printf("%s: %d failures\n", failures ? "FAILED" : "ok", failures.load());
  return failures ? 1 : 0;
}
