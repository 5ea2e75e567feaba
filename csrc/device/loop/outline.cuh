// Task families in functions of their own. The kernel's body grows with every program; what the compiler spends on a
// function grows faster than its size (a Llama decode kernel: 32 s in one piece, 10 s in several), and a long program
// takes registers from the main loops beside it. So families without wgmma (which belongs into the kernel's entry, as
// setmaxnreg does) are called, once per program, and forms of few-row products that one op has. What every layer of a
// decode step runs is not: a call costs 0.2 us there.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

/// `Programs` with one program in it, whatever its number.
template <class P>
struct OneProgram {
  template <class F>
  static ARK_DEVICE void pointwise(int, F&& f) {
    f(P{});
  }
  template <class F>
  static ARK_DEVICE void row(int, F&& f) {
    f(P{});
  }
  template <class F>
  static ARK_DEVICE void column(int, F&& f) {
    f(P{});
  }
  template <class F>
  static ARK_DEVICE void epilogue_float(int, F&& f) {
    f(P{});
  }
  template <class F>
  static ARK_DEVICE void epilogue_simple(int, F&& f) {
    f(P{});
  }
};

/// The same pointer, known to the compiler as one into shared memory: what it cannot prove to be there it reads by
/// generic loads, which cost twice the time.
template <class T>
ARK_DEVICE T* in_shared(T* p) {
  return reinterpret_cast<T*>(__cvta_shared_to_generic(opaque(shared_address(p))));
}

/// The handles are made anew: addresses of the caller's would force its registers into memory.
template <class Family>
__device__ __noinline__ ConsumerState run_called(Shared* shared, Task task, ConsumerState state) {
  shared = in_shared(shared);
  Worker worker(*shared, shared->launch);
  Consumer consumer(worker, state);
  task.record = in_shared(task.record);
  task.slot = in_shared(task.slot);
  Family::consume(consumer, task);
  return consumer;
}

/// Of a family without pages, which reports nothing before its end: its item alone is handed over. What lives beyond a
/// call takes registers from both sides, or goes to local memory: there a main loop of products had its page at each
/// step, and polls, which empty the L1, made it come from the L2.
template <class Family>
__device__ __noinline__ void run_called(u32 shared_place, u32 slot_place) {
  Shared* const shared = reinterpret_cast<Shared*>(__cvta_shared_to_generic(opaque(shared_place)));
  const TaskSlot* const slot = reinterpret_cast<const TaskSlot*>(__cvta_shared_to_generic(opaque(slot_place)));
  Worker worker(*shared, shared->launch);
  const Task task{reinterpret_cast<const abi::OpRecord*>(shared->records + slot->record_offset), slot, slot->first,
                  slot->count, slot->item_index};
  ConsumerState state;
  state.op = task.record->op;
  Consumer consumer(worker, state);
  Family::consume(consumer, task);
}

template <class Family>
ARK_DEVICE void call(Consumer& consumer, const Task& task) {
  static_cast<ConsumerState&>(consumer) = run_called<Family>(&consumer.worker.shared, task, consumer);
}
template <class Family>
ARK_DEVICE void call_without_pages(Consumer& consumer, const Task& task) {
  static_assert(!requires(Loader& loader) { Family::load_immutable(loader, task); }, "it would lose its pages");
  run_called<Family>(shared_address(&consumer.worker.shared), shared_address(task.slot));
}

}  // namespace ark::device
