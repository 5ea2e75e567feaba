// Who tells the peers that messages have come. The fence before a flag takes as long as several messages, so the thread
// that moves messages only counts what has been delivered, and another warp fences and raises the flags.
#pragma once
#include "device/signal.cuh"

namespace ark::device {

/// In shared memory, one for each thread that moves messages; cleared before the CTA meets. Counts of this launch.
struct Notices {
  u32 delivered;  // by the mover: messages whose writes are done
  u32 told;       // by the teller: messages that the peers know of
  u32 closed;     // by the mover: nothing more will be delivered

  ARK_DEVICE void clear() { delivered = told = closed = 0; }
  ARK_DEVICE void deliver(u32 count) { shared_store_release(&delivered, count); }
  ARK_DEVICE void close() { shared_store_release(&closed, 1); }
  ARK_DEVICE u32 num_told() const { return shared_load_acquire(&told); }
};

/// By the one thread that tells of these notices, again and again: tell(i) raises the flags of message i. True when all
/// has been told and the mover has closed.
template <class Tell>
ARK_DEVICE bool tell_news(Notices& notices, const Tell& tell) {
  const bool closed = shared_load_acquire(&notices.closed) != 0;  // first: what has closed delivers no more
  const u32 begin = notices.told, end = shared_load_acquire(&notices.delivered);
  if (begin == end) return closed;
  fence_system();
  for (u32 i = begin; i != end; ++i) tell(i);
  shared_store_release(&notices.told, end);
  return false;
}

}  // namespace ark::device
