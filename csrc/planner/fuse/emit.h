// The ops of a FusedGraph in the making. Internal to emit*.cpp and attention.cpp.
#pragma once
#include <map>
#include <unordered_map>

#include "planner/fuse/program_builder.h"

namespace ark::planner {

/// Operands that fit a record.
inline constexpr size_t kMaxOperands = (abi::kMaxRecordBytes - sizeof(abi::OpRecord)) / sizeof(abi::Operand);

class Emitter {
 public:
  Emitter(State& state, FusedGraph& result) : state_(state), result_(result) {}
  std::vector<int> run();

 private:
  // emit.cpp
  void make_storages();
  void place_slices();
  void note_parts(const ir::Node& exchange, int number);
  bool joins_boxes(const ir::Node& node) const;
  void emit_group(int g);
  void program_group(int g);
  Coords source_place(int node) const;
  void outputs();
  StorageId add_storage(DType dtype, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                        const std::string& name);
  // emit_free.cpp
  void free_value_ops(int position);
  bool depends_on(int value, const std::vector<int>& others) const;
  bool share_leaf(int a, int b) const;
  bool share_concatenation(int a, int b) const;
  void free_op(const std::vector<int>& values);
  void copies();
  bool copy_op(const std::vector<int>& nodes);
  // emit_matmul.cpp
  void matmul_group(int g);
  void tile_matmul(int g);
  struct Unit {  // a segment in the making
    int group;
    uint32_t roots;
    int64_t pair;
  };
  void rows_matmul(const std::vector<Unit>& units);
  std::vector<Unit> units_of(int g) const;
  bool reads_only_before(const BuiltProgram& built) const;
  static constexpr int kLookAhead = 16;  // groups after a few-row matmul that may share its op
  BuiltProgram epilogue(const Unit& unit);
  BuiltProgram prologue(int group, int activation, int64_t m, int64_t k);
  // attention.cpp
  void attention_group(int g);
  void attention_backward_group(int g);
  void index_store_group(int g);
  struct MaskInfo {
    StridedSource source;
    int64_t batch = 1, heads = 1, queries = 1, keys = 1;
    int kind = 0;
    DType dtype = DType::kBool;
    StorageId range = -1;
  };
  MaskInfo mask_of(int mask, int64_t queries, int64_t keys, bool with_range);
  abi::Operand strided_operand(int value, DType dtype) const;
  abi::Operand range_operand(const MaskInfo& mask) const;
  // scatter_sum.cpp
  void scatter_sum_group(int g);
  // row_select.cpp
  void row_select_group(int g);
  FusedOp row_select_op(const ir::Node& node, int round) const;
  abi::Operand select_storage(const FusedOp& op, int operand);
  // row_draw.cpp
  void row_draw_group(int g);
  FusedOp row_draw_op(const ir::Node& node, int stage) const;
  abi::Operand draw_storage(const FusedOp& op, int operand);

  // Shared.
  int add_program(const Program& program);
  int append(FusedOp& op, const BuiltProgram& built);
  void set_program_op(FusedOp& op, abi::TaskKind kind, const BuiltProgram& built);
  void finish(FusedOp op, std::vector<int> nodes, int main_node);
  [[noreturn]] void cut(const FusedOp& op, const std::vector<int>& nodes);
  int64_t touched_bytes(const FusedOp& op) const;
  std::vector<std::string> told_nodes(const std::vector<int>& nodes, int main_node) const;
  static abi::Operand absent_operand();

  State& state_;
  FusedGraph& result_;
  std::unordered_multimap<size_t, int> program_numbers_;
  std::vector<int> missing_;
  std::vector<bool> emitted_;              // per group
  std::vector<std::vector<int>> free_at_;  // per group: free values to be stored before it, not yet emitted
  std::vector<int> writer_;                // per storage: last op that writes it, -1: it is not there yet
  std::vector<bool> sliced_;               // per storage: slices of it are stored
  std::vector<MaskInfo> masks_;
};

}  // namespace ark::planner
