// Loads and stores of blocks, contiguous, strided, gathered. Included once per instruction set (see impl.h).

template <DType D>
void load(void* reg, const void* memory, int64_t stride, int64_t n) {
  using S = Storage<D>;
  auto* __restrict o = static_cast<typename S::Register*>(reg);
  const auto* x = static_cast<const typename S::Memory*>(memory);
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) o[i] = S::read(x[i]);
  } else if (stride == 0) {
    const auto value = S::read(x[0]);
    for (int64_t i = 0; i < n; ++i) o[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) o[i] = S::read(x[i * stride]);
  }
}
template <DType D>
void store(void* memory, const void* reg, int64_t stride, int64_t n) {
  using S = Storage<D>;
  auto* o = static_cast<typename S::Memory*>(memory);
  const auto* __restrict x = static_cast<const typename S::Register*>(reg);
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) o[i] = S::write(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) o[i * stride] = S::write(x[i]);
  }
}
template <DType D>
void gather(void* reg, const void* memory, const int64_t* offset, const uint8_t* predicate, int64_t n) {
  using S = Storage<D>;
  auto* __restrict o = static_cast<typename S::Register*>(reg);
  const auto* x = static_cast<const typename S::Memory*>(memory);
  for (int64_t i = 0; i < n; ++i) o[i] = (!predicate || predicate[i]) ? S::read(x[offset[i]]) : typename S::Register(0);
}
template <DType D>
void scatter(void* memory, const void* reg, const int64_t* offset, const uint8_t* predicate, int64_t n) {
  using S = Storage<D>;
  auto* o = static_cast<typename S::Memory*>(memory);
  const auto* x = static_cast<const typename S::Register*>(reg);
  for (int64_t i = 0; i < n; ++i)
    if (!predicate || predicate[i]) o[offset[i]] = S::write(x[i]);
}
template <DType D>
void add_storage(Kernels& k) {
  constexpr int i = static_cast<int>(D);
  k.load[i] = load<D>;
  k.store[i] = store<D>;
  k.gather[i] = gather<D>;
  k.scatter[i] = scatter<D>;
}
