// Few rows and weights [k][n], on the host: the loader's walk over pages (device/matmul/few_rows_column_loader.cuh) and
// those of the consumers (device/matmul/few_rows_columns.cuh). They count the same pages; every k of every eight
// columns of a strip is read by one thread, from a box that came, and multiplied by the activation's element of the
// same k.
#include <cstdio>

#define __device__
#define __forceinline__ inline
#define ARK_HOST_THREADS 256
#include "device/loop/page_walk.cuh"
#include "device/matmul/few_rows_activation.cuh"
// of this folder, before what is written for the device
#include "device/matmul/few_rows_column_loader.cuh"
#include "device/matmul/few_rows_columns.cuh"

namespace ark::device {

/// A thread's read of a line of 16 bytes: where it lies.
struct Read {
  int page, k, chunk;  // k is -1 where nothing came
  bool used = false;
};
std::vector<Read> reads;
int columns = 0;

Read read_of(u32 address) {
  const int page = static_cast<int>(address / kPageBytes);
  const u32 byte = address % kPageBytes, line = static_cast<u32>(columns) * 2;
  Read read{page, -1, -1};
  if (static_cast<size_t>(page) >= noted.size()) return read;
  const auto& boxes = noted[static_cast<size_t>(page)].boxes;
  auto box = boxes.upper_bound(byte);
  if (box == boxes.begin()) return read;
  --box;
  const int row = static_cast<int>((byte - box->first) / line);
  if (row < std::min(abi::column_page_k(columns), abi::kColumnBoxK)) read.k = box->second + row;
  for (int chunk = 0; chunk < columns / 8; ++chunk)
    if (abi::column_byte(columns, static_cast<int>(byte / line), chunk) == static_cast<int>(byte)) read.chunk = chunk;
  return read;
}

/// Words name their read and their part of it.
void ldmatrix_x4_transposed(u32 (&words)[4], u32 address) {
  reads.push_back(read_of(address));
  for (u32 part = 0; part < 4; ++part) words[part] = static_cast<u32>(reads.size() - 1) * 4 + part;
}
/// Words of the activation name the first of the 8 k that they are of.
void ldmatrix_x4(u32 (&words)[4], u32 address) {
  const u32 lane = static_cast<u32>(thread_number) % 32;
  for (u32 part = 0; part < 4; ++part) words[part] = (address - lane / 8 * 16) / 2 + part * 8;
}
void note_product(const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = thread_number % 32, part = static_cast<int>(a[0] % 4);
  Read& read = reads[a[0] / 4];
  // a lane reads line `lane` of 32 k (eight columns), or one of 16 k
  const int first = columns == 8 ? read.k - lane + 8 * part : read.k - (lane & 7) - (lane >> 4) * 8;
  memory.fine = memory.fine && read.k >= 0 && read.chunk >= 0 && static_cast<int>(b0) == first &&
                static_cast<int>(b1) == first + 8;
  read.used = true;
}

}  // namespace ark::device

using namespace ark::device;
namespace abi = ark::abi;

namespace {

template <int kM, int kK, int kColumns, int kLanes, bool kGated>
struct Form {
  static constexpr int kUnits = kLanes == 1 ? 3 * kColumns - 8 : 2 * kColumns;  // of a segment
  static constexpr abi::MatmulRowsParams params() {
    abi::MatmulRowsParams p{};
    p.m = kM, p.k = kK, p.num_segments = 2, p.num_units = 2 * kUnits, p.lanes = kLanes, p.columns = kColumns;
    p.gated = kGated, p.pair_distance = kLanes == 2 && !kGated ? kColumns : 0;
    for (int s = 0; s < 2; ++s) p.segment[s].first_unit = s * kUnits, p.segment[s].num_units = kUnits;
    for (int i = 0; i < 4; ++i) p.map[i] = 10 + i;
    return p;
  }
  struct Prologue {
    struct Uniform {};
    template <int V>
    struct Inputs {};
  };
};

template <class F, class G>
void for_each_strip(const G& strip) {
  for (int s = 0; s < 2; ++s)
    for (int unit = 0; unit < F::kUnits; unit += columns) strip(s, unit);
}

/// All that a thread multiplies, in the order of pages.
template <class F>
void multiply_strips(const Consumer& consumer, PageReader& pages) {
  constexpr MmaType kType = MmaType::kBF16;
  using R = Rows<F>;
  std::vector<float> sums(1 << 16);
  if constexpr (R::kM == 1) {
    for_each_strip<F>([&](int, int) {
      for (int lane = 0; lane < R::kLanes; ++lane) ColumnsOfRow<F, kType>::run(consumer, pages, nullptr, sums.data());
    });
  } else {
    using A = RowsActivation<F>;
    unrolled<A::kWindows>([&](auto window) {
      typename A::Fragments b;
      for (auto& block : b)
        for (int n = 0; n < A::kVectors; ++n)
          for (int c = 0; c < 4; ++c) block[n][c] = static_cast<u32>(A::place(window.value, n, consumer.warp(), c));
      for_each_strip<F>([&](int, int) {
        const u32 before = pages.next;
        ColumnStrips<F, kType>::template multiply<window.value>(consumer, pages, b, columns, sums.data());
        const int counted = ColumnStrips<F, kType>::template pages<window.value>(columns);
        memory.fine = memory.fine && static_cast<int>(pages.next - before) == counted;
      });
    });
  }
}

/// Every page came whole, of the columns and weight that the consumers take it for. The strip and lane of each page.
template <class F>
std::vector<int> strips_of_pages() {
  using R = Rows<F>;
  constexpr abi::MatmulRowsParams p = F::params();
  std::vector<int> strips;
  const auto own = [&](const NotedPage& page, int s, int unit, int lane) {
    const int map = p.map[s + (p.gated ? lane * p.num_segments : 0)];
    return page.map == map && page.column == rows_column(p, p.segment[s], unit, lane);
  };
  int number = 0, last_k = -1;
  const int window = (abi::column_slices(p.k) + abi::column_windows(p.m, p.k) - 1) / abi::column_windows(p.m, p.k) *
                     abi::kColumnSliceK;
  size_t at = 0;
  for (int first = 0; first < p.k; first += window) {
    number = 0;
    for_each_strip<F>([&](int s, int unit) {
      for (int lane = 0; lane < R::kLanes; ++lane, ++number) {
        last_k = -1;
        for (; at < noted.size() && noted[at].k > last_k && noted[at].k < std::min(p.k, first + window) &&
               own(noted[at], s, unit, lane);
             ++at) {
          last_k = noted[at].k;
          strips.push_back(number);
          const u32 box =
              static_cast<u32>(std::min(abi::column_page_k(columns), abi::kColumnBoxK)) * 2 * static_cast<u32>(columns);
          memory.fine = memory.fine && noted[at].expected == noted[at].boxes.size() * box &&
                        noted[at].boxes.rbegin()->first + box <= kPageBytes;
        }
      }
    });
  }
  memory.fine = memory.fine && at == noted.size();
  return strips;
}

int cases = 0, failures = 0;

template <int kM, int kK, int kColumns, int kLanes = 1, bool kGated = false>
void check() {
  using F = Form<kM, kK, kColumns, kLanes, kGated>;
  columns = kColumns, memory.fine = true;
  noted.clear(), reads.clear();
  abi::OpRecord record{};
  record.params.rows = F::params();
  const Task task{.record = &record, .operands = nullptr, .first = 0, .count = 2 * F::kUnits};
  Loader loader;
  ColumnLoader{loader, task}.load(true);
  const std::vector<int> strips = strips_of_pages<F>();
  for (thread_number = 0; thread_number < kConsumerThreads && memory.fine; ++thread_number) {
    const Consumer consumer{thread_number};
    PageReader pages(consumer);
    multiply_strips<F>(consumer, pages);
    memory.fine = memory.fine && pages.next == noted.size();
  }
  // [strip and lane][k][eight columns]
  const int chunks = kColumns / 8, all = (strips.empty() ? 0 : 1 + *std::max_element(strips.begin(), strips.end()));
  std::vector<int> met(static_cast<size_t>(all) * kK * static_cast<size_t>(chunks));
  for (const Read& read : reads)
    if (memory.fine && read.used && read.k < kK)
      ++met[static_cast<size_t>((strips[static_cast<size_t>(read.page)] * kK + read.k) * chunks + read.chunk)];
  const bool once = !met.empty() && std::all_of(met.begin(), met.end(), [](int times) { return times == 1; });
  ++cases;
  if (memory.fine && once) return;
  ++failures;
  std::printf("m %d, k %d, %d columns of %d lanes: %s\n", kM, kK, kColumns, kLanes,
              memory.fine ? "a k is not read once" : "pages or products do not fit each other");
}

/// All widths that products of so many rows may have.
template <int kM, int kK>
void check_widths() {
  check<kM, kK, 16>();
  if constexpr (abi::column_windows(kM, kK) == 1) {
    check<kM, kK, 8>();
    check<kM, kK, 8, 2>();
    check<kM, kK, 8, 2, true>();
    if constexpr (kM <= 8) check<kM, kK, 16, 2>(), check<kM, kK, 16, 2, true>();
    if constexpr (kM == 1) check<kM, kK, 32, 2>(), check<kM, kK, 32, 2, true>(), check<kM, kK, 64>();
  }
  if constexpr (kM <= 8) check<kM, kK, 32>();
}

template <int kM, int... kK>
void check_lengths() {
  (check_widths<kM, kK>(), ...);
}

}  // namespace

int main() {
  check_lengths<1, 8, 72, 264, 520, 1536, 11264>();
  check_lengths<8, 8, 264, 1032, 2048, 8200>();
  check_lengths<16, 72, 520, 4104, 16384>();
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures == 0 ? 0 : 1;
}
