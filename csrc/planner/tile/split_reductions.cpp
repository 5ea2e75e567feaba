#include "planner/tile/split_reductions.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "planner/depend.h"
#include "planner/fuse/emit.h"
#include "planner/tile/beside.h"
#include "planner/tile/reduction_cut.h"
#include "planner/tile/split_places.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// What each instruction of the program depends on.
struct Flow {
  std::vector<bool> after_reduce;  // on a Reduce
  std::vector<int> reduces;        // the Reduces, in order
  std::vector<int> extreme;        // per instruction: of a place, the Reduce of the value there; else -1
  size_t num_asked = 0;            // instructions behind these are extremes that only their places need
};

std::vector<int16_t*> registers(Instr& instr) {
  std::vector<int16_t*> result;
  for (int16_t* r : {&instr.a, &instr.b, &instr.c, &instr.d}) {
    if (*r >= 0) result.push_back(r);
  }
  return result;
}

/// None when the program is not one simple reduction: nested reductions, elements stored after the reduction, places
/// without extremes (with_extremes).
std::optional<Flow> flow_of(const Program& program) {
  Flow flow;
  flow.after_reduce.assign(program.instrs.size(), false);
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    Instr instr = program.instrs[i];
    for (const int16_t* r : registers(instr)) {
      if (flow.after_reduce[*r]) flow.after_reduce[i] = true;
    }
    if (instr.op == Opcode::kLoadParts) return std::nullopt;
    if (instr.op == Opcode::kReduce) {
      if (flow.after_reduce[i]) return std::nullopt;
      flow.after_reduce[i] = true;
      flow.reduces.push_back(static_cast<int>(i));
    }
    const bool late_store = instr.op == Opcode::kStore && flow.after_reduce[i];
    if (late_store && program.kind == ProgramKind::kRow && !instr.uniform) return std::nullopt;
  }
  if (flow.reduces.empty()) return std::nullopt;
  return flow;
}

/// How an op is split: its program, perhaps with extremes behind, and what depends on what there.
struct Split {
  double beside;
  RowCut cut;
  Program program;
  Flow flow;
};

std::optional<Split> split_of_places(const FusedOp& op, const Program& program, const Options& options) {
  if (program.kind != ProgramKind::kRow) return std::nullopt;
  const RowCut cut = cut_for_places(op, program, options.machine.num_workers);
  if (cut.parts == 1) return std::nullopt;
  std::optional<Extremes> extremes = with_extremes(program);
  if (!extremes) return std::nullopt;
  std::optional<Flow> flow = flow_of(extremes->program);
  if (!flow) return std::nullopt;
  flow->extreme = std::move(extremes->extreme);
  flow->num_asked = extremes->num_asked;
  return Split{1.0, cut, std::move(extremes->program), std::move(*flow)};
}

std::optional<Split> split_of(const FusedOp& op, bool awaited, double beside, const FusedGraph& graph,
                              const Options& options) {
  const TaskKind kind = op.op.record.kind;
  if (kind != TaskKind::kColumn && kind != TaskKind::kRow) return std::nullopt;
  const Program& program = graph.programs[op.op.record.params.program.program];
  if (yields_places(program)) return split_of_places(op, program, options);
  const RowCut cut = reduction_cut(op, program, {awaited, beside, options.machine.num_workers});
  if (cut.parts == 1) return std::nullopt;
  std::optional<Flow> flow = flow_of(program);
  if (!flow) return std::nullopt;
  flow->extreme.assign(program.instrs.size(), -1);
  flow->num_asked = program.instrs.size();
  return Split{beside, cut, program, std::move(*flow)};
}

class Splitter {
 public:
  Splitter(FusedGraph& graph, const FusedOp& op, Split split)
      : graph_(graph),
        whole_(op),
        params_(op.op.record.params.program),
        program_(std::move(split.program)),
        beside_(split.beside),
        cut_(split.cut),
        flow_(std::move(split.flow)),
        column_(op.op.record.kind == TaskKind::kColumn) {}

  /// None, and the graph as it was, where a record has no room for one of the two.
  std::optional<std::vector<FusedOp>> split() {
    const size_t storages = graph_.storages.size(), programs = graph_.programs.size();
    make_storages();
    std::vector<FusedOp> ops{first_op()};
    if (cut_.rest > 0) ops.push_back(rest_of(ops[0]));
    ops.push_back(second_op());
    if (std::max(ops[0].op.operands.size(), ops.back().op.operands.size()) <= kMaxOperands) return ops;
    graph_.storages.resize(storages);
    graph_.programs.resize(programs);
    return std::nullopt;
  }

 private:
  int kept_dims() const { return params_.num_dims - params_.reduce_dims; }
  int kept_dim(int d) const { return column_ ? params_.reduce_dims + d : d; }
  int64_t last_kept() const { return kept_dims() == 0 ? 1 : whole_.op.record.size[params_.num_dims - 1]; }
  /// What parts' rows of columns begin at multiples of.
  int64_t result_row() const { return kept_dims() == 1 ? result_step_ : last_kept(); }
  int outermost() const { return column_ ? 0 : kept_dims(); }

  /// A store of the second op: once per kept element.
  bool is_late(int i) const { return flow_.after_reduce[i] || program_.instrs[i].uniform; }

  void make_storages() {
    kept_total_ = 1;
    for (int d = 0; d < kept_dims(); ++d) kept_total_ *= whole_.op.record.size[kept_dim(d)];
    for (int reduce : flow_.reduces) {
      Storage storage;
      storage.dtype = compute_type(program_.instrs[reduce].dtype);
      // parts of columns begin at whole vectors, so that those are read by them
      if (column_) result_step_ = whole_vectors(kept_total_);
      storage.num_elements = (column_ ? result_step_ : kept_total_) * cut_.results();
      storage.sizes = {column_ ? cut_.results() : kept_total_, column_ ? result_step_ : cut_.results()};
      storage.strides = {storage.sizes[1], 1};
      storage.name = whole_.op.name + ".parts";
      parts_storage_.push_back(static_cast<StorageId>(graph_.storages.size()));
      graph_.storages.push_back(storage);
    }
  }

  static int64_t whole_vectors(int64_t elements) {
    constexpr int64_t kSector = 8, kFew = 32;  // of 4 bytes; fewer columns are one run (device/program/column_folded)
    return elements < kFew ? elements : (elements + kSector - 1) / kSector * kSector;
  }
  static int vector_of(DType dtype, int64_t inner) {
    int vector = 16 / size_bytes(dtype);
    while (inner % vector != 0) vector /= 2;
    return vector;
  }

  /// Strides of a partial result (`inner`: length of the innermost dimension, if it is contiguous, else 1): over the
  /// kept dimensions (dense), and over the parts.
  abi::Operand parts_operand(size_t r, int part_dim, int first_kept, int64_t inner) const {
    const Storage& storage = graph_.storages[parts_storage_[r]];
    abi::Operand x{};
    x.slot = static_cast<uint32_t>(parts_storage_[r]);
    x.dtype = static_cast<short>(storage.dtype);
    x.vector = static_cast<signed char>(vector_of(storage.dtype, inner));
    x.index_operand = -1;
    x.stride[part_dim] = column_ ? result_step_ : 1;
    int64_t stride = column_ ? 1 : cut_.results();
    for (int d = kept_dims() - 1; d >= 0; --d) {
      x.stride[first_kept + d] = stride;
      stride *= whole_.op.record.size[kept_dim(d)];
    }
    return x;
  }

  /// Adds what `roots` need of the program to `out`, in order; `stop` maps registers that are replaced.
  void copy_slice(const std::vector<int>& roots, const std::vector<int>& stop, FusedOp& op, Program& out,
                  abi::Operand (Splitter::*restride)(const abi::Operand&) const,
                  int (Splitter::*index)(const Instr&, Program&) const) {
    std::vector<bool> needed(program_.instrs.size(), false);
    for (int root : roots) needed[root] = true;
    for (int i = static_cast<int>(program_.instrs.size()) - 1; i >= 0; --i) {
      if (!needed[i] || stop[i] >= 0) continue;
      Instr instr = program_.instrs[i];
      for (const int16_t* r : registers(instr)) needed[*r] = true;
    }
    std::vector<int> place = stop, operand_place(whole_.op.operands.size(), -1);
    for (int i = 0; i < static_cast<int>(program_.instrs.size()); ++i) {
      if (!needed[i] || stop[i] >= 0) continue;
      Instr instr = program_.instrs[i];
      for (int16_t* r : registers(instr)) *r = static_cast<int16_t>(place[*r]);
      if (instr.op == Opcode::kLoad || instr.op == Opcode::kStore) {
        const int old = params_.first_operand + instr.operand;
        if (operand_place[old] < 0) {
          operand_place[old] = static_cast<int>(op.op.operands.size());
          op.op.operands.push_back((this->*restride)(whole_.op.operands[old]));
          op.access.push_back(whole_.access[old]);
          if (const int parameters = whole_.op.operands[old].index_operand; parameters >= 0) {
            op.op.operands.back().index_operand = static_cast<signed char>(op.op.operands.size());
            op.op.operands.push_back(whole_.op.operands[parameters]);
            op.access.push_back(whole_.access[parameters]);
          }
        }
        instr.operand = static_cast<int16_t>(operand_place[old]);
      }
      if (instr.op == Opcode::kIndex) {
        place[i] = (this->*index)(instr, out);
        continue;
      }
      check(instr.op != Opcode::kParameter, "op '", whole_.op.name, "': a number stands in the record already");
      if (instr.op == Opcode::kReduce && owned_ >= 0) instr.a = append_owned_value(out, instr, owned_);
      place[i] = static_cast<int>(out.instrs.size());
      out.instrs.push_back(instr);
    }
    places_ = place;
  }

  abi::Operand first_strides(const abi::Operand& x) const {
    abi::Operand y = x;
    // column: (part's rows, other reduced, parts, kept); row: (kept, parts, part's elements, other reduced)
    const int insert = column_ ? params_.reduce_dims : kept_dims();
    for (int d = params_.num_dims; d > insert; --d) y.stride[d] = x.stride[d - 1];
    y.stride[insert] = x.stride[outermost()] * cut_.step;
    while (y.vector > 1 && y.stride[params_.num_dims] == 1 && y.stride[insert] % y.vector != 0) y.vector /= 2;
    return y;
  }
  abi::Operand second_strides(const abi::Operand& x) const {
    abi::Operand y = x;
    std::fill(std::begin(y.stride), std::end(y.stride), 0);
    for (int d = 0; d < kept_dims(); ++d) y.stride[column_ ? d + 1 : d] = x.stride[kept_dim(d)];
    return y;
  }

  /// A coordinate of the whole domain, as a register of the first op's program.
  int first_index(const Instr& whole, Program& out) const {
    const int insert = column_ ? params_.reduce_dims : kept_dims();
    auto add = [&](Instr instr) {
      instr.dtype = whole.dtype;
      out.instrs.push_back(instr);
      return static_cast<int16_t>(out.instrs.size() - 1);
    };
    if (whole.aux != outermost()) {
      return add({.op = Opcode::kIndex, .aux = static_cast<int16_t>(whole.aux + (whole.aux >= insert))});
    }
    const int16_t in_part = add({.op = Opcode::kIndex, .aux = static_cast<int16_t>(column_ ? 0 : insert + 1)});
    const int16_t part = add({.op = Opcode::kIndex, .aux = static_cast<int16_t>(insert)});
    const int16_t size = add({.op = Opcode::kConst, .imm_int = cut_.step});
    const int16_t before = add({.op = Opcode::kMul, .a = part, .b = size});
    return add({.op = Opcode::kAdd, .a = in_part, .b = before});
  }
  int second_index(const Instr& whole, Program& out) const {
    Instr instr = whole;
    instr.aux = static_cast<int16_t>(column_ ? whole.aux - params_.reduce_dims + 1 : whole.aux);
    check(instr.aux >= column_ && instr.aux < kept_dims() + column_, "op '", whole_.op.name,
          "': a reduced coordinate is used after the reduction");
    out.instrs.push_back(instr);
    return static_cast<int>(out.instrs.size()) - 1;
  }

  FusedOp base(const std::string& suffix) const {
    FusedOp op;
    op.op.record.kind = whole_.op.record.kind;
    op.op.record.params.program = params_;
    op.op.record.params.program.first_operand = 0;
    op.op.name = whole_.op.name + suffix;
    op.op.module = whole_.op.module;
    op.op.node = whole_.op.node;
    std::fill(std::begin(op.op.record.size), std::end(op.op.record.size), 1);
    return op;
  }
  void finish(FusedOp& op, Program program, int num_dims, int reduce_dims) {
    program.kind = program_.kind;
    program.num_dims = num_dims;
    program.reduce_dims = reduce_dims;
    program.num_operands = static_cast<int>(op.op.operands.size());
    const int number = planner::number_of(graph_.programs, std::move(program));
    abi::ProgramParams& params = op.op.record.params.program;
    params.program = number;
    params.num_dims = num_dims;
    params.reduce_dims = reduce_dims;
    op.op.programs = {number};
  }

  FusedOp first_op() {
    FusedOp op = base(".parts");
    op.spread_rows = true;
    if (column_) op.beside = beside_;
    op.after = whole_.after;
    op.op.bytes = whole_.op.bytes;
    op.op.flops = whole_.op.flops;
    Program program;
    const int part_dim = column_ ? params_.reduce_dims : kept_dims();
    owned_ = counts_twice() ? append_owned(program, cut_, part_dim) : int16_t{-1};
    std::vector<int> roots = flow_.reduces;
    for (int i = 0; i < static_cast<int>(program_.instrs.size()); ++i) {
      if (program_.instrs[i].op == Opcode::kStore && !is_late(i)) roots.push_back(i);
    }
    copy_slice(roots, std::vector<int>(program_.instrs.size(), -1), op, program, &Splitter::first_strides,
               &Splitter::first_index);
    owned_ = -1;
    for (size_t r = 0; r < flow_.reduces.size(); ++r) {
      Instr store{.op = Opcode::kStore, .dtype = graph_.storages[parts_storage_[r]].dtype};
      store.a = static_cast<int16_t>(places_[flow_.reduces[r]]);
      store.operand = static_cast<int16_t>(op.op.operands.size());
      store.uniform = true;
      program.instrs.push_back(store);
      op.op.operands.push_back(parts_operand(r, part_dim, column_ ? part_dim + 1 : 0, column_ ? result_row() : 1));
      op.access.push_back(Access::kWrite);
    }
    abi::i64* size = op.op.record.size;
    std::copy(whole_.op.record.size, whole_.op.record.size + params_.num_dims, size);
    for (int d = params_.num_dims; d > part_dim; --d) size[d] = whole_.op.record.size[d - 1];
    size[part_dim] = cut_.parts;
    size[column_ ? 0 : part_dim + 1] = cut_.length;
    finish(op, std::move(program), params_.num_dims + 1, params_.reduce_dims);
    return op;
  }

  /// The part behind the last one, by the same program.
  FusedOp rest_of(const FusedOp& parts) const {
    FusedOp op = parts;
    const int part_dim = column_ ? params_.reduce_dims : kept_dims();
    op.op.name = whole_.op.name + ".rest";
    op.op.record.size[part_dim] = 1;
    op.op.record.size[column_ ? 0 : part_dim + 1] = cut_.rest;
    const int64_t all = cut_.parts * cut_.length + cut_.rest;
    op.op.bytes = whole_.op.bytes * cut_.rest / all;
    op.op.flops = whole_.op.flops * cut_.rest / all;
    for (abi::Operand& x : op.op.operands) {
      x.offset += cut_.parts * x.stride[part_dim];
      while (x.vector > 1 && x.offset % x.vector != 0) x.vector /= 2;
    }
    return op;
  }

  size_t number_of(int reduce) const {
    return static_cast<size_t>(std::find(flow_.reduces.begin(), flow_.reduces.end(), reduce) - flow_.reduces.begin());
  }
  /// Elements from one part's begin to the next one's.
  int64_t part_step() const {
    int64_t step = cut_.step;
    for (int d = outermost() + 1; d < params_.num_dims; ++d) step *= whole_.op.record.size[d];
    return step;
  }
  bool counts_twice() const {
    return cut_.overlaps() && std::any_of(flow_.reduces.begin(), flow_.reduces.end(),
                                          [&](int reduce) { return counts_elements(program_.instrs[reduce]); });
  }

  /// The register of what the parts have stored of a Reduce, loaded once.
  int16_t load_parts(int reduce, FusedOp& op, Program& program, std::vector<int16_t>& loaded) const {
    const size_t r = number_of(reduce);
    if (loaded[r] >= 0) return loaded[r];
    const Storage& storage = graph_.storages[parts_storage_[r]];
    Instr load{.op = Opcode::kLoad, .dtype = storage.dtype};
    load.operand = static_cast<int16_t>(op.op.operands.size());
    op.op.operands.push_back(
        parts_operand(r, column_ ? 0 : kept_dims(), column_ ? 1 : 0, column_ ? result_row() : cut_.results()));
    op.access.push_back(Access::kRead);
    op.op.bytes += storage.num_elements * size_bytes(storage.dtype);
    program.instrs.push_back(load);
    return loaded[r] = static_cast<int16_t>(program.instrs.size() - 1);
  }

  FusedOp second_op() {
    FusedOp op = base("");
    Program program;
    std::vector<int> stop(program_.instrs.size(), -1);
    std::vector<int16_t> loaded(flow_.reduces.size(), -1);
    for (int reduce : flow_.reduces) {
      if (reduce >= static_cast<int>(flow_.num_asked)) continue;
      const int extreme = flow_.extreme[reduce];
      if (extreme >= 0) load_parts(extreme, op, program, loaded);
      const int16_t parts = load_parts(reduce, op, program, loaded);
      Instr instr = program_.instrs[reduce];
      if (extreme >= 0) {
        stop[reduce] = append_place(program, instr, loaded[number_of(extreme)], parts, kept_dims(), part_step());
        continue;
      }
      instr.a = parts;
      program.instrs.push_back(instr);
      stop[reduce] = static_cast<int>(program.instrs.size()) - 1;
    }
    std::vector<int> roots;
    for (int i = 0; i < static_cast<int>(program_.instrs.size()); ++i) {
      if (program_.instrs[i].op == Opcode::kStore && is_late(i)) roots.push_back(i);
    }
    copy_slice(roots, stop, op, program, &Splitter::second_strides, &Splitter::second_index);
    for (int d = 0; d < kept_dims(); ++d) op.op.record.size[column_ ? d + 1 : d] = whole_.op.record.size[kept_dim(d)];
    op.op.record.size[column_ ? 0 : kept_dims()] = cut_.results();
    finish(op, std::move(program), kept_dims() + 1, 1);
    return op;
  }

  FusedGraph& graph_;
  const FusedOp& whole_;
  const abi::ProgramParams params_;
  const Program program_;
  const double beside_;
  const RowCut cut_;
  const Flow flow_;
  const bool column_;
  int64_t kept_total_ = 1;
  int64_t result_step_ = 1;               // of columns: elements from one part's result to the next one's
  std::vector<StorageId> parts_storage_;  // per Reduce
  std::vector<int> places_;               // of the program's instructions in the last copy
  int16_t owned_ = -1;                    // register of the first op's program: see append_owned
};

}  // namespace

void split_reductions(Draft& draft, const Options& options) {
  FusedGraph& graph = draft.graph;
  std::vector<FusedOp> ops;
  std::vector<int> place(graph.ops.size());
  const std::vector<bool> awaited = awaited_ops(graph);
  const std::vector<double> beside = alike_beside(graph, options);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    FusedOp& op = graph.ops[i];
    for (int& before : op.after) before = place[before];
    if (std::optional<Split> split = split_of(op, awaited[i], beside[i], graph, options)) {
      if (auto made = Splitter(graph, op, std::move(*split)).split()) {
        made->back().after = made->front().after;
        std::move(made->begin(), made->end(), std::back_inserter(ops));
        place[i] = static_cast<int>(ops.size()) - 1;
        continue;
      }
    }
    place[i] = static_cast<int>(ops.size());
    ops.push_back(std::move(op));
  }
  graph.ops = std::move(ops);
}

}  // namespace ark::planner
