// The parameters of kRowDraw (device/abi/abi.h).
#pragma once

namespace ark::abi {

/// kRowDraw: token[r] and best[r] as ir::OpKind::kRowDraw says. Masses are integers of 2^-40 of the largest's, at least
/// one, and none of what is kSelectFarthest away. Three ops: stage 0 lists the kDrawListed elements of each part whose
/// sum with the noise is largest; stage 1 takes the row's best of these lists, the candidates, and weighs which of its
/// own elements lie between them; stage 2, one tile a row, takes the first candidate that the share keeps, and where
/// none is, or none is sure to be the row's best, it looks at the whole row. With `parts` 1 stage 2 is the only op and
/// does so. `part`: elements of a part, a multiple of 4; the last one may be shorter. `vector`: elements that a thread
/// moves at once, 1 or 4.
/// Operands values and noise f32 (dims r, n; stage 1 has no noise), share f32 (r; stages 1 and 2), token i64 (r), best
/// f32 (r), and between ops: lists i32 (r, part, kDrawListWords), of the listed elements the keys of their sums
/// (greater where the sum is; 0: none), their values, their places in the row, then the key of the part's largest
/// value, and one that nothing exceeds which is not listed; masses i64 (r, part, kDrawMassWords), the mass of the
/// part's elements that are as far as so many candidates or farther and nearer than the next, then, of the first part,
/// the number of candidates, and of each, nearest first, key << 32 | place.
struct RowDrawParams {
  int rows, size;
  int vector, stage;
  int parts, part;
};
inline constexpr int kDrawLast = 2, kDrawMostParts = 128;
inline constexpr int kDrawListed = 8, kDrawListWords = 32, kDrawTopWord = 24, kDrawBoundWord = 25;
inline constexpr int kDrawMost = 63, kDrawMassWords = 2 * (kDrawMost + 1);  // candidates
/// How many candidates there are at least, where lists hold them: by the share that is taken away.
inline constexpr int kDrawFew = 16, kDrawMany = 32;

}  // namespace ark::abi
