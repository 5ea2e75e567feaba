// What the source of a loop kernel depends on: task kinds, programs with the ways in which they are walked, variants of
// main loops. Sizes are not in it, but plans of other sizes may ask for other programs (a long product is split, rows
// are too long to be kept): a kernel is made for several plans at once, and runs every plan that asks for nothing else.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "codegen/kernel_features.h"
#include "codegen/row_form.h"
#include "plan/few_rows_form.h"
#include "plan/plan.h"

namespace ark::codegen {

/// Where a task meets a program; each is one dispatch function of the generated `Programs`.
enum Use {
  kPointwiseUse,
  kRowUse,
  kColumnUse,
  kEpilogueRows,
  kPrologueRows,
  kEpilogueTile,
  kEpilogueFloat,
  kEpilogueSimple,
  kNumUses
};
/// Of the programs that end a task of this kind (of kMatmulRows: its epilogues); kNumUses: it has none.
Use use_of(abi::TaskKind kind);

/// A program as it is printed: with the form of its rows, or with what is known of its operands.
struct Code {
  Program program;
  std::optional<RowForm> row;
  uint32_t broadcast = 0;          // operands with stride 0 along the last dimension wherever it is used
  uint32_t flat = 0;               // of a pointwise task: operands contiguous over the whole domain wherever it is used
  uint32_t epilogue_ways = 0;      // of kMatmulTile: EpilogueWay, of all ops that use it
  uint32_t column_ways = 0;        // abi::ColumnWay, of all column ops that use it
  uint32_t transposed = 0;         // operands of a pointwise task that go through tiles (plan/transposed_operands.h)
  uint32_t layouts = 0;            // of the fp32 products that end in it (device/matmul/float.cuh)
  std::vector<std::string> users;  // names of some ops, for the reader of the source
};

struct Kernel {
  std::string name;
  std::vector<Code> code;
  std::array<std::set<int>, kNumUses> uses;  // numbers of code
  std::vector<plan::RowsForm> forms;         // of few-row products; their programs are numbers of code
  KernelFeatures features;
};

/// The kernel of these plans, at least one. The first decides: with it alone, code[i] is its program i. Where its form
/// of rows does not serve the others, they get one form of their own, for all of them.
Kernel make_kernel(std::span<const plan::Plan* const> plans);

/// The kernel and what else the plan needs: what the kernel had keeps its numbers.
Kernel extended(Kernel kernel, const plan::Plan& plan);

/// The plan's code in the kernel, or nothing where the kernel lacks some of it.
std::optional<plan::KernelNumbers> find_numbers(const Kernel& kernel, const plan::Plan& plan);

}  // namespace ark::codegen
