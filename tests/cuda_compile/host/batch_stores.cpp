// The generated programs of plan "batch_stores" (programs.inc), run on the host for each batch and for some that no box
// is for, by elements and by walks over vectors of a tile (device/matmul/epilogue_walk.cuh): the batch's box gets the
// values, as its own strides say, and nothing else is touched.
#include <cstdio>

#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device
#include "device/matmul/epilogue_walk.cuh"
#include "device/program/batch_stores.cuh"

namespace ark::device {
#include "programs.inc"
}

using namespace ark::device;

namespace {

constexpr int kBatches = 10, kRows = 50, kColumns = 120, kNowhere = -1;  // the tile: 64 x 128

/// What the product has at these coordinates, and operand 0: sums of either sign.
float product(const i32 (&x)[3]) { return static_cast<float>(x[0] * 7 + x[1] * 3 - x[2] * 5); }
float added(const i32 (&x)[3]) { return static_cast<float>((x[2] - x[0] - 4) % 16); }

struct Roots {
  i32 x[3];  // of the first one
  template <int V>
  void get(int, int, float (&value)[V]) const {
    ARK_EACH value[i] = product({x[0], x[1], x[2] + i});
  }
};

/// Operand 0 [kBatches, kRows, kColumns] and boxes [kRows, kColumns], whose rows lie apart by other distances.
class Operands {
 public:
  explicit Operands(int count) : values_(static_cast<size_t>(count)) {
    memory = {};
    for (int i = 0; i < count; ++i) {
      const i64 pitch = kColumns + 8 * i, batch = i == 0 ? kRows * pitch : 0;
      values_[static_cast<size_t>(i)].assign(static_cast<size_t>(kBatches * kRows * pitch), bf16{0x1234});
      ark::abi::Operand o{};
      o.dtype = static_cast<short>(kTypeBF16);
      o.vector = 8;
      o.offset = reinterpret_cast<i64>(values_[static_cast<size_t>(i)].data());
      o.stride[0] = batch, o.stride[1] = pitch, o.stride[2] = 1;
      memory.ranges.push_back({static_cast<u64>(o.offset), static_cast<u64>(o.offset + kBatches * kRows * pitch * 2)});
      records.push_back(o);
    }
  }
  bf16& at(int operand, const i32 (&x)[3]) {
    const ark::abi::Operand& o = records[static_cast<size_t>(operand)];
    return values_[static_cast<size_t>(operand)]
                  [static_cast<size_t>(x[0] * o.stride[0] + x[1] * o.stride[1] + x[2] * o.stride[2])];
  }
  bool operator==(const Operands& other) const {
    for (size_t i = 0; i < values_.size(); ++i)
      for (size_t k = 0; k < values_[i].size(); ++k)
        if (values_[i][k].bits != other.values_[i][k].bits) return false;
    return true;
  }

  ProgramContext context() {
    task = {&record, records.data()};
    return {task};
  }

  std::vector<ark::abi::Operand> records;
  ark::abi::OpRecord record{};

 private:
  Task task{};
  std::vector<std::vector<bf16>> values_;
};

template <class F>
void each(int batch, F&& f) {
  for (i32 row = 0; row < kRows; ++row)
    for (i32 column = 0; column < kColumns; ++column) {
      const i32 x[3] = {batch, row, column};
      f(x);
    }
}

/// By coordinates and strides.
template <class P>
void run_elements(const ProgramContext& c, int batch) {
  each(batch, [&](const i32(&x)[3]) { P::template run<1>(c, x, Roots{{x[0], x[1], x[2]}}); });
}
/// As the threads of a warpgroup walk.
template <class P, int V>
void run_walks(const ProgramContext& c, int batch) {
  using Tile = WarpTile<P, kLargeTiles>;
  Tile tile{c, TilePlace{batch, 0, 0}};
  tile.chunks = 2 * tile.parts();
  for (thread_number = 128; thread_number < 256; ++thread_number) {
    VectorWalk<Tile, V> walk(tile);
    for (int chunk = 0; chunk < tile.chunks; ++chunk, walk.advance())
      for (int step = 0; step < walk.kCount; ++step) {
        typename P::template Inputs<V> inputs;
        walk.load(step, inputs, false);
        walk.run(step, inputs, Roots{{batch, kRows - walk.rows + walk.context.step_row, kColumns - walk.columns}});
      }
  }
}

int cases = 0, failures = 0;

template <class P>
Operands expected(int batch, int box, int also) {
  Operands result(P::kNumOperands);
  each(batch, [&](const i32(&x)[3]) {
    const float sum = product(x) + added(x);
    result.at(0, x) = narrow<bf16>(added(x));
    if (also != kNowhere) result.at(also, x) = narrow<bf16>(sum);
    if (box != kNowhere) result.at(box, x) = narrow<bf16>(sum > 0 ? sum : 0.0f);
  });
  return result;
}

template <class P, class Run>
void check_run(const char* how, int batch, const Operands& wanted, const Run& run) {
  Operands found(P::kNumOperands);
  each(batch, [&](const i32(&x)[3]) { found.at(0, x) = narrow<bf16>(added(x)); });
  found.record.params.matmul.m = kRows, found.record.params.matmul.n = kColumns;
  run(found.context(), batch);
  ++cases;
  if (memory.fine && found == wanted) return;
  ++failures;
  std::printf("%d operands, batch %d, %s: %s\n", P::kNumOperands, batch, how,
              memory.fine ? "values" : "an access outside or off alignment");
}

/// `boxes`: the operand of each batch; `also`: one that gets the sum of every batch.
template <class P>
void check(const std::vector<int>& boxes, int also = kNowhere) {
  for (int batch = 0; batch < kBatches; ++batch) {
    const int box = batch < static_cast<int>(boxes.size()) ? boxes[static_cast<size_t>(batch)] : kNowhere;
    const Operands wanted = expected<P>(batch, box, also);
    check_run<P>("elements", batch, wanted, run_elements<P>);
    if constexpr (requires { typename P::ByBatch; }) {
      check_run<P>("vectors", batch, wanted, run_walks<P, 8>);
      check_run<P>("two elements", batch, wanted, run_walks<P, 2>);
    }
  }
}

}  // namespace

int main() {
  check<Program0>({1, 2});
  check<Program1>({1, 2, 3});
  check<Program2>({1, 2, 3, 4});
  check<Program3>({1, 2, 3, 4, 5});
  check<Program4>({1, 2, 3, 4, 5, 6});
  check<Program5>({1, 2, 3, 4, 5, 6, 7});
  check<Program6>({1, 2, 3, 4, 5, 6, 7, 8});
  check<Program7>({1, 3, 4}, 2);
  check<Program8>({1, kNowhere, 2, 3});
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0 || cases < 250;
}
