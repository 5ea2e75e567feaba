// What the ops of a plan touch, for verify_memory: hulls of whole ops, boxes of blocks of tiles, boxes of tiles.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "planner/verify/counter_blocks.h"
#include "planner/verify/regions.h"

namespace ark::planner {

/// A box of some tiles: of block `number` of the blocks that were asked for, or of tile `number`. Relative to the
/// buffer.
struct Piece {
  Box box;
  int64_t end;
  int32_t number;
};
struct BoxPieces {
  std::vector<Piece> at;  // by begin
  int64_t longest = 0;    // largest hull of one piece
};

/// All that an op touches through one operand.
struct Use {
  int32_t op = 0, operand = 0;  // -1: a part of the exchange for which the op sends
  uint32_t slot = 0;
  OperandUse how;
  bool fresh = false;         // of rows of a cache that this launch appended
  bool of_source = false;     // by batch b of what rank b has sent, but for the own rank's (abi::WaitRole::kSource)
  int64_t place = 0;          // of the buffer in its memory: the arena, the boxes, or itself
  int64_t low = 0, high = 0;  // hull, in the memory
  bool dense = false;         // all bytes of the hull, for certain
  BoxPieces arriving;         // per block of tiles that arrive alike; made when asked for, as are the next
  std::vector<BoxPieces> by_wait;  // per wait: blocks of tiles that wait alike
  BoxPieces waiting;               // blocks of tiles that wait alike in all waits
};

/// The uses of op `index`, with their hulls. An empty hull is left out.
std::vector<Use> uses_of(const plan::Plan& plan, size_t index, const std::vector<OperandUse>& operands);
BoxPieces pieces_of(const plan::Plan& plan, const Use& use, std::span<const TileBlock> blocks);
BoxPieces tiles_of(const plan::Plan& plan, const Use& use);

/// Calls visit(piece of a, piece of b) for all pairs whose hulls meet, while it returns true; returns whether all did.
/// Places count: `b_shift` is how far b's buffer lies behind a's.
template <class Visit>
bool meeting(const BoxPieces& a, const BoxPieces& b, int64_t b_shift, const Visit& visit) {
  for (const Piece& y : b.at) {
    const int64_t begin = y.box.begin + b_shift, end = y.end + b_shift;
    auto x = std::lower_bound(a.at.begin(), a.at.end(), begin - a.longest,
                              [](const Piece& piece, int64_t at) { return piece.box.begin < at; });
    for (; x != a.at.end() && x->box.begin < end; ++x)
      if (x->end > begin && !visit(*x, y)) return false;
  }
  return true;
}

/// Whether the tiles of an op keep apart by the shape of its operands: no byte that one tile writes through `a` (a
/// write) is touched by another through `b`. False says nothing.
bool apart_by_shape(const plan::Plan& plan, const Use& a, const Use& b);

}  // namespace ark::planner
