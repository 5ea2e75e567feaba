// A shared library that runs single ops through the loop kernel on tensors of the caller (see test_device.py): builds
// the op records, lists and tensor maps by hand, so that the device code is tested without planner, codegen and
// runtime.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "device/abi/launch.h"
#include "kernels.cuh"

namespace {
using namespace ark;

void check(cudaError_t error, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "driver.cu:%d: %s\n", line, cudaGetErrorString(error));
  std::abort();
}
#define CHECK(x) check((x), __LINE__)

#define ONE_VARIANT(family, v) ark_loop<OneFamily<family<AttentionPrograms<1 << v>>, 56, 224>>
#define ALL_VARIANTS(family) \
  {ONE_VARIANT(family, 0), ONE_VARIANT(family, 1), ONE_VARIANT(family, 2), ONE_VARIANT(family, 3)}

#define ONE_LAYOUT(l) \
  ark_loop<OneFamily<Called<MatmulFloat<FloatProgram<Whole<StoreProgram<float>>, 1u << l>>>, 56, 224>>

#define DECODE(half, dim, rows) ark_loop<OneFamily<AttentionDecode<DecodePrograms<half, dim, rows>>, 72, 216>>
#define BOTH_ROWS(half, dim)                             \
  {                                                      \
    dim, { DECODE(half, dim, 4), DECODE(half, dim, 16) } \
  }
struct DecodeKernels {
  int dim;
  void (*kernels[2])(abi::LaunchParams<64>);  // few rows, more
};

#define SIMPLE_ATTENTION(forms) ark_loop<CalledFamily<AttentionSimple<SimpleAttentionPrograms<forms>>, 56, 224>>
/// Value sizes of the kernels on the tensor cores, in sixteens.
constexpr abi::u64 kMmaForms = 1 << 0 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 9 | 1 << 15;

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

template <class T>
T* upload(const std::vector<T>& data) {
  T* device = nullptr;
  if (data.empty()) return device;
  CHECK(cudaMalloc(&device, data.size() * sizeof(T)));
  CHECK(cudaMemcpy(device, data.data(), data.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

/// One op on one kernel.
struct Job {
  void (*kernel)(abi::LaunchParams<64>) = nullptr;
  abi::OpRecord record{};
  std::vector<abi::Operand> operands;
  std::vector<CUtensorMap> maps;
  std::vector<abi::TensorMapPatch> patches;
  abi::LaunchParams<64> params{};
  abi::ErrorRecord* error = nullptr;
  int num_slots = 0;

  int add_operand(const void* address, int dtype, const long long* strides, int rank, int vector) {
    abi::Operand o{};
    o.dtype = static_cast<short>(dtype);
    o.vector = static_cast<signed char>(vector);
    o.index_operand = -1;
    o.slot = abi::kNoSlot;
    if (address != nullptr) {
      o.slot = num_slots;
      params.slots[num_slots++] = reinterpret_cast<abi::u64>(address);
    }
    for (int d = 0; d < rank; ++d) o.stride[d] = strides[d];
    operands.push_back(o);
    return static_cast<int>(operands.size()) - 1;
  }

  /// sizes innermost first; strides in elements of the dimensions after the first. The address is patched by the
  /// kernel.
  int add_map(int slot, int type, std::vector<cuuint64_t> sizes, std::vector<long long> strides,
              std::vector<cuuint32_t> box) {
    static Encode encode = [] {
      void* f = nullptr;
      cudaDriverEntryPointQueryResult result;
      CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result));
      return reinterpret_cast<Encode>(f);
    }();
    std::vector<cuuint64_t> bytes;
    const unsigned element = type == 8 ? 4 : 2;
    for (long long s : strides) bytes.push_back(static_cast<cuuint64_t>(s) * element);
    const CUtensorMapDataType types[3] = {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                          CU_TENSOR_MAP_DATA_TYPE_FLOAT32};
    const auto swizzle = box[0] * element > 128 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
    std::vector<cuuint32_t> unit(sizes.size(), 1);
    static const auto dummy = reinterpret_cast<void*>(0x10000);
    CUtensorMap map;
    const CUresult result = encode(&map, types[type - 6], static_cast<cuuint32_t>(sizes.size()), dummy, sizes.data(),
                                   bytes.data(), box.data(), unit.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
      std::fprintf(stderr, "cuTensorMapEncodeTiled: %d\n", result);
      std::abort();
    }
    patches.push_back({static_cast<abi::u32>(slot), static_cast<abi::u32>(maps.size()), 0});
    maps.push_back(map);
    return static_cast<int>(maps.size()) - 1;
  }

  /// Of an operand of the product (strides b, row, k), by its boxes: (k, rows) where k is contiguous, else (rows, k).
  int add_matrix(int slot, int type, int rows, const long long* s, std::vector<cuuint32_t> k_major,
                 std::vector<cuuint32_t> row_major) {
    const abi::MatmulTileParams& p = record.params.matmul;
    const auto r64 = static_cast<cuuint64_t>(rows), k64 = static_cast<cuuint64_t>(p.k),
               b64 = static_cast<cuuint64_t>(p.batch);
    const long long batch_stride = p.batch == 1 ? 64 : s[0];
    if (s[2] == 1) return add_map(slot, type, {k64, r64, b64}, {s[1], batch_stride}, {k_major[0], k_major[1], 1});
    return add_map(slot, type, {r64, k64, b64}, {s[2], batch_stride}, {row_major[0], row_major[1], 1});
  }
  /// The same of small tiles: k-major in blocks of 64 k, of which so many rows are copied.
  int add_small_matrix(int slot, int type, int rows, const long long* s, int copied = abi::kSmallTile) {
    const abi::MatmulTileParams& p = record.params.matmul;
    if (s[2] != 1) return add_matrix(slot, type, rows, s, {}, {64, 128});
    const long long batch_stride = p.batch == 1 ? 64 : s[0];
    return add_map(
        slot, type,
        {64, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(p.k / 64), static_cast<cuuint64_t>(p.batch)},
        {s[1], 64, batch_stride}, {64, static_cast<cuuint32_t>(copied), 2, 1});
  }

  /// Items of `chunk` tiles dealt out to the workers in turn; 0: none at all.
  void finish(int chunk) {
    const int workers = 132;
    record.num_operands = static_cast<int>(operands.size());
    record.record_bytes = static_cast<int>((sizeof(record) + operands.size() * sizeof(abi::Operand) + 63) / 64 * 64);
    std::vector<unsigned char> blob(record.record_bytes);
    std::memcpy(blob.data(), &record, sizeof(record));
    std::memcpy(blob.data() + sizeof(record), operands.data(), operands.size() * sizeof(abi::Operand));
    const int tiles = chunk == 0 ? 0 : record.grid[0] * record.grid[1] * record.grid[2];
    std::vector<abi::WorkItem> items;
    std::vector<abi::i32> begin;
    for (int w = 0; w < workers; ++w) {
      begin.push_back(static_cast<abi::i32>(items.size()));
      for (int t = w * chunk; t < tiles; t += workers * chunk)
        items.push_back({0, t, tiles - t < chunk ? tiles - t : chunk, 0});
      items.push_back({abi::kEnd, 0, 0, 0});
    }
    abi::LaunchHeader& h = params.header;
    h.records = upload(blob);
    h.items = upload(items);
    h.list_begin = upload(begin);
    h.patches = upload(patches);
    CHECK(cudaMalloc(&h.maps, abi::maps_bytes(maps.size()) + 64));
    CHECK(cudaMemset(h.maps, 0, abi::maps_bytes(maps.size())));
    CHECK(cudaMemcpy(h.maps, maps.data(), maps.size() * sizeof(maps[0]), cudaMemcpyHostToDevice));
    h.num_maps = static_cast<int>(maps.size());
    h.num_patches = static_cast<int>(patches.size());
    CHECK(cudaMalloc(&h.state, sizeof(abi::RunState) + 4096));
    CHECK(cudaMemset(h.state, 0, sizeof(abi::RunState) + 4096));
    h.counters = reinterpret_cast<abi::u32*>(h.state + 1);
    CHECK(cudaHostAlloc(&error, sizeof(abi::ErrorRecord), cudaHostAllocMapped));
    std::memset(error, 0, sizeof(*error));
    CHECK(cudaHostGetDevicePointer(reinterpret_cast<void**>(&h.error), error, 0));
    h.deadline_ns = 1'000'000'000;
    h.num_workers = workers;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device::kSharedBytes));
  }
};
}  // namespace

extern "C" {

/// c[b, m, n] from a (strides b, row, k) and b (strides b, n row, k), one of the last two strides of each being 1.
/// tile_n 64: small tiles. extra: bias, factor (over n) for programs 2 and 3; residual like c for 2.
void* matmul_job(const void* a, const void* b, void* c, const void* extra, const void* residual, int batch, int m,
                 int n, int k, const long long* strides_a, const long long* strides_b, int half, int tile_n,
                 int program, int pair_distance, int b_immutable, int chunk) {
  auto* job = new Job;
  const bool k_major = strides_a[2] == 1 && strides_b[2] == 1, small = tile_n == abi::kSmallTile;
  const int tile_m = small ? abi::kSmallTile : 128;
  if (program >= 2)
    job->kernel = ark_loop<OneFamily<MatmulTile<FusedPrograms>, 56, 224>>;
  else if (small)
    job->kernel = ark_loop<OneFamily<MatmulTile<StorePrograms<0xff0000>>, 56, 224>>;
  else if (k_major && !half)
    job->kernel = ark_loop<OneFamily<MatmulTile<StorePrograms<0x11>>, 56, 224>>;
  else
    job->kernel = ark_loop<OneFamily<MatmulTile<StorePrograms<0xffff>>, 56, 224>>;
  const int type = half ? 6 : 7;
  const long long c_strides[3] = {static_cast<long long>(m) * n, n, 1}, n_strides[3] = {0, 0, 1};
  const long long b_strides[3] = {strides_b[0], strides_b[2], strides_b[1]};
  job->add_operand(a, type, strides_a, 3, 8);
  job->add_operand(b, type, b_strides, 3, 8);
  const int vector = n % 8 == 0 ? 8 : n % 2 == 0 ? 2 : 1;
  job->add_operand(c, type, c_strides, 3, vector);
  job->add_operand(extra, type, n_strides, 3, vector);
  job->add_operand(residual, type, c_strides, 3, vector);
  abi::OpRecord& r = job->record;
  r.kind = abi::TaskKind::kMatmulTile;
  r.grid[0] = batch;
  r.grid[1] = (m + tile_m - 1) / tile_m;
  r.grid[2] = (n + tile_n - 1) / tile_n;
  abi::MatmulTileParams& p = r.params.matmul;
  p.batch = batch;
  p.m = m;
  p.n = n;
  p.k = k;
  p.tile_m = tile_m;
  p.tile_n = tile_n;
  p.tile_k = small ? abi::kSmallTileK : 64;
  p.a_k_major = strides_a[2] == 1;
  p.b_k_major = strides_b[2] == 1;
  p.b_immutable = b_immutable;
  p.program = program;
  p.first_operand = 2;
  p.pair_distance = pair_distance;
  p.dtype = type;
  p.map_a = small ? job->add_small_matrix(0, type, m, strides_a, abi::small_page_rows(p))
                  : job->add_matrix(0, type, m, strides_a, {64, 128}, {64, 64});
  p.map_b = small ? job->add_small_matrix(1, type, n, strides_b)
                  : job->add_matrix(1, type, n, strides_b, {64, 128}, {64, 64});
  job->finish(chunk);
  return job;
}

/// The same in fp32 on the CUDA cores, in tiles of tile_m x tile_n.
void* float_job(const void* a, const void* b, void* c, const void* extra, const void* residual, const int* sizes,
                const long long* strides_a, const long long* strides_b, const long long* strides_c, int tile_m,
                int tile_n, int program, int pair_distance, int a_immutable, int b_immutable, int chunk) {
  constexpr int kType = 8;
  void (*const stores[4])(abi::LaunchParams<64>) = {ONE_LAYOUT(0), ONE_LAYOUT(1), ONE_LAYOUT(2), ONE_LAYOUT(3)};
  const bool trans_a = strides_a[2] != 1, trans_b = strides_b[2] != 1;
  auto* job = new Job;
  job->kernel =
      program == 0 ? stores[trans_a << 1 | trans_b] : ark_loop<OneFamily<MatmulFloat<FloatPrograms>, 56, 224>>;
  const long long n_strides[3] = {0, 0, 1}, b_strides[3] = {strides_b[0], strides_b[2], strides_b[1]};
  const int vector = sizes[2] % 4 == 0 && strides_c[2] == 1 && strides_c[1] % 4 == 0 ? 4 : 1;
  job->add_operand(a, kType, strides_a, 3, 4);
  job->add_operand(b, kType, b_strides, 3, 4);
  job->add_operand(c, kType, strides_c, 3, vector);
  job->add_operand(extra, kType, n_strides, 3, vector);
  job->add_operand(residual, kType, strides_c, 3, vector);
  abi::OpRecord& r = job->record;
  r.kind = abi::TaskKind::kMatmulFloat;
  abi::MatmulTileParams& p = r.params.matmul;
  p.batch = sizes[0];
  p.m = sizes[1];
  p.n = sizes[2];
  p.k = sizes[3];
  p.tile_m = tile_m;
  p.tile_n = tile_n;
  p.tile_k = 32;
  p.a_k_major = !trans_a;
  p.b_k_major = !trans_b;
  p.a_immutable = a_immutable;
  p.b_immutable = b_immutable;
  p.program = program;
  p.first_operand = 2;
  p.pair_distance = pair_distance;
  p.dtype = kType;
  r.grid[0] = p.batch;
  r.grid[1] = (p.m + tile_m - 1) / tile_m;
  r.grid[2] = (p.n + tile_n - 1) / tile_n;
  p.map_a = job->add_matrix(0, kType, p.m, strides_a, {32, 64}, {64, 32});
  p.map_b = job->add_matrix(1, kType, p.n, strides_b, {32, 64}, {64, 32});
  job->finish(chunk);
  return job;
}

/// c[b, m, n] on the CUDA cores; all of element type `dtype` (ark::DType), any strides (3 each, a: b, m, k; b: b, k,
/// n).
void* simple_job(const void* a, const void* b, void* c, const int* sizes, const long long* strides, int dtype,
                 int chunk) {
  auto* job = new Job;
  job->kernel = ark_loop<OneFamily<MatmulSimple<SimplePrograms>, 56, 224>>;
  job->add_operand(a, dtype, strides, 3, 1);
  job->add_operand(b, dtype, strides + 3, 3, 1);
  job->add_operand(c, dtype, strides + 6, 3, 1);
  abi::OpRecord& r = job->record;
  r.kind = abi::TaskKind::kMatmulSimple;
  abi::MatmulTileParams& p = r.params.matmul;
  p.batch = sizes[0];
  p.m = sizes[1];
  p.n = sizes[2];
  p.k = sizes[3];
  p.tile_m = p.tile_n = 64;
  p.tile_k = 16;
  p.program = p.dtype = dtype;
  p.first_operand = 2;
  r.grid[0] = p.batch;
  r.grid[1] = (p.m + 63) / 64;
  r.grid[2] = (p.n + 63) / 64;
  job->finish(chunk);
  return job;
}

/// Elements of `bytes` that may be moved at once from rows of a tensor with 4 strides.
int attention_vector(const void* address, const long long* strides, int bytes) {
  if (strides[3] != 1 || reinterpret_cast<abi::u64>(address) % 16 != 0) return 1;
  for (int d = 0; d < 3; ++d)
    if (strides[d] * bytes % 16 != 0) return 1;
  return 16 / bytes;
}

/// Queries per tile, as the planner chooses them.
int simple_queries(const std::vector<abi::Operand>& x, const int* sizes, int dtype, int mask_type) {
  if (dtype == 9) return abi::kTiledQueriesF64;
  bool fits = dtype != 8 && sizes[5] % 8 == 0 && sizes[6] % 8 == 0 && sizes[5] <= 256 && sizes[6] <= 256;
  for (int i = 0; i < 3; ++i) fits = fits && x[i].vector == 8;
  return fits && mask_type != 9 ? abi::kMmaQueries : abi::kTiledQueries;
}

void (*simple_kernel(int tile_q, int dtype, int value_dim))(abi::LaunchParams<64>) {
  if (tile_q != abi::kMmaQueries) return SIMPLE_ATTENTION(7ull << 32);
  if ((kMmaForms >> (value_dim - 1) / 16 & 1) == 0) {
    std::fprintf(stderr, "no kernel for %d columns of values\n", value_dim);
    std::abort();
  }
  return dtype == 6 ? SIMPLE_ATTENTION(kMmaForms << 16) : SIMPLE_ATTENTION(kMmaForms);
}

/// kind: 0 forward, 1 backward rows, 2 backward, 3 backward query, 4 simple (`half` is the ark::DType then). tensors
/// and strides (4 each) in the order of abi::AttentionParams. sizes: batch, heads, kv heads, queries, keys, head size,
/// value size.
void* attention_job(int kind, void* const* tensors, const long long* strides, const int* sizes, float scale, int causal,
                    int causal_offset, int mask_kind, int mask_type, int half, int chunk) {
  auto* job = new Job;
  const abi::TaskKind kinds[5] = {abi::TaskKind::kAttentionForward, abi::TaskKind::kAttentionBackwardRows,
                                  abi::TaskKind::kAttentionBackward, abi::TaskKind::kAttentionBackwardQuery,
                                  abi::TaskKind::kAttentionSimple};
  void (*const kernels[4][4])(abi::LaunchParams<64>) = {
      ALL_VARIANTS(AttentionForward), ALL_VARIANTS(AttentionBackwardRows), ALL_VARIANTS(AttentionBackward),
      ALL_VARIANTS(AttentionBackwardQuery)};
  if (kind != 4) job->kernel = kernels[kind][half << 1 | (sizes[5] > 64)];
  const int type = kind == 4 ? half : half ? 6 : 7;
  // Types by operand: the tensors' (t), f32 (f), the mask's (m), i32 (i).
  // Logsumexp of f64 attention is f64.
  const char* types[5] = {"ttttfmi", "ttf", "ttttffmittt", "ttttffmittt", type == 9 ? "tttttmi" : "ttttfmi"};
  for (int i = 0; types[kind][i] != 0; ++i) {
    const char t = types[kind][i];
    const int bytes = type < 8 ? 2 : type == 8 ? 4 : 8;
    const int vector = t != 't' ? 1 : kind == 4 ? attention_vector(tensors[i], strides + 4 * i, bytes) : 8;
    job->add_operand(tensors[i], t == 't' ? type : t == 'f' ? 8 : t == 'm' ? mask_type : 4, strides + 4 * i, 4, vector);
  }
  abi::OpRecord& r = job->record;
  r.kind = kinds[kind];
  abi::AttentionParams& p = r.params.attention;
  p.batch = sizes[0];
  p.heads = sizes[1];
  p.kv_heads = sizes[2];
  p.queries = sizes[3];
  p.keys = sizes[4];
  p.head_dim = sizes[5];
  p.value_dim = sizes[6];
  p.causal = causal;
  p.causal_offset = causal_offset;
  p.mask_kind = mask_kind;
  p.tile_q = p.tile_k = 128;
  if (kind == 4) {
    p.tile_q = simple_queries(job->operands, sizes, type, mask_type);
    job->kernel = simple_kernel(p.tile_q, type, p.value_dim);
  }
  p.dtype = type;
  p.scale = scale;
  r.grid[0] = p.batch;
  r.grid[1] = kind == 2 ? p.kv_heads : p.heads;
  r.grid[2] = ((kind == 2 ? p.keys : p.queries) + p.tile_q - 1) / p.tile_q;
  if (kind != 1 && kind != 4)
    for (int i = 0; i < (kind == 0 ? 3 : 4); ++i) {
      const bool kv = i == 1 || i == 2;
      const long long* s = strides + 4 * i;
      p.map[i] = job->add_map(static_cast<int>(job->operands[i].slot), type,
                              {static_cast<cuuint64_t>(p.head_dim), static_cast<cuuint64_t>(kv ? p.keys : p.queries),
                               static_cast<cuuint64_t>(kv ? p.kv_heads : p.heads), static_cast<cuuint64_t>(p.batch)},
                              {s[2], s[1], s[0]}, {64, 64, 1, 1});
    }
  job->finish(chunk);
  return job;
}

/// Few queries against a cache. tensors and strides (4 each): q, k, v, out, logsumexp (null), mask, range, parts' sums,
/// parts' maxima, position (null: everything is read after the waits).
void* decode_job(void* const* tensors, const long long* strides, const int* sizes, float scale, int causal,
                 int causal_offset, int mask_kind, int mask_type, int half, int parts, int positions_per_part,
                 int chunk, int at_once) {
  auto* job = new Job;
  constexpr int kSizes = 8;
  const DecodeKernels kernels[2][kSizes] = {
      {BOTH_ROWS(false, 64), BOTH_ROWS(false, 80), BOTH_ROWS(false, 96), BOTH_ROWS(false, 112), BOTH_ROWS(false, 128),
       BOTH_ROWS(false, 160), BOTH_ROWS(false, 192), BOTH_ROWS(false, 256)},
      {BOTH_ROWS(true, 64), BOTH_ROWS(true, 128), BOTH_ROWS(true, 256)}};
  const int rows = sizes[1] / sizes[2] * sizes[3];
  for (const DecodeKernels& k : kernels[half])
    if (k.dim == sizes[5]) job->kernel = k.kernels[rows > 4];
  if (job->kernel == nullptr) {
    std::fprintf(stderr, "decode_job: heads of %d, of which there is no kernel of this type\n", sizes[5]);
    std::abort();
  }
  const int type = half ? 6 : 7, types[10] = {type, type, type, type, 8, mask_type, 4, 8, 8, 5};
  for (int i = 0; i < 10; ++i) job->add_operand(tensors[i], types[i], strides + 4 * i, 4, i < 4 ? 8 : 1);
  abi::OpRecord& r = job->record;
  r.kind = abi::TaskKind::kAttentionDecode;
  abi::AttentionParams& p = r.params.attention;
  p.batch = sizes[0];
  p.heads = sizes[1];
  p.kv_heads = sizes[2];
  p.queries = sizes[3];
  p.keys = sizes[4];
  p.head_dim = p.value_dim = sizes[5];
  p.causal = causal;
  p.causal_offset = causal_offset;
  p.mask_kind = mask_kind;
  p.parts = parts;
  p.positions_per_part = positions_per_part;
  p.tiles_at_once = at_once;
  p.fresh_operand = tensors[9] != nullptr ? 9 : -1;
  p.dtype = type;
  p.scale = scale;
  r.grid[0] = p.batch;
  r.grid[1] = p.kv_heads;
  r.grid[2] = parts;
  job->finish(chunk);
  return job;
}

struct AllMasks {
  static constexpr u32 kMaskTypes = ~0u;
};

/// kMaskRange of a (batch, heads, queries, keys) mask.
void* mask_range_job(void* mask, const long long* strides, void* out, const long long* out_strides, const int* sizes,
                     int dtype) {
  auto* job = new Job;
  job->kernel = ark_loop<OneFamily<MaskRange<AllMasks>, 56, 224>>;
  job->add_operand(mask, dtype, strides, 4, 1);
  job->add_operand(out, 4, out_strides, 4, 1);
  abi::OpRecord& r = job->record;
  r.kind = abi::TaskKind::kMaskRange;
  r.params.mask_range = {sizes[0], sizes[1], sizes[2], sizes[3], 128, dtype == 0 ? 1 : 2, dtype, 0};
  r.grid[0] = sizes[0];
  r.grid[1] = sizes[1];
  r.grid[2] = (sizes[2] + 127) / 128;
  job->finish(1);
  return job;
}

/// On the default stream.
void job_launch(void* handle) {
  Job* job = static_cast<Job*>(handle);
  void* arguments[] = {&job->params};
  CHECK(cudaLaunchCooperativeKernel(job->kernel, dim3(132), dim3(abi::kThreads), arguments, device::kSharedBytes,
                                    nullptr));
}

/// Median of 5 times of `count` launches, ms per launch.
float job_time(void* handle, int count) {
  Job* job = static_cast<Job*>(handle);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 5; ++i) {
    CHECK(cudaEventRecord(begin));
    for (int j = 0; j < count; ++j) job_launch(handle);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms / static_cast<float>(count));
  }
  for (size_t i = 1; i < times.size(); ++i)
    for (size_t j = i; j > 0 && times[j] < times[j - 1]; --j) std::swap(times[j], times[j - 1]);
  return times[2];
}

/// Waits; 0 when no wait of the launches failed, else prints the error record.
int job_status(void* handle) {
  CHECK(cudaDeviceSynchronize());
  const abi::ErrorRecord& e = *static_cast<Job*>(handle)->error;
  if (e.set == 0) return 0;
  std::fprintf(stderr, "wait failed: worker %d tile %d counter %d expected %u seen %u\n", e.worker, e.fault.name.tile,
               e.fault.name.counter, e.fault.expected, e.fault.seen);
  return 1;
}
}
