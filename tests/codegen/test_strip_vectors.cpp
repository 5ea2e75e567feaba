// Strips of few-row products (device/matmul/few_rows_strips.cuh): the index arithmetic that device code shares with
// this test. Every k of a row is multiplied once, by the activation's element of the same k, from its byte in the page.
#include <algorithm>
#include <set>
#include <vector>

#include "device/abi/strip_vectors.h"
#include "support/check.h"

using namespace ark;

namespace {

constexpr int kPageBytes = 2 * abi::kStripPageElements;

void every_k_once(int m, int k) {
  const int windows = abi::strip_windows(m, k), slices = abi::strip_slices(k), width = abi::strip_page_k(k);
  const int of_window = (slices + windows - 1) / windows, blocks = (m + 7) / 8;
  EXPECT((windows - 1) * of_window < slices);                        // no window is empty
  EXPECT(of_window * abi::strip_rounds(k) * 2 * blocks * 4 <= 128);  // registers of the activation
  std::vector<int> met(static_cast<size_t>(k / 8));
  for (int window = 0; window < windows; ++window) {
    std::set<int> numbers;
    for (int slice = 0; slice < std::min(of_window, slices - window * of_window); ++slice)
      for (int round = 0; round < abi::strip_rounds(k); ++round)
        for (int half = 0; half < 2; ++half) {
          const int number = abi::strip_vector(k, slice, round, half);
          EXPECT(numbers.insert(number).second && number < of_window * abi::strip_rounds(k) * 2);
          for (int warp = 0; warp < 8; ++warp)
            for (int q = 0; q < 4; ++q) {
              const int place = window * of_window * width + abi::strip_vector_k(number, warp, q);
              if (place < k) ++met[static_cast<size_t>(place / 8)];
              // the page of this slice holds the row's elements from the slice's first on
              const int first = (window * of_window + slice) * width;
              EXPECT(place >= first && place < first + width && place % 8 == 0);
              EXPECT(abi::strip_vector_byte(round, half, warp, q) == (place - first) * 2);
              // odd rows read their halves in the other order, by one bit of the address
              EXPECT((abi::strip_vector_byte(round, half, warp, q) ^ 64) ==
                     abi::strip_vector_byte(round, 1 - half, warp, q));
            }
        }
  }
  for (const int times : met) EXPECT(times == 1);
}

/// Rows of a page lie apart, begin where one bit tells halves apart, and whoever reads behind a row's end stays in the
/// page.
void rows_fit_pages(int k) {
  const int rows = abi::strip_page_rows(k), bytes = abi::strip_row_bytes(k);
  EXPECT(8 % rows == 0 && bytes % 128 == 0);
  EXPECT(bytes >= 2 * std::min(k, abi::strip_page_k(k)));
  EXPECT((rows - 1) * bytes + 2 * abi::strip_page_k(k) <= kPageBytes);
}

int slices_of_page(int columns) { return std::max(1, abi::column_page_k(columns) / abi::kColumnSliceK); }

/// Weights [k][n]: every k of a strip is read by one warp, in a page that it waits for; an mma's 8 lines of a page lie
/// in different banks, whatever the swizzle; fragments have as many registers as those of weight rows.
void columns_fit(int m, int k) {
  const int windows = abi::column_windows(m, k), slices = abi::column_slices(k),
            of_window = (slices + windows - 1) / windows;
  EXPECT((windows - 1) * of_window < slices);  // no window is empty
  if (m > 1) EXPECT(of_window * 2 * ((m + 7) / 8) * 4 <= 128);
  for (int columns = abi::kLeastColumns; columns <= abi::most_columns(m, 1); columns *= 2) {
    const int page_k = abi::column_page_k(columns), of_slice = std::max(1, abi::kColumnSliceK / page_k);
    EXPECT(page_k * columns * 2 == kPageBytes && page_k % 64 == 0);
    EXPECT(page_k * of_slice == abi::kColumnSliceK * slices_of_page(columns));
    EXPECT(page_k <= abi::kColumnBoxK || page_k % abi::kColumnBoxK == 0);
    int pages = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const int left = k - slice * abi::kColumnSliceK;
      const int count = left >= abi::kColumnSliceK ? of_slice : (left + page_k - 1) / page_k;
      for (int warp = 0; warp < 8; ++warp)
        if (warp * 64 < left) EXPECT(warp * 64 / page_k < count);
      pages += slice % slices_of_page(columns) == 0 ? count : 0;
    }
    EXPECT(pages == abi::column_pages(k, columns));
  }
}

void columns_are_swizzled(int columns) {
  std::set<int> bytes;
  for (int row = 0; row < abi::column_page_k(columns); ++row)
    for (int chunk = 0; chunk < columns / 8; ++chunk) {
      const int byte = abi::column_byte(columns, row, chunk), plain = row * columns * 2 + chunk * 16;
      // as TMA: the bits of 16 bytes within a line of so many, by those of 128 bytes
      EXPECT(byte == (plain ^ (plain >> 7 & (columns * 2 / 16 - 1)) << 4));
      EXPECT(bytes.insert(byte).second && byte + 16 <= kPageBytes);
      // steps of 16 k and a warp's first line add to it
      EXPECT(byte == abi::column_byte(columns, row % 16, chunk) + row / 16 * 16 * columns * 2);
    }
  for (int row = 0; row < abi::column_page_k(columns); row += 8)
    for (int chunk = 0; chunk < columns / 8; ++chunk) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(abi::column_byte(columns, row + i, chunk) % 128);
      EXPECT(banks.size() == 8);
    }
}

}  // namespace

int main() {
  for (const int columns : {8, 16, 32, 64}) columns_are_swizzled(columns);
  for (int k = 8; k <= 16384; k += 8)
    for (const int m : {1, 2, 8, 9, 16}) columns_fit(m, k);

  for (int k = 8; k <= 32768; k += k < 4096 ? 8 : 1000) {
    rows_fit_pages(k);
    for (const int m : {2, 8, 9, 16}) every_k_once(m, k);
  }
  return test::result("strip vectors");
}
