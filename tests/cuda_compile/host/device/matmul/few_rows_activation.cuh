// Of the activation, for the host: which k a thread has. Reads of pages and products are noted by who tests them.
#pragma once
#include "device/matmul/few_rows_fragments.cuh"

namespace ark::device {

template <class Form>
struct RowsActivation : RowsFragments<Form> {};

enum class MmaType { kBF16, kF16 };
struct uint4 {
  u32 x, y, z, w;
};

inline int thread_number = 0;
inline int thread_index() { return thread_number; }
inline void __syncwarp() {}
inline u32 __shfl_xor_sync(u32, u32 word, int) { return word; }
inline u32 shared_address(const void*) { return 0; }

void ldmatrix_x4_transposed(u32 (&words)[4], u32 address);
void ldmatrix_x4(u32 (&words)[4], u32 address);
void note_product(const u32 (&a)[4], u32 b0, u32 b1);
template <MmaType>
void mma_16x8x16(float (&)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  note_product(a, b0, b1);
}

}  // namespace ark::device
