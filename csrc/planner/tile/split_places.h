// Part of split_reductions: rows that are asked for a place (arg_max, arg_min). Every part stores its extreme and the
// place of it, counted from the part's begin. The second op takes the first part whose extreme wins, by the rules of
// arg_max themselves, and adds the part's begin to its place. As a NaN is an extreme and equal extremes leave the first
// part its place, this is the place that the whole row would give.
//
// An extreme may see an element twice, so that parts may overlap: a vocabulary of 50257 words, a prime number, has
// parts of one length, whose begins lie on vectors.
#pragma once
#include <optional>
#include <vector>

#include "planner/fuse/fused.h"

namespace ark::planner {

/// Part p of a dimension: indices [p * step, p * step + length). Parts overlap where length > step. `rest` indices
/// behind the last part are one more, shorter than they.
struct RowCut {
  int64_t parts = 1, step = 1, length = 1, rest = 0;
  int64_t results() const { return parts + (rest > 0 ? 1 : 0); }
  bool overlaps() const { return length > step; }
};

bool yields_place(const Instr& instr);
bool yields_places(const Program& program);
/// Reduces that have to see every element once: sums and products.
bool counts_elements(const Instr& instr);

/// A program of rows with the extreme of every place.
struct Extremes {
  Program program;           // the instructions that were there, then extremes that nobody had asked for
  std::vector<int> extreme;  // per instruction: of a reduction that yields a place, the Reduce of the value there
  size_t num_asked = 0;      // instructions that were there
};
/// None where a value of type bool is searched.
std::optional<Extremes> with_extremes(const Program& program);

/// How a row task that yields places is cut along its outermost reduced dimension; one part: not at all.
RowCut cut_for_places(const FusedOp& op, const Program& program, int64_t workers);

/// True where elements of the part are its own, not the next part's as well; a register of a program whose domain has
/// the parts as dimension `part_dim` and the part's indices behind it.
int16_t append_owned(Program& out, const RowCut& cut, int part_dim);
/// What the Reduce takes where an element is not owned: itself for extremes, else its neutral element.
int16_t append_owned_value(Program& out, const Instr& reduce, int16_t owned);

/// The place in the whole row, from what parts along dimension `part_dim` have stored: registers of their extremes and
/// of their places. `reduce`: of the whole row. `part_step`: elements from one part's begin to the next one's.
int16_t append_place(Program& out, const Instr& reduce, int16_t extremes, int16_t places, int part_dim,
                     int64_t part_step);

}  // namespace ark::planner
