// How the rows of a program are walked on the GPU (device/program/row.cuh).
#pragma once
#include <cstdint>
#include <string>

namespace ark::codegen {

/// Machine instructions for the vectors of a thread: as many as the first instruction cache is taken to hold. Reckoned;
/// other limits were not tried.
inline constexpr int kMostRowCode = 800;

struct RowForm {
  uint32_t same_operands = 0;    // bit i: the same for a whole row in every op, loaded once a row
  uint32_t same_gathers = 0;     // bit i: the same for a whole row once the indices are, which are too: read once a row
  uint32_t vector_operands = 0;  // bit i: contiguous along the row, moved by vectors
  uint32_t shifted_operands = 0;  // bit i: contiguous along the row, read across two aligned vectors
  int vector = 1;                 // elements per vector
  int head_operand = -1;   // the operand that says where the first vector of a row begins; -1: at its first element
  bool edges = false;      // elements beside the vectors, or vectors (multiples) that some threads do not have
  int threads = 256;       // that share a row: 4, 8, 16, 32, 128 or 256
  int rows = 1;            // that threads keep at once
  int chunks = 0;          // vectors of the row that a thread keeps; 0: streamed
  bool in_turn = false;    // a loop over the chunks, instead of code for each
  bool multiples = false;  // the first element of every vector is a multiple of their length
  bool full = false;       // every thread has all of its chunks, in every op
  bool one_turn = false;   // no op has rows for a second one, so nothing is loaded ahead of it
  int edge_elements = 0;   // that a thread keeps beside the chunks
  int sure = 0;            // with edges: of the chunks, those that every thread has, in every op and place
  uint32_t ahead_operands = 0;     // bit i: what the first pass reads of it is loaded while the row before is worked on
  uint32_t standing_operands = 0;  // bit i: the same for all rows: loaded once an item, or where alignment changes
};

/// What the struct of a program says of its form.
std::string constants_of(const RowForm& form);

}  // namespace ark::codegen
