// The parameters of kRowDraw (device/abi/abi.h).
#pragma once

namespace ark::abi {

/// kRowDraw: token[r] and best[r] as ir::OpKind::kRowDraw says. Masses are integers of 2^-40 of the largest's, at
/// least one, and none of what is kSelectFarthest away. Three ops: in stage 0 each warp lists the kDrawListed of a
/// part's elements whose sum with the noise is largest; stage 1 takes the row's best of these lists, the candidates,
/// and weighs which of its own elements are as far as each; stage 2, one tile a row, takes the first candidate that
/// the share keeps, and where none is, or none is sure to be the row's best, it looks at the whole row. With `parts` 1
/// stage 2 is the only op and does so. `part`: elements of a part, a multiple of 4; the last one may be shorter.
/// `vector`: elements that a thread moves at once, 1 or 4.
/// Operands values and noise f32 (dims r, n; stage 1 has no noise), share f32 (r; stages 1 and 2), token i64 (r), best
/// f32 (r), and between ops: lists i32 (r, part, kDrawListWords), of each warp and listed element the key of its sum
/// (greater where the sum is; 0: none), its value, its place in the row, and of a warp's last one a key that nothing
/// exceeds which is not listed, of the others the key of the warp's largest value; masses i64 (r, part,
/// kDrawMassWords), the mass of the part, of its elements that are as far as each candidate or farther (with
/// kDrawFewWords masses the words behind them are not written, and their candidates are 0), and from kDrawWords on, of
/// the first part, of each candidate key << 32 | place, or 0, in order and behind a word that is not written.
struct RowDrawParams {
  int rows, size;
  int vector, stage;
  int parts, part;
};
inline constexpr int kDrawLast = 2, kDrawMostParts = 128;
inline constexpr int kDrawListed = 2, kDrawListWords = 64;
/// Masses of a part: fewer where the share that is taken away is at most 0.4.
inline constexpr int kDrawFewWords = 8, kDrawWords = 16, kDrawMassWords = 2 * kDrawWords;

}  // namespace ark::abi
