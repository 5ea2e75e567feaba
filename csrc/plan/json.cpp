// plan::to_json and from_json. A record is written by its named parts: only the parameters of its kind, only the waits
// and arrivals that it has.
#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <tuple>

#include "ir/names_json.h"
#include "plan/early_reads.h"
#include "plan/few_rows_form.h"
#include "plan/param_fields.h"
#include "plan/params.h"
#include "plan/plan.h"

namespace ark::plan {
namespace {

/// An Op as it is written. Of the parameter structs, those of other kinds stay zero and are left out.
struct OpText {
  abi::TaskKind kind{};
  std::vector<int32_t> grid;
  std::vector<int64_t> size;
  int32_t background = 0;
#define ARK_FAMILY(family, member, Params) abi::Params member{};
  ARK_FAMILIES(ARK_FAMILY)
#undef ARK_FAMILY
  std::vector<abi::Wait> waits;
  std::vector<abi::Arrive> arrivals;
  std::vector<int32_t> arrive_rank_stride;  // none: all 0
  std::vector<abi::Operand> operands;
  std::vector<int32_t> programs;
  std::string name, module;
  int64_t bytes = 0, flops = 0;
  uint32_t early = 0;
  int32_t form = -1;
  Flags flags;
};

/// The member of that type.
template <class Params>
Params& params_of(OpText& t) {
#define ARK_FAMILY(family, member, Params) , t.member
  const auto members = [](auto&, auto&... all) { return std::tie(all...); };
  return std::get<Params&>(members(t ARK_FAMILIES(ARK_FAMILY)));
#undef ARK_FAMILY
}

OpText to_text(const Op& op) {
  const abi::OpRecord& r = op.record;
  OpText t{.kind = r.kind,
           .grid = {std::begin(r.grid), std::end(r.grid)},
           .size = {std::begin(r.size), std::end(r.size)},
           .background = r.background,
           .waits = {r.wait, r.wait + r.num_waits},
           .arrivals = {r.arrive, r.arrive + r.num_arrivals},
           .operands = op.operands,
           .programs = op.programs,
           .name = op.name,
           .module = op.module,
           .bytes = op.bytes,
           .flops = op.flops,
           .early = op.early,
           .form = op.form,
           .flags = op.flags};
  visit_params(r, [&]<class Params>(const Params& params) { params_of<Params>(t) = params; });
  const auto* strides = r.arrive_rank_stride;
  if (std::any_of(strides, strides + r.num_arrivals, [](int stride) { return stride != 0; }))
    t.arrive_rank_stride.assign(strides, strides + r.num_arrivals);
  return t;
}

template <class T, size_t N>
void copy_limited(const std::vector<T>& from, T (&to)[N], const json::Path& path, const char* what) {
  check<UserError>(from.size() <= N, path, ".", what, ": expected at most ", N, ", got ", from.size());
  std::copy(from.begin(), from.end(), to);
}

Op from_text(OpText&& t, const json::Path& path) {
  Op op;
  abi::OpRecord& r = op.record;
  r.kind = t.kind;
  copy_limited(t.grid, r.grid, path, "grid");
  copy_limited<abi::i64>({t.size.begin(), t.size.end()}, r.size, path, "size");
  r.background = t.background;
  copy_limited(t.waits, r.wait, path, "waits");
  copy_limited(t.arrivals, r.arrive, path, "arrivals");
  copy_limited(t.arrive_rank_stride, r.arrive_rank_stride, path, "arrive_rank_stride");
  r.num_waits = static_cast<int32_t>(t.waits.size());
  r.num_arrivals = static_cast<int32_t>(t.arrivals.size());
  r.num_operands = static_cast<int32_t>(t.operands.size());
  r.record_bytes = static_cast<int32_t>(sizeof(abi::OpRecord) + t.operands.size() * sizeof(abi::Operand));
  visit_params(r, [&]<class Params>(Params& params) { params = params_of<Params>(t); });
  op.operands = std::move(t.operands);
  op.programs = std::move(t.programs);
  op.name = std::move(t.name);
  op.module = std::move(t.module);
  op.bytes = t.bytes;
  op.flops = t.flops;
  op.early = t.early;
  op.form = t.form;
  op.flags = std::move(t.flags);
  return op;
}

}  // namespace
}  // namespace ark::plan

namespace ark::json {

using namespace ark::plan;

template <>
struct Enumerators<abi::TaskKind> {
  static constexpr int count = static_cast<int>(abi::TaskKind::kCount);
  static std::string_view name(abi::TaskKind kind) { return plan::name(kind); }
};
template <>
struct Enumerators<BufferKind> {
  static constexpr int count = static_cast<int>(BufferKind::kPartOut) + 1;
  static std::string_view name(BufferKind kind) {
    constexpr std::string_view kNames[count] = {"input",   "output", "arena", "constant", "box",
                                                "box_out", "boxes",  "part",  "part_out"};
    return kNames[static_cast<int>(kind)];
  }
};

template <>
struct Fields<abi::Operand> {
  using T = abi::Operand;
  static constexpr auto list = std::tuple{field("slot", &T::slot),     field("dtype", &T::dtype),
                                          field("vector", &T::vector), field("index_operand", &T::index_operand),
                                          field("offset", &T::offset), field("stride", &T::stride)};
};
template <>
struct Fields<abi::Wait> {
  using T = abi::Wait;
  static constexpr auto list = std::tuple{field("counter", &T::counter), field("base", &T::base),
                                          field("coef", &T::coef),       field("extent", &T::extent),
                                          field("div", &T::div),         field("limit", &T::limit),
                                          field("target", &T::target),   field("last_target", &T::last_target),
                                          field("role", &T::role),       field("rank_stride", &T::rank_stride)};
};
template <>
struct Fields<abi::Arrive> {
  using T = abi::Arrive;
  static constexpr auto list =
      std::tuple{field("counter", &T::counter), field("base", &T::base), field("coef", &T::coef),
                 field("extent", &T::extent),   field("div", &T::div),   field("limit", &T::limit)};
};
template <>
struct Fields<Flags> {
  using T = Flags;
  static constexpr auto list =
      std::tuple{field("operands", &T::operands), field("dropped_waits", &T::dropped_waits),
                 field("dropped_arrivals", &T::dropped_arrivals), field("added_waits", &T::added_waits)};
};
#define ARK_FAMILY(family, member, Params) field(#member, &T::member),
template <>
struct Fields<OpText> {
  using T = OpText;
  static constexpr auto list = std::tuple{field("kind", &T::kind),
                                          field("name", &T::name),
                                          field("module", &T::module),
                                          field("grid", &T::grid),
                                          field("size", &T::size),
                                          field("background", &T::background),
                                          ARK_FAMILIES(ARK_FAMILY) field("waits", &T::waits),
                                          field("arrivals", &T::arrivals),
                                          field("arrive_rank_stride", &T::arrive_rank_stride),
                                          field("operands", &T::operands),
                                          field("programs", &T::programs),
                                          field("bytes", &T::bytes),
                                          field("flops", &T::flops),
                                          field("early", &T::early),
                                          field("form", &T::form),
                                          field("flags", &T::flags)};
#undef ARK_FAMILY
};

template <>
struct Custom<Op> {
  static void read(const Value& from, Op& to, const Path& path) {
    OpText text;
    json::read(from, text, path);
    to = from_text(std::move(text), path);
  }
  static void write(Writer& out, const Op& from) { json::write(out, to_text(from)); }
  static bool is_default(const Op&) { return false; }
};

/// [op, first, count]
template <>
struct Custom<abi::WorkItem> {
  static void read(const Value& from, abi::WorkItem& to, const Path& path) {
    int32_t numbers[3] = {0, 0, 0};
    json::read(from, numbers, path);
    to = {0, numbers[1], numbers[2], numbers[0]};
  }
  static void write(Writer& out, const abi::WorkItem& from) {
    const int32_t numbers[3] = {from.op, from.first, from.count};
    json::write(out, numbers);
  }
  static bool is_default(const abi::WorkItem&) { return false; }
};

/// Bytes that are no text; written in hexadecimal digits.
struct Bytes {
  std::string data;
};
template <>
struct Custom<Bytes> {
  static void read(const Value& from, Bytes& to, const Path& path) {
    std::string text;
    json::read(from, text, path);
    check<UserError>(text.size() % 2 == 0, path, ": expected pairs of hexadecimal digits");
    auto digit = [&](char c) {
      size_t value = std::string_view("0123456789abcdef").find(c);
      check<UserError>(value != std::string_view::npos, path, ": expected hexadecimal digits, got '", c, "'");
      return value;
    };
    for (size_t i = 0; i < text.size(); i += 2) to.data += static_cast<char>(digit(text[i]) * 16 + digit(text[i + 1]));
  }
  static void write(Writer& out, const Bytes& from) {
    std::string text;
    for (char c : from.data) {
      auto byte = static_cast<uint8_t>(c);
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    out.value(std::string_view(text));
  }
  static bool is_default(const Bytes& x) { return x.data.empty(); }
};

/// A Buffer with its data as Bytes.
struct BufferText {
  BufferKind kind = BufferKind::kArena;
  int32_t index = -1;
  int64_t arena_offset = 0, size_bytes = 0;
  bool immutable = false;
  int32_t first_op = -1, last_op = -1;
  Bytes data;
  std::string name;
  int32_t twin = -1;
  int64_t first_word = -1;
  int32_t group = 0;
};
template <>
struct Fields<BufferText> {
  using T = BufferText;
  static constexpr auto list = std::tuple{field("kind", &T::kind),
                                          field("name", &T::name),
                                          field("index", &T::index),
                                          field("arena_offset", &T::arena_offset),
                                          field("size_bytes", &T::size_bytes),
                                          field("immutable", &T::immutable),
                                          field("first_op", &T::first_op),
                                          field("last_op", &T::last_op),
                                          field("data", &T::data),
                                          field("twin", &T::twin),
                                          field("first_word", &T::first_word),
                                          field("group", &T::group)};
};
template <>
struct Custom<Buffer> {
  static void read(const Value& from, Buffer& to, const Path& path) {
    BufferText t;
    json::read(from, t, path);
    to = {t.kind,       t.index,   t.arena_offset,         t.size_bytes,      t.immutable,
          t.first_op,   t.last_op, std::move(t.data.data), std::move(t.name), t.twin,
          t.first_word, t.group};
  }
  static void write(Writer& out, const Buffer& b) {
    json::write(out, BufferText{b.kind, b.index, b.arena_offset, b.size_bytes, b.immutable, b.first_op, b.last_op,
                                Bytes{b.data}, b.name, b.twin, b.first_word, b.group});
  }
  static bool is_default(const Buffer&) { return false; }
};

template <>
struct Fields<RankGroup> {
  using T = RankGroup;
  static constexpr auto list = std::tuple{field("name", &T::name), field("world", &T::world),
                                          field("box_bytes", &T::box_bytes), field("first_counter", &T::first_counter)};
};
template <>
struct Fields<FreshTensor> {
  using T = FreshTensor;
  static constexpr auto list =
      std::tuple{field("dtype", &T::dtype), field("sizes", &T::sizes), field("strides", &T::strides)};
};
template <>
struct Fields<Output> {
  using T = Output;
  static constexpr auto list =
      std::tuple{field("fresh", &T::fresh),     field("input", &T::input),   field("sizes", &T::sizes),
                 field("strides", &T::strides), field("offset", &T::offset), field("whole", &T::whole)};
};
template <>
struct Fields<TensorMap> {
  using T = TensorMap;
  static constexpr auto list =
      std::tuple{field("slot", &T::slot),   field("offset_bytes", &T::offset_bytes),   field("dtype", &T::dtype),
                 field("sizes", &T::sizes), field("strides_bytes", &T::strides_bytes), field("box", &T::box)};
};
template <>
struct Fields<Loop> {
  static constexpr auto list = std::tuple{field("carried", &Loop::carried), field("go_slot", &Loop::go_slot),
                                          field("arrivals", &Loop::arrivals)};
};
template <>
struct Fields<Plan> {
  static constexpr auto list = std::tuple{field("name", &Plan::name),
                                          field("num_workers", &Plan::num_workers),
                                          field("buffers", &Plan::buffers),
                                          field("fresh", &Plan::fresh),
                                          field("outputs", &Plan::outputs),
                                          field("programs", &Plan::programs),
                                          field("ops", &Plan::ops),
                                          field("lists", &Plan::lists),
                                          field("maps", &Plan::maps),
                                          field("num_counters", &Plan::num_counters),
                                          field("num_flag_words", &Plan::num_flag_words),
                                          field("arena_bytes", &Plan::arena_bytes),
                                          field("bytes", &Plan::bytes),
                                          field("flops", &Plan::flops),
                                          field("predicted_ms", &Plan::predicted_ms),
                                          field("floor_ms", &Plan::floor_ms),
                                          field("group", &Plan::group),
                                          field("world", &Plan::world),
                                          field("splits", &Plan::splits),
                                          field("box_bytes", &Plan::box_bytes),
                                          field("more_groups", &Plan::more_groups),
                                          field("loop", &Plan::loop)};
  static constexpr std::array retired{std::string_view("layout")};
};

}  // namespace ark::json

namespace ark::plan {
namespace {

/// Plans that were saved before forms were a part of them have none.
bool has_forms(const Plan& plan) {
  return std::none_of(plan.ops.begin(), plan.ops.end(),
                      [](const Op& op) { return op.record.kind == abi::TaskKind::kMatmulRows && op.form < 0; });
}

}  // namespace

std::string to_json(const Plan& plan) {
  json::Writer out;
  json::write(out, plan);
  return out.take();
}

Plan from_json(const std::string& text) {
  Plan plan;
  json::read(json::parse(text), plan, json::Path{nullptr, "plan"});
  for (size_t i = 0; i < plan.ops.size(); ++i) plan.ops[i].record.op = static_cast<int32_t>(i);
  take_early_from_records(plan);
  if (!has_forms(plan)) number_forms(plan);
  return plan;
}

}  // namespace ark::plan
