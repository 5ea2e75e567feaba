// Reductions over the rows or the columns of a block, in a fixed order. Included once per instruction set (see
// impl.h).

/// Accumulates in Acc: double for floats (so the order hardly matters, but it is fixed all the same), int64_t
/// otherwise.
template <class T>
using AccOf = typename ValueOf<kIsFloat<T> ? RegType::kF64 : RegType::kI64>::Type;

/// Partial sums in kSumLanes lanes of T, combined pairwise: fixed order, vectorises.
inline constexpr int kSumLanes = 32;
template <class T>
AccOf<T> sum_block(const T* x, int64_t n) {
  if constexpr (!kIsFloat<T>) {
    uint64_t total = 0;
    for (int64_t i = 0; i < n; ++i) total += static_cast<uint64_t>(x[i]);
    return static_cast<int64_t>(total);
  } else {
    T lanes[kSumLanes] = {};
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes)
      for (int j = 0; j < kSumLanes; ++j) lanes[j] += x[i + j];
    for (int j = 0; i < n; ++i, ++j) lanes[j] += x[i];
    double total = 0;
    for (int j = 0; j < kSumLanes; ++j) total += lanes[j];
    return total;
  }
}

struct FoldSum {
  template <class A>
  static A apply(A acc, A x) {
    return OpAdd::apply(acc, x);
  }
};
struct FoldProd {
  template <class A>
  static A apply(A acc, A x) {
    return OpMul::apply(acc, x);
  }
};
struct FoldMax {
  template <class A>
  static A apply(A acc, A x) {
    return OpMaximum::apply(acc, x);
  }
};
struct FoldMin {
  template <class A>
  static A apply(A acc, A x) {
    return OpMinimum::apply(acc, x);
  }
};

template <class Fold, class T>
void fold_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    AccOf<T> sum = total[r];
    for (int64_t c = 0; c < columns; ++c) sum = Fold::apply(sum, static_cast<AccOf<T>>(x[c]));
    total[r] = sum;
  }
}
template <class T>
void sum_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r) total[r] = OpAdd::apply(total[r], sum_block(x + r * columns, columns));
}
/// Max and min of a row in lanes; the result does not depend on the order.
template <class Fold, class T>
void extreme_rows(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns) {
    T lanes[kSumLanes];
    int64_t c = 0;
    if (columns >= kSumLanes) {
      for (int j = 0; j < kSumLanes; ++j) lanes[j] = x[j];
      for (c = kSumLanes; c + kSumLanes <= columns; c += kSumLanes)
        for (int j = 0; j < kSumLanes; ++j) lanes[j] = Fold::apply(lanes[j], x[c + j]);
      for (int j = 0; j < kSumLanes; ++j) total[r] = Fold::apply(total[r], static_cast<AccOf<T>>(lanes[j]));
    }
    for (; c < columns; ++c) total[r] = Fold::apply(total[r], static_cast<AccOf<T>>(x[c]));
  }
}
template <class Fold, class T>
void fold_columns(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t) {
  auto* __restrict total = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r, x += columns)
    for (int64_t c = 0; c < columns; ++c) total[c] = Fold::apply(total[c], static_cast<AccOf<T>>(x[c]));
}

/// The first index of the greatest (least) value; the first NaN beats everything. An index of -1: nothing seen yet.
template <bool kGreatest, class T>
void take_argument(AccOf<T>& best, int64_t& index, T x, int64_t i) {
  const auto value = static_cast<AccOf<T>>(x);
  if (index < 0 || (best == best && (value != value || (kGreatest ? value > best : value < best)))) {
    best = value;
    index = i;
  }
}
template <bool kGreatest, bool kByRows, class T>
void fold_argument(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t first_index) {
  auto* best = static_cast<AccOf<T>*>(acc.value);
  const auto* x = static_cast<const T*>(a);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t to = kByRows ? r : c;
      take_argument<kGreatest, T>(best[to], acc.index[to], x[r * columns + c], first_index + (kByRows ? c : r));
    }
}

template <class T>
ReduceFn reduce_rows_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return sum_rows<T>;
    case ReduceOp::kProd:
      return fold_rows<FoldProd, T>;
    case ReduceOp::kMax:
    case ReduceOp::kAny:
      return extreme_rows<FoldMax, T>;
    case ReduceOp::kMin:
    case ReduceOp::kAll:
      return extreme_rows<FoldMin, T>;
    case ReduceOp::kArgMax:
      return fold_argument<true, true, T>;
    case ReduceOp::kArgMin:
      return fold_argument<false, true, T>;
  }
  return nullptr;
}
template <class T>
ReduceFn reduce_columns_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return fold_columns<FoldSum, T>;
    case ReduceOp::kProd:
      return fold_columns<FoldProd, T>;
    case ReduceOp::kMax:
    case ReduceOp::kAny:
      return fold_columns<FoldMax, T>;
    case ReduceOp::kMin:
    case ReduceOp::kAll:
      return fold_columns<FoldMin, T>;
    case ReduceOp::kArgMax:
      return fold_argument<true, false, T>;
    case ReduceOp::kArgMin:
      return fold_argument<false, false, T>;
  }
  return nullptr;
}
ReduceFn find_reduce_rows(ReduceOp op, RegType type) {
  switch (type) {
    case RegType::kF32:
      return reduce_rows_of<float>(op);
    case RegType::kF64:
      return reduce_rows_of<double>(op);
    case RegType::kI64:
      return reduce_rows_of<int64_t>(op);
    case RegType::kBool:
      return reduce_rows_of<uint8_t>(op);
  }
  return nullptr;
}
ReduceFn find_reduce_columns(ReduceOp op, RegType type) {
  switch (type) {
    case RegType::kF32:
      return reduce_columns_of<float>(op);
    case RegType::kF64:
      return reduce_columns_of<double>(op);
    case RegType::kI64:
      return reduce_columns_of<int64_t>(op);
    case RegType::kBool:
      return reduce_columns_of<uint8_t>(op);
  }
  return nullptr;
}
