// kRowDraw: a draw by Gumbel noise from the nearest elements of a row (device/abi/abi.h at RowDrawParams). What is
// drawn is the first element, in the order of value + noise, that is near enough: so few have to be weighed.
#pragma once
#include "device/program/row_draw_candidates.cuh"
#include "device/program/row_draw_choose.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct RowDraw {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    Scratch& s = *reinterpret_cast<Scratch*>(consumer.scratch());
    consumer.wait_for_item(task);
#pragma unroll 1
    for (int tile = task.first; tile < task.first + task.count; ++tile) {
      if (tile != task.first) consumer.sync();  // what was in the scratch has been read
      const DrawRow row(consumer, task, tile);
      if (row.p.stage == abi::kDrawLast)
        DrawChoice{row, s.choice}.run();
      else
        DrawCandidates{row, s.candidates}.run();
    }
  }

 private:
  union Scratch {
    DrawCandidates::Scratch candidates;
    DrawChoice::Scratch choice;
  };
  static_assert(sizeof(Scratch) <= kScratchBytes);
};

}  // namespace ark::device
