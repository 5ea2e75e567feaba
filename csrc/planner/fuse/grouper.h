// Which group computes which node: the rules of groups.cpp, one object for one graph.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "planner/fuse/program_builder.h"

namespace ark::planner {

class Grouper {
 public:
  explicit Grouper(State& state);
  void run();

 private:
  void visit(int i);
  int last_group(const ir::Node& node) const;
  int add_group(GroupKind kind, int anchor);
  void own(int value, int g);
  Group& group(int g) { return state_.groups[static_cast<size_t>(g)]; }
  /// The builder in which the group's values are tried out. Made anew when the group's roots change.
  ProgramBuilder& trial(int g);
  /// Tries to compute the owner at coords in the group; free values that turn out to need memory get it. Register or
  /// -1.
  int try_eval(int owner, int g, const Coords& coords, bool* structural = nullptr);
  /// The same for a value that the group need not compute itself.
  int try_value(int value, int g, const Coords& coords, bool* structural = nullptr);
  void matmul(int i);
  void attention(int i);
  void index_store(int i);
  bool indices_computable(const ir::Node& node, const Coords& place, int g);
  void exchange(int i);
  bool push_along(int i);

  // Values along the op of a group (claims.cpp).
  /// Coordinates of a value (owner or bijective view) over its group's domain.
  std::optional<Coords> place_of(int value) const;
  std::optional<Coords> row_major(const Coords& coords, const std::vector<int64_t>& sizes,
                                  const std::vector<int64_t>& to) const;
  std::optional<Coords> whole_place(int part, const std::vector<int64_t>& sizes, int g, int depth) const;
  std::optional<Coords> find_place(int owner, const ir::Node& node, int g);
  uint32_t row_dims(int g);
  /// Whether the group's op computes anything: a reduction over nothing does.
  bool has_tiles(int g);
  void elementwise(int owner, int g);
  void set_pointwise_domain(int g, int owner);
  bool claim(int owner, int g);
  /// A value along a matmul or along rows that is not one per element of its domain (half of rotated columns): whoever
  /// needs it computes it.
  bool claim_part(int owner, int g) const;
  bool joins_rows(int owner, int64_t numel, int depth) const;
  /// Values that depend on no group but have to be in memory (dropout masks) are computed and stored by the group that
  /// reads them first.
  void adopt(int owner, int g);
  /// Do all nodes up to `current` that read the value belong to group g (perhaps through values that belong to none)?
  bool read_only_by(int owner, int g, int current, int depth) const;
  /// May a value in this register be stored at this place by the group's op?
  bool fits(int reg, const Coords& place, int g);
  /// A value may depend on two matmuls of a group (a gated pair) or on the columns at a distance, not on both.
  bool joins_roots(Group& x, const ProgramBuilder::Reg& meta);

  // Reductions (reductions.cpp).
  void reduce(int i);
  bool reduce_along_sums(int i, int g);
  bool reads_boxes(int g) const;
  void join(int out, int node, int g, const Coords& place);
  bool shares_input(const ir::Node& node, int g);
  /// Whether the group's op still has operands for one more reduction: for what they all read and for a result each.
  bool has_room(const ir::Node& node, int g) const;
  /// Place of a reduction over the rows of the group that computes its operand.
  std::optional<Coords> reduced_place(const ir::Node& node, int g);

  static constexpr size_t kKeptTrials = 12;
  static constexpr size_t kSiblingOperands = 12;  // of the operands of an op; the rest is for what is computed along it
  static constexpr int kSiblingWindow = 24;       // how far back reductions of the same values are looked for

  State& state_;
  bool uneven_ = false;  // has_uneven()
  std::vector<std::unique_ptr<ProgramBuilder>> trials_;
};

}  // namespace ark::planner
