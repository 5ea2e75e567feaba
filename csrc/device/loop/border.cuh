// The end of an iteration of a loop (plan::Loop): a worker that has ended its list waits until all have, and who comes
// last says whether there is another one. It orders what the end of a launch orders.
//
// The reporter arrives, with the release that its reports have; the fetch warp waits before it hands out the first item
// of an iteration, with an acquire that goes on to the other roles with the item. So nobody reads anything of an
// iteration before the border is open. Its first record is copied before.
//
// A worker that is alone with a list has its gate in its own shared memory. Who watches the loop from outside (a
// streamer's copies) still finds the stores of iterations in their order: a fence stands between them.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// Whether iteration `number` of a launch runs. Element 1 is written in the iteration before and read at its border;
/// element 0 before the launch, since who begins late reads it while others write element 1.
ARK_DEVICE bool wants(const abi::LoopLaunch& loop, i64 number) {
  if (number >= loop.most) return false;
  return loop.go == nullptr || static_cast<const volatile unsigned char*>(loop.go)[number != 0] != 0;
}

/// The reporter: all tiles of the worker in iteration `number` are done and reported.
ARK_DEVICE void arrive_at_border(const Worker& worker, const abi::LoopLaunch& loop, i64 number) {
  if ((thread_index() & 31) != 0) return;
  abi::LoopState* s = loop.state;
  if (loop.arrivals > 1) {
    if (atomic_add_acq_rel(&s->arrived, 1) + 1 != static_cast<u32>(loop.arrivals)) return;
    store_relaxed(&s->arrived, 0);
  }
  // Both are read before either is looked at: one way to L2 and back instead of two.
  const u32 error = load_relaxed(&worker.launch.state->index_error);
  const bool wanted = wants(loop, number + 1);
  if (loop.arrivals <= 1) fence_gpu();  // while they are on their way
  const bool more = wanted && error == 0;
  if (!more) store_relaxed(&s->done, static_cast<u32>(number + 1));
  if (loop.arrivals > 1)
    red_release_add(&s->gate, more ? 2 : 3);
  else
    shared_store_release(&worker.shared.loop.gate, 2 * static_cast<u32>(number + 1) + (more ? 0 : 1));
}

/// By the launch so far; of use to a worker with a list.
ARK_DEVICE u32 borders_passed(const Worker& worker, const abi::LoopLaunch& loop) {
  return (loop.arrivals > 1 ? load_relaxed(&loop.state->gate) : worker.shared.loop.gate) >> 1;
}

/// The fetch warp, before the first item of iteration Shared::iteration: whether it runs. `ok`: false after a failed
/// wait.
ARK_DEVICE bool goes_on(const Worker& worker, const abi::LoopLaunch& loop, bool& ok) {
  const volatile u32& number = worker.shared.loop.iteration;  // read where it is needed: registers are scarce here
  if (number == 0) return wants(loop, 0);
  u32 seen = 0;
  const bool open = worker.waiter.spin(
      [&] {
        seen = loop.arrivals > 1 ? load_acquire(&loop.state->gate) : shared_load_acquire(&worker.shared.loop.gate);
        return ((seen >> 1) - number) << 1 == 0;
      },
      [&] { return seen; }, WaitName{-1, -1, abi::kWaitBorder}, 2 * number, kBorderPatience);
  ok = __all_sync(~0u, open);
  return ok && (seen & 1) == 0;
}

/// The last worker of a launch, when all have left: iterations that ran. Ready for the next launch.
ARK_DEVICE u32 end_loop(const Worker& worker, const abi::LoopLaunch& loop) {
  const u32 done = load_relaxed(&loop.state->done);
  store_relaxed(&loop.state->done, 0);
  store_relaxed(&loop.state->gate, 0);
  store_relaxed(&worker.launch.state->launches, load_relaxed(&worker.launch.state->launches) + 1);
  return done;
}

}  // namespace ark::device
