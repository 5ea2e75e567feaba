// The generated programs of plan "kept_rows" (programs.inc), run on the host by a warp (device/program/row_kept.cuh) on
// rows of 1 to 1100 elements that begin anywhere: results against plain loops, and no access beside a row's elements,
// but for the aligned pieces of weights that are off alignment in another way.
#include <cstdio>

#define ARK_HOST_THREADS 32
#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
#include "lanes.h"
#include "operand_values.h"

namespace ark::device {

namespace op {
inline float exp(float x) { return std::exp(x); }
inline float exp_fast(float x) { return std::exp(x); }
inline double exp(double x) { return std::exp(x); }
inline float div(float a, float b) { return a / b; }
inline float div_fast(float a, float b) { return a / b; }
inline double div(double a, double b) { return a / b; }
inline float log(float x) { return std::log(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
}  // namespace op

template <class T>
struct SumAccumulator {
  T value;
  void start() { value = 0; }
  void add(T x, i64) { value += x; }
  void merge(const SumAccumulator& o) { value += o.value; }
  T result() const { return value; }
};
template <class T>
struct MaxAccumulator {
  T value;
  void start() { value = -1e30f; }
  void add(T x, i64) { value = std::max(value, x); }
  void merge(const MaxAccumulator& o) { value = std::max(value, o.value); }
  T result() const { return value; }
};
template <int V, class S, int kDims>
int elements_until_aligned(const ProgramContext& c, int number, const i32 (&x)[kDims]) {
  return static_cast<int>(-(reinterpret_cast<i64>(element_at<S>(c, number, x)) / static_cast<i64>(sizeof(S))) &
                          (V - 1));
}

inline void __syncwarp() { lanes.meet(); }
template <class T>
T shuffle_xor(const T& value, int mask) {
  return lanes.shuffle_xor(value, mask);
}

}  // namespace ark::device

#include "device/program/row.cuh"

namespace ark::device {
#include "programs.inc"
}  // namespace ark::device

using namespace ark::device;

namespace {

enum class Kind { kSoftmax, kLogSumExp, kNorm, kSumAndNorm };
constexpr double kDivisor = 256;  // of the norms
constexpr i64 kLongest = 1100;

template <class P>
constexpr Kind kind_of() {
  if (P::kUniformStores) return Kind::kLogSumExp;
  return P::kNumOperands == 2 ? Kind::kSoftmax : P::kNumOperands == 4 ? Kind::kNorm : Kind::kSumAndNorm;
}

template <class P>
struct OneProgram {
  template <class F>
  static void row(int, F&& f) {
    f(P{});
  }
};

/// All rows begin with a vector, though some threads may not have their last one; else they begin anywhere.
template <class P>
constexpr bool kAligned = P::kVector > 1 && P::kEdgeElements == 0;

/// As codegen::row_form_serves says.
template <class P>
bool serves(i64 length) {
  constexpr i64 V = P::kVector, kKept = P::kThreads * P::kChunks;
  static_assert(P::kEdges || V == 1);
  if (!P::kEdges) return length <= kKept;
  if (kAligned<P>) return length >= V && length % V == 0 && length / V / P::kThreads >= P::kSure && length / V <= kKept;
  return length >= 2 * V - 1 && (length - (V - 1)) / V / P::kThreads >= P::kSure && length / V <= kKept;
}

using Operands = std::vector<ark::abi::Operand>;
bf16& element(const ark::abi::Operand& o, i64 row, i64 i) {
  return reinterpret_cast<bf16*>(o.offset)[row * o.stride[0] + i * o.stride[1]];
}

/// What row r of the results should be: plain loops in double precision.
std::vector<double> expected(Kind kind, const Operands& operands, i64 r, i64 length) {
  std::vector<double> x;
  for (i64 i = 0; i < length; ++i) {
    x.push_back(widen(element(operands[0], r, i)));
    if (kind == Kind::kSumAndNorm) x.back() += widen(element(operands[1], r, i));
  }
  double sum = 0, top = -1e30, rest = 0, squares = 0;
  for (const double v : x) sum += v, top = std::max(top, v);
  for (const double v : x) rest += std::exp(v - top), squares += (v - sum / kDivisor) * (v - sum / kDivisor);
  if (kind == Kind::kLogSumExp) return {std::log(rest) + top};
  const size_t weight = kind == Kind::kSumAndNorm ? 2 : 1;
  for (i64 i = 0; i < length; ++i) {
    double& v = x[static_cast<size_t>(i)];
    if (kind == Kind::kSoftmax)
      v = std::exp(v - top) / rest;
    else
      v = (v - sum / kDivisor) / std::sqrt(squares / kDivisor + 1e-5) * widen(element(operands[weight], 0, i)) +
          widen(element(operands[weight + 1], 0, i));
  }
  return x;
}

/// An operand's elements lie in memory of their own, which says where they are: row by row.
struct Place {
  std::vector<unsigned char> bytes, before;
  i64 rows, length;
};
Place place(ark::abi::Operand& o, i64 rows, i64 length, i64 offset) {
  const size_t ranges = memory.ranges.size();
  Place p = {random_memory(o, (rows - 1) * o.stride[0] + (length - 1) * o.stride[1] + 1, offset), {}, rows, length};
  memory.ranges.resize(ranges);
  for (i64 r = 0; r < rows; ++r) {
    const u64 begin = reinterpret_cast<u64>(&element(o, r, 0));
    memory.ranges.push_back({begin, begin + 2 * static_cast<u64>(length)});
  }
  p.before = p.bytes;
  return p;
}

/// Whether nothing but the rows was stored to.
bool only_rows(const ark::abi::Operand& o, const Place& p) {
  std::vector<unsigned char> rest = p.bytes;
  const i64 begin = o.offset - reinterpret_cast<i64>(p.bytes.data());
  for (i64 r = 0; r < p.rows; ++r) {
    const i64 at = begin + 2 * r * o.stride[0];
    std::copy_n(p.before.begin() + at, 2 * p.length, rest.begin() + at);
  }
  return rest == p.before;
}

/// Greatest difference by what is expected.
double difference(Kind kind, const Operands& operands, i64 rows, i64 length) {
  double worst = 0;
  for (i64 r = 0; r < rows; ++r) {
    const std::vector<double> values = expected(kind, operands, r, length);
    for (size_t i = 0; i < values.size(); ++i) {
      const i64 at = static_cast<i64>(i);
      worst =
          std::max(worst, std::abs(widen(element(operands.back(), r, at)) - values[i]) / (1e-3 + std::abs(values[i])));
      if (kind == Kind::kSumAndNorm)
        worst =
            std::max<double>(worst, std::abs(widen(element(operands[4], r, at)) - widen(element(operands[0], r, at)) -
                                             widen(element(operands[1], r, at))));
    }
  }
  return worst;
}

int cases = 0, failures = 0;

template <class P>
ark::abi::OpRecord record_of(i64 rows, i64 length) {
  ark::abi::OpRecord record{};
  ark::abi::ProgramParams& p = record.params.program;
  record.size[0] = rows, record.size[1] = length;
  for (int d = 0; d < ark::abi::kMaxDims; ++d)
    p.by[d] = ark::abi::divisor_of(static_cast<u32>(std::max<i64>(record.size[d], 1)));
  p.num_rows = rows, p.row_size = length, p.tile = 1 + up_to(rows);
  return record;
}

/// Rows that P has registers for twice and a few more, or fewer, one behind the other or with gaps.
template <class P>
void check(i64 length) {
  constexpr Kind kKind = kind_of<P>();
  constexpr i64 V = P::kVector;
  constexpr int kWeight = kKind == Kind::kNorm ? 1 : kKind == Kind::kSumAndNorm ? 2 : -1;  // and the next one
  constexpr bool kAlike =
      kWeight > 0 && (P::kVectorOperands >> max(kWeight, 0) & 1) != 0;  // weights are aligned as rows are
  const i64 rows = 1 + up_to(32 / P::kThreads * P::kRows * 5 / 2 + 1);
  memory = {};
  const i64 more = up_to(2) * up_to(9),
            stride = kAlike || kAligned<P> ? (length + more + V - 1) / V * V : length + more;
  const i64 phase = kAligned<P> ? V * up_to(2) : up_to(8);
  Operands operands(P::kNumOperands);
  std::vector<Place> places;
  for (size_t i = 0; i < operands.size(); ++i) {
    ark::abi::Operand& o = operands[i];
    const bool weight = kWeight > 0 && (i == kWeight || i == kWeight + 1);
    const bool single = kKind == Kind::kLogSumExp && i == 1;
    o.dtype = kTypeBF16, o.vector = 1;
    o.stride[0] = weight ? 0 : single ? 1 : stride + V * up_to(2);
    o.stride[1] = single ? 0 : 1;
    const bool elsewhere = single || (weight && !kAlike);
    places.push_back(place(o, weight ? 1 : rows, single ? 1 : length, elsewhere ? up_to(8) : phase + V * up_to(2)));
  }
  const ark::abi::OpRecord record = record_of<P>(rows, length);
  const i64 tile = record.params.program.tile;
  const Task task{&record, operands.data(), 0, static_cast<int>((rows + tile - 1) / tile)};
  std::vector<unsigned char> scratch(kScratchBytes);
  lanes.run([&](int lane) {
    Consumer consumer{lane, nullptr, scratch.data()};
    Row<OneProgram<P>>::consume(consumer, task);
  });

  bool beside = false;
  for (size_t i = 0; i < operands.size(); ++i) {
    const bool result = i + 1 == operands.size() || (kKind == Kind::kSumAndNorm && i == 4);
    beside = beside || !(result ? only_rows(operands[i], places[i]) : places[i].bytes == places[i].before);
  }
  const double worst = difference(kKind, operands, rows, length);
  ++cases;
  if (memory.fine && !beside && worst < 0.02) return;
  ++failures;
  std::printf("kind %d, %lld x %lld of %lld, %d threads x %d vectors of %d: off by %g%s%s\n", static_cast<int>(kKind),
              static_cast<long long>(rows), static_cast<long long>(length), static_cast<long long>(stride), P::kThreads,
              P::kChunks, P::kVector, worst, beside ? ", stores beside the rows" : "",
              memory.fine ? "" : ", accesses beside the rows");
}

struct Form {
  Kind kind;
  int slots, sure;
  bool (*serves)(i64);
  void (*check)(i64);
  /// Whether it is made for shorter rows.
  bool closer(const Form& o) const { return slots != o.slots ? slots < o.slots : sure > o.sure; }
};
template <class P>
Form form() {
  static_assert(P::kChunks > 0);
  return {kind_of<P>(), P::kThreads * P::kChunks * P::kVector, P::kSure, serves<P>, check<P>};
}

/// A row of every length, by the form that has the fewest vectors for it and by some other one that serves it.
void check_length(const std::vector<Form>& forms, Kind kind, i64 length) {
  std::vector<const Form*> fit;
  for (const Form& f : forms)
    if (f.kind == kind && f.serves(length)) fit.push_back(&f);
  if (fit.empty()) {
    ++failures;
    std::printf("kind %d: nothing serves %lld\n", static_cast<int>(kind), static_cast<long long>(length));
    return;
  }
  const auto closer = [](const Form* a, const Form* b) { return a->closer(*b); };
  (*std::min_element(fit.begin(), fit.end(), closer))->check(length);
  fit[static_cast<size_t>(up_to(static_cast<i64>(fit.size())))]->check(length);
}

}  // namespace

int main() {
#define ARK_FORM(P) form<P>(),
  const std::vector<Form> forms = {ARK_PROGRAMS(ARK_FORM)};
  for (const Kind kind : {Kind::kSoftmax, Kind::kLogSumExp, Kind::kNorm, Kind::kSumAndNorm})
    for (i64 length = 1; length <= kLongest; ++length) check_length(forms, kind, length);
  std::printf("%zu forms, %d cases, %d failures\n", forms.size(), cases, failures);
  return failures != 0;
}
