// Pass: proves a plan right before it runs. Written from the meaning of the records alone. It shares no code with the
// passes that made them, but for what a program does with its operands (plan::program_uses).
//
// - structure: every tile is in exactly one list; waits, arrivals, slots, lifetimes and flags stay within bounds; what
//   is immutable is never written; what is read has been written; programs are in SSA form, grids cover the domains,
//   tensor maps agree with the operands.
// - counters: every counter gets exactly the arrivals that its waits expect, from earlier ops only; the workers' lists,
//   run tile by tile, come to an end.
// - exchanges: boxes are whole, tiles send the same part of each, who waits for what is sent waits for all ranks.
// - races: two tiles that touch a byte, one of them writing it, are ordered by waits. Arena buffers that share bytes
//   count as the same memory. The order of a worker's list proves nothing: the loaders run ahead of the consumers.
// - flagged words (flag_words.h), with the races: the same of the plan as the loop kernel runs it, where some reads
//   poll words instead of waiting.
// - ranks (ranks.h), of exchanges: the races once more, among all ranks and several launches.
// - loops, ops in the background, products with own rows: checks.h.
// - bounds: no tile reaches beyond its buffer (but under a predicate).
#pragma once
#include <cstdint>

#include "plan/plan.h"
#include "planner/verify/report.h"

namespace ark::planner {

enum class VerifyLevel : uint8_t {
  kStructure,  // structure and counters: linear in the number of tiles
  kFull,
  kRaces,  // what the full proof has beyond the structure, which must have been verified; large plans without `ranks`
};

/// Throws InternalError that names ops, tiles and bytes.
VerifyReport verify_plan(const plan::Plan& plan, VerifyLevel level);
/// Flagged words and forms, of a plan that is right without them. Part of kFull and kRaces.
void verify_flag_words(const plan::Plan& plan, VerifyReport& report);

}  // namespace ark::planner
