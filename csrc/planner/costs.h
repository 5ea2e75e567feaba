// What work costs on a GPU, as data: choices between families and forms, order and predictions follow from these
// numbers. A GPU model has its own (`ark_torch/gpus/`, written by `benchmarks/costs.py`). Those here are for an H200:
// measured in plans, where it does not say that they are reckoned or not measured.
#pragma once
#include <array>
#include <string>

#include "plan/kinds.h"
#include "plan/plan.h"

namespace ark::planner {

/// A product's tile on the tensor cores; seconds.
struct TileCosts {
  double block;        // of 64 k, where the other workers have tiles as well
  double own;          // of a tile besides: its sums' way through a plain epilogue
  double instruction;  // of each arithmetic instruction of an epilogue
};

/// What a number may be: products and quotients of a few of them are finite.
inline constexpr double kLeastCost = 1e-18, kMostCost = 1e18;

/// Seconds, but for shares and rates.
struct Costs {
  // What memory gives and what is computed of each kind's tiles (plan::Rates): by the table of kinds, and where tiles
  // of a kind differ. Of kMatmulTile `bytes` alone is read (fuse/product_cost: weights of few rows).
  std::array<plan::Rates, static_cast<size_t>(abi::TaskKind::kCount)> kinds = kinds_of_table();
  plan::Rates long_row{6e-6, 0.39, 0.5};  // rows that are walked again and again in memory
  plan::Rates mma_attention{3e-6, 0.3, 0.25}, double_attention{3e-6, 0.3, 0.3};  // forms of kAttentionSimple

  /// One producer -> consumer hop through a counter, under load (measured 1.3-1.4 us quiet, 2.4-2.8 us under load).
  double hop = 2.6e-6;
  /// Fetching an item, starting its loads, draining its last stage: with the hop, the 4.1 us that a stage of a decode
  /// step takes beyond its bytes.
  double item = 1.2e-6;

  /// Wide tiles were measured in a training step. Small ones: 250 cycles for 64 k, of a kernel that only computed
  /// products, and an eighth of a wide tile's elements in their epilogue; neither is measured in a plan yet.
  TileCosts wide{0.67e-6, 4.2e-6, 0.9e-6}, small{0.15e-6, 4.2e-6 / 8, 0.9e-6 / 8};
  double narrow_share = 0.64;  // a narrow tile's time of a wide one's: 0.61 to 0.66 measured

  // Parts of k: a step of 64 k where few others run, and what splitting must save. A hop takes 2.5 to 3 us; that of
  // small tiles pays from 2048 k on.
  double lone_block = 0.45e-6, split = 8e-6, split_small = 3.5e-6, split_float = 12e-6;
  double split_joined = 0.8e-6;  // where a row op adds the parts that it reads: no hop. Not measured.
  double split_heads = 5e-6;     // adding what the parts of a group's heads computed: the op and the hop

  /// fp32 products: a step of 32 k, its part of each block of 64 x 64 sums (measured 1.07, 1.72 and 3.10 us for one,
  /// two and four of them, products of 4096^3; one block is 1024 cycles of 128 multiplications), first loads and the
  /// report of a tile, and the epilogue of a block.
  double float_step = 0.38e-6, float_block = 0.68e-6, float_tile = 2e-6, float_epilogue = 0.5e-6;

  /// Decode attention, one tile or two at once (tile/pair_decode_tiles): what a tile takes beside its bytes, a chain of
  /// loads and barriers (about 5 us of a tile alone, 5 to 6.5 of two at once), and the share of the time of one by one
  /// that two at once must not exceed, as this is rough: with a cache of 1024 rows it says 0.80 of 512 tiles of 64
  /// columns and 0.84 of 512 tiles of 96 (docs/notes/decode.md, "Two tiles of attention at once").
  double decode_tile = 5e-6, pair_share = 5.0 / 6;

  /// A product's prologue or an op of rows (fuse/prologue_cost.h): the op with its hop, the prologue's elements.
  double row_op = 5e-6, prologue_element = 1 / 15e9;

  /// Of what memory gives, where lines of k are 16, 32 and 64 bytes long (strips of 8, 16 and 32 columns). 16: what
  /// weights [k][n] take of 8192 x 2048 beside [n][k], of 1 to 8 rows (sweep_loaders_few_rows.json). 8: twice as many
  /// workers with them are no quicker than with 16 (GPT-2's decode step, 768 columns: 0.371 and 0.363 ms). 32:
  /// reckoned.
  double strip_8 = 0.33, strip_16 = 0.7, strip_32 = 0.95;

  /// What all workers together read of a few-row product's activation, which each of them reads whole, beside its
  /// weights: 0.25 to 0.3 us a row of 8192 (the same file, 2 to 16 rows).
  double activation_bytes_per_second = 8e12;

 private:
  static constexpr std::array<plan::Rates, static_cast<size_t>(abi::TaskKind::kCount)> kinds_of_table() {
    std::array<plan::Rates, static_cast<size_t>(abi::TaskKind::kCount)> rates;
    for (size_t i = 0; i < rates.size(); ++i) rates[i] = plan::kKinds[i].rates;
    return rates;
  }
};

/// Calls visit(name, number) for each number. Names are `<kind>.seconds`, `<kind>.bytes`, `<kind>.flops` for the table
/// of kinds, the member's for others.
template <typename CostsT, typename Visit>
void for_each_cost(CostsT& costs, const Visit& visit) {
  const auto rates = [&](const std::string& name, auto& x) {
    visit(name + ".seconds", x.seconds), visit(name + ".bytes", x.bytes), visit(name + ".flops", x.flops);
  };
  const auto tile = [&](const std::string& name, auto& x) {
    visit(name + ".block", x.block), visit(name + ".own", x.own), visit(name + ".instruction", x.instruction);
  };
  for (size_t i = 0; i < costs.kinds.size(); ++i) rates(plan::name(static_cast<abi::TaskKind>(i)), costs.kinds[i]);
  rates("long_row", costs.long_row), rates("mma_attention", costs.mma_attention);
  rates("double_attention", costs.double_attention);
  visit("hop", costs.hop), visit("item", costs.item);
  tile("wide_tile", costs.wide), tile("small_tile", costs.small), visit("narrow_share", costs.narrow_share);
  visit("lone_block", costs.lone_block), visit("split", costs.split), visit("split_small", costs.split_small);
  visit("split_float", costs.split_float), visit("split_joined", costs.split_joined);
  visit("split_heads", costs.split_heads);
  visit("float_step", costs.float_step), visit("float_block", costs.float_block);
  visit("float_tile", costs.float_tile), visit("float_epilogue", costs.float_epilogue);
  visit("decode_tile", costs.decode_tile), visit("pair_share", costs.pair_share);
  visit("row_op", costs.row_op), visit("prologue_element", costs.prologue_element);
  visit("strip_8", costs.strip_8), visit("strip_16", costs.strip_16), visit("strip_32", costs.strip_32);
  visit("activation_bytes_per_second", costs.activation_bytes_per_second);
}

}  // namespace ark::planner
